"""A transformer encoder block with dynamic batch and sequence: two shapes, an epsilon for each output.

Deployed with one thread, so that is fixed; what is left to find is how far the graph should be optimised.
The approximation of Gelu is fast and listed on purpose: it is not accurate enough, and cannot win.
"""

import pytest

ROUTES = """
    -ort:intra_op_num_threads=1
    -ort:graph_optimization_level=[disable|basic|extended|all]
    -ort:optimization.enable_gelu_approximation=[0|1]
    -ort:session.disable_prepacking=[0|1]
    -ort:pass:SkipLayerNormFusion=[on|off]
"""

# TF32 keeps ten bits of a mantissa, too few for this epsilon, so it stays off.
TENSORRT_ROUTES = "-builder:TF32=off -builder:optimization_level=[3|5] -builder:max_aux_streams=[auto|0]"


@pytest.mark.gptune(
    model="models/encoder.onnx",
    epsilon={"hidden_states": 1e-4, "pooled": 1e-4},
    shapes=[{"tokens": (2, 64, 128)}, {"tokens": (1, 7, 128)}],
    routes={"onnxruntime": ROUTES, "tensorrt": TENSORRT_ROUTES, "tensorrt_rtx": TENSORRT_ROUTES},
)
def test_encoder(gptune):
    gptune.check()
