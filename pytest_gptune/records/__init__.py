"""What is kept: the fingerprint of a measurement, the committed baseline, and the model it was made with."""
