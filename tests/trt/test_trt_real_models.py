"""Models that packages ship parse and build with TensorRT RTX, at the routes it honours.

Those of onnx are architectures with constant weights; the others are what the packages run in production.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from pytest_gptune.engines.base import BuildRequest, ShapeRange
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.tensorrt import TensorRtRtxBackend

pytest.importorskip("tensorrt_rtx", reason="TensorRT RTX is not installed", exc_type=ImportError)

IMAGE = {"x": ShapeRange((1, 3, 48, 64), (1, 3, 48, 320), (4, 3, 48, 640))}

# Package, end of the file's name, and the shapes of dynamic inputs.
MODELS = {
    "squeezenet": ("onnx", "light_squeezenet.onnx", {}),
    "resnet50": ("onnx", "light_resnet50.onnx", {}),
    "shufflenet": ("onnx", "light_shufflenet.onnx", {}),
    "inception": ("onnx", "light_inception_v1.onnx", {}),
    "vgg19": ("onnx", "light_vgg19.onnx", {}),
    "magika": (
        "magika",
        "standard_v3_3/model.onnx",
        {"bytes": ShapeRange((1, 2048), (8, 2048), (64, 2048))},
    ),
    "nudenet": ("nudenet", "320n.onnx", {"images": ShapeRange.fixed((1, 3, 320, 320))}),
    "text_detection": (
        "rapidocr-onnxruntime",
        "det_infer.onnx",
        {"x": ShapeRange((1, 3, 64, 64), (1, 3, 320, 320), (1, 3, 960, 960))},
    ),
    # Height and width have one name in this model, so TensorRT wants them equal.
    "text_direction": ("rapidocr-onnxruntime", "cls_infer.onnx", {"x": ShapeRange.fixed((1, 3, 48, 48))}),
    "text_recognition": ("rapidocr-onnxruntime", "rec_infer.onnx", IMAGE),
}


def find(name: str) -> Path:
    """The model's file; nothing of its package is imported."""
    package, suffix, _ = MODELS[name]
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"package {package} is not installed")
    for file in files:
        if str(file).endswith(suffix):
            return Path(str(file.locate()))
    pytest.skip(f"this version of {package} has no {suffix}")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "squeezenet" else pytest.mark.long) for name in MODELS]
)
def test_a_model_builds_and_tf32_makes_another_engine(name: str) -> None:
    path, backend = find(name), TensorRtRtxBackend()
    model = inspect_model(path)
    known = {item.name for item in model.inputs}
    shapes = {key: shape for key, shape in MODELS[name][2].items() if key in known}
    digests = []
    for route in ((), (("-builder:TF32", "off"),)):
        options = {"compute_capabilities": ["8.9"]}
        engine = backend.build(BuildRequest(str(path), model.sha256, route, shapes, options))
        assert (engine.info.engine_bytes or 0) > 100_000
        digests.append(engine.info.digest)
        engine.close()
    assert digests[0] != digests[1]
