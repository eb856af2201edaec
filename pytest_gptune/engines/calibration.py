"""The calibration engine: a small fixed model of ours, measured in every run that gates.

Its latency moves with the machine and the stack, never with the user's model, so the absolute gate can
tell a slower day from a slower model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gptune.engines.base import BuildRequest
from pytest_gptune.engines.onnx_model import inspect_model

if TYPE_CHECKING:
    import numpy as np

_WIDTH, _BATCH, _LAYERS, _SEED = 256, 16, 6, 20260


def calibration_request(folder: Path) -> BuildRequest:
    """Write the calibration model into ``folder`` and return the request that builds it."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(_SEED)
    nodes, weights, last = [], [], "x"
    for layer in range(_LAYERS):
        weight = (rng.standard_normal((_WIDTH, _WIDTH)) / np.sqrt(_WIDTH)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Relu", [f"m{layer}"], [f"r{layer}"]))
        last = f"r{layer}"
    shape = [_BATCH, _WIDTH]
    graph = helper.make_graph(
        nodes,
        "calibration",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "calibration.onnx"
    onnx.save(model, str(path))
    return BuildRequest(model=str(path), model_sha256=inspect_model(path).sha256)


def calibration_inputs() -> dict[str, np.ndarray]:
    """Its inputs: ``x``, float32[16, 256], standard normal from a fixed seed."""
    import numpy as np

    return {"x": np.random.default_rng(_SEED + 1).standard_normal((_BATCH, _WIDTH)).astype(np.float32)}
