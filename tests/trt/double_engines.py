"""What tests of engines over the double share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from pytest_gptune.engines.base import BuildRequest
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.tensorrt.engine import TensorRtEngine

Build = Callable[..., TensorRtEngine]
X = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)


def request_for(path: Path, *route: tuple[str, str], **fields: Any) -> BuildRequest:
    return BuildRequest(str(path), inspect_model(path).sha256, route, **fields)


def expected(path: Path, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    outputs: list[np.ndarray] = session.run(None, dict(inputs))
    return outputs
