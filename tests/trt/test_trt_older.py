"""TensorRT 10, which chooses precisions and has no build routes (the double, cut to it); and none at all."""

from __future__ import annotations

import enum
import importlib.util
import sys
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from double_engines import X, expected, request_for
from recorded import Recorded

from pytest_gptune.engines.base import BackendMissingError, BuildRejectedError, BuildRequest
from pytest_gptune.engines.tensorrt import TensorRtBackend
from pytest_gptune.engines.tensorrt.library import features_of
from pytest_gptune.routes import KnobSpace


@pytest.fixture
def older(double: TensorRtBackend, monkeypatch: pytest.MonkeyPatch) -> TensorRtBackend:
    """The backend over a double that has what 10.16 has of what is used here."""
    trt: Any = double._trt
    recorded = Recorded("10.16")
    names = ["TF32", "SPARSE_WEIGHTS", "FP16", "BF16", "INT8"]
    assert all(recorded.has(f"BuilderFlag.{name}") for name in names)
    monkeypatch.setattr(trt, "__version__", recorded.version)
    monkeypatch.setattr(trt, "BuilderFlag", enum.IntEnum("BuilderFlag", names))
    for name in ("build_route", "all_build_routes"):
        assert not recorded.has(f"IBuilderConfig.{name}")
        monkeypatch.delattr(trt.IBuilderConfig, name)
    assert features_of(trt) == features_of(recorded.skeleton)
    return TensorRtBackend()


def space_of(backend: TensorRtBackend, **options: Any) -> KnobSpace:
    return KnobSpace.from_json(backend.knob_space(None, options))


def test_precisions_are_knobs_and_the_missing_routes_are_explained(older: TensorRtBackend) -> None:
    space = space_of(older)
    assert space.tuner_version == older.environment({}).tuner_version == Recorded("10.16").version
    knobs = {knob.name: knob for knob in space}
    assert knobs["-builder:FP16"].default == knobs["-builder:BF16"].default == "off"
    # Int8 needs a model that is quantised.
    assert knobs["-builder:INT8"].on_request
    assert not knobs["-builder:FP16"].on_request
    assert "-copy_ppg" not in knobs
    assert space.notes == (
        "No build routes: build routes came with TensorRT 11.1. The builder's own knobs remain.",
    )


def test_networks_that_are_strongly_typed_have_no_precision_to_choose(older: TensorRtBackend) -> None:
    names = [knob.name for knob in space_of(older, strongly_typed=True)]
    assert "-builder:FP16" not in names
    assert "-builder:TF32" in names


def test_a_build_route_is_rejected(older: TensorRtBackend, tmp_path: Path) -> None:
    path = str(models.mlp(tmp_path / "mlp.onnx"))
    with pytest.raises(BuildRejectedError, match=r"has no build routes; asked for '-copy_ppg=off'"):
        older.build(BuildRequest(path, "", (("-copy_ppg", "off"),)))
    with pytest.raises(BuildRejectedError, match="has no knob -builder:FP16 with value 'on'"):
        older.build(BuildRequest(path, "", (("-builder:FP16", "on"),), options={"strongly_typed": True}))


def test_an_engine_of_10_0_is_loaded(
    older: TensorRtBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells what its context takes under another name, and nothing of its weights."""
    trt, recorded = older._trt, Recorded("10.0")
    for cls, name in (("ICudaEngine", "device_memory_size_v2"), ("ICudaEngine", "get_engine_stat")):
        assert not recorded.has(f"{cls}.{name}")
        monkeypatch.delattr(getattr(trt, cls), name)
    monkeypatch.delattr(trt, "EngineStat")
    monkeypatch.setattr(trt.ICudaEngine, "device_memory_size", 3 << 20, raising=False)
    path = models.mlp(tmp_path / "mlp.onnx")
    engine = TensorRtBackend().build(request_for(path))
    assert engine.info.device_memory_bytes == {"context": 3 << 20}
    np.testing.assert_allclose(engine.run({"x": X})["y"], expected(path, {"x": X})[0], rtol=1e-6)
    engine.close()


def test_a_library_that_does_not_start_is_a_missing_backend(
    double: TensorRtBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any, logger: Any) -> None:
        logger.log(logger.Severity.ERROR, "CUDA initialization failure with error: 35")
        raise TypeError("pybind11::init(): factory function returned nullptr")

    monkeypatch.setattr(double._trt.Builder, "__init__", refuse)
    for check in (double.check_available, double.check_buildable):
        with pytest.raises(BackendMissingError) as caught:
            check({})
        assert "does not start: CUDA initialization failure with error: 35" in caught.value.what
        assert "driver" in caught.value.mend


def test_a_module_that_cannot_be_imported_is_a_missing_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "tensorrt"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('libnvinfer.so.11: cannot open')")
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BackendMissingError, match=r"cannot be imported: libnvinfer\.so\.11") as caught:
        TensorRtBackend().check_available({})
    assert "pytest-gptune[tensorrt]" in caught.value.mend
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BackendMissingError, match="backend 'tensorrt' is not installed"):
        TensorRtBackend().check_available({})
