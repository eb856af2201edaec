"""Fixtures of the tests of engines: ONNX Runtime on this machine's CPU, and its knob space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from onnx import TensorProto, helper

from pytest_gptune.engines.base import BuildRequest
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend
from pytest_gptune.engines.onnxruntime.session import SessionEngine

Build = Callable[..., SessionEngine]


@pytest.fixture(scope="session")
def backend() -> OnnxRuntimeBackend:
    return OnnxRuntimeBackend()


@pytest.fixture
def build(backend: OnnxRuntimeBackend) -> Build:
    """Builds the model at a path at a route ``{knob: value}``, with options of the backend."""

    def build(path: Path, route: Mapping[str, str] | None = None, **options: Any) -> SessionEngine:
        pairs = tuple((route or {}).items())
        request = BuildRequest(str(path), inspect_model(path).sha256, pairs, options=options)
        return backend.build(request)

    return build


@pytest.fixture(scope="session")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLP with biases: optimisation fuses MatMul and Add into Gemm. ``x`` [4, 64] -> ``y``."""
    return models.mlp(tmp_path_factory.mktemp("fused") / "fused.onnx", layers=2, bias=True)


@pytest.fixture(scope="session")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A MatMul between QuantizeLinear and DequantizeLinear, one pair of them twice. ``x`` [2, 8] -> ``y``."""

    def pair(data: str, name: str) -> list[Any]:
        return [
            helper.make_node("QuantizeLinear", [data, "scale", "zero"], [f"{name}_q"]),
            helper.make_node("DequantizeLinear", [f"{name}_q", "scale", "zero"], [name]),
        ]

    generator = np.random.default_rng(0)
    weights = {
        "scale": np.array(0.05, np.float32),
        "zero": np.array(0, np.int8),
        "w": generator.integers(-100, 100, (8, 8)).astype(np.int8),
    }
    nodes = [
        *pair("x", "once"),
        *pair("once", "twice"),
        helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["w_f"]),
        helper.make_node("MatMul", ["twice", "w_f"], ["product"]),
        *pair("product", "y"),
    ]
    values = (TensorProto.FLOAT, [2, 8])
    path = tmp_path_factory.mktemp("quantised") / "quantised.onnx"
    return models.write(models.build(nodes, {"x": values}, {"y": values}, weights), path)
