"""Models whose outputs have other shapes than they declare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pytest_gptune.engines.onnxruntime.session import SessionEngine

FLOAT = TensorProto.FLOAT


def _wrong_rank(declared: list[Any]) -> onnx.ModelProto:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    inputs: Mapping[str, Any] = {"x": (FLOAT, ["n", 4]), "shape": (TensorProto.INT64, ["r"])}
    return models.build([node], inputs, {"y": (FLOAT, declared)})


@pytest.mark.parametrize("declared", [[1, "n"], [3, "a", "b"], [2, 2, "b"], []])
def test_an_output_of_another_shape_than_declared_is_timed(
    build: Callable[..., SessionEngine], tmp_path: Path, declared: list[Any]
) -> None:
    """Exporters write wrong ranks; ONNX Runtime runs such a model, but not twice into one binding."""
    engine = build(models.write(_wrong_rank(declared), tmp_path / "m.onnx"))
    inputs = {"x": np.ones((2, 4), np.float32), "shape": np.array([2, 2, 2])}
    engine.load(inputs)
    assert len(engine.sample(10.0, 5).latencies_s) == 5
    assert engine.run(inputs)["y"].shape == (2, 2, 2)
