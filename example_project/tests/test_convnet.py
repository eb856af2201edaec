"""A convolutional network: accuracy and latency as two steps, with a criterion of one's own between them."""

import pytest


@pytest.mark.gptune(model="models/convnet.onnx", epsilon=1e-5)
def test_convnet(gptune_engine, gptune_golden, gptune_benchmark):
    gptune_golden.check(gptune_engine)
    for case in gptune_golden.cases:
        predicted = gptune_engine(case.inputs)["logits"].argmax(axis=-1)
        assert (predicted == case.outputs["logits"].argmax(axis=-1)).all()
    gptune_benchmark(gptune_engine)
