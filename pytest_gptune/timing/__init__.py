"""How latency is measured: what to interleave, when to stop, and the statistics of what was measured."""
