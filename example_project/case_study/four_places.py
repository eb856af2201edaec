"""Four places to quantise: sixteen engines of one model, each with a speed and a loss of its own.

Batch 1 and no bias, so that reading the weights is what takes time, and optimisation without quantisation is
exact. The model (16 MB) is made when this file is first imported, its golden by ``--gptune-update-goldens``:
both belong to the machine they are made on, and neither is committed. docs/case-study.md walks through it.
"""

from pathlib import Path

import numpy as np
import pytest

WIDTH = 1024
PLACES = ("first", "second", "third", "fourth")
MODEL = Path(__file__).with_name("four_places.onnx")
# What the example is required to keep; the fastest of the sixteen routes does not.
REQUIRED = 0.075


def make_model(path: Path) -> None:
    """Four square MatMuls with Relu between them: ``x`` [1, WIDTH] -> ``y`` [1, WIDTH]."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes, weights, data = [], [], "x"
    for place in PLACES:
        # The variance that keeps the size of what passes through a Relu: He et al., arXiv:1502.01852.
        values = rng.standard_normal((WIDTH, WIDTH)) * np.sqrt(2 / WIDTH)
        weights.append(numpy_helper.from_array(values.astype(np.float32), f"{place}_weights"))
        product = "y" if place == PLACES[-1] else f"{place}_product"
        nodes.append(helper.make_node("MatMul", [data, f"{place}_weights"], [product], name=place))
        if product != "y":
            data = f"{place}_out"
            nodes.append(helper.make_node("Relu", [product], [data]))
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "four_places", sides[:1], sides[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)


if not MODEL.exists():
    make_model(MODEL)


def inputs(rng):
    """Three cases; the first is timed."""
    for _ in range(3):
        yield {"x": rng.standard_normal((1, WIDTH))}


@pytest.mark.gptune(
    model=str(MODEL),
    epsilon=REQUIRED,
    inputs=inputs,
    routes="-ort:intra_op_num_threads=1 " + " ".join(f"-quant:{place}=[off|int8]" for place in PLACES),
)
def test_four_places(gptune):
    gptune.check()
