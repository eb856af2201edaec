"""An MLP: the shortest way to write a tuned test."""

import pytest


@pytest.mark.gptune(model="models/mlp.onnx", epsilon=1e-6)
def test_mlp(gptune):
    gptune.check()
