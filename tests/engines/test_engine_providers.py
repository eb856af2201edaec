"""Providers and options of the ONNX Runtime backend: what falls back is rejected, what is unknown refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnxruntime
import pytest
from fake_cuda import Error, FakeDriver, FakeRuntime

from pytest_gptune.engines.base import (
    BackendMissingError,
    BuildRejectedError,
    BuildRequest,
)
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend
from pytest_gptune.engines.onnxruntime.session import SessionEngine
from pytest_gptune.errors import SettingsError

Build = Callable[..., SessionEngine]


def test_a_provider_that_is_not_there(backend: OnnxRuntimeBackend) -> None:
    absent = "QNNExecutionProvider"
    assert absent not in onnxruntime.get_available_providers()
    with pytest.raises(BackendMissingError) as caught:
        backend.check_available({"provider": absent})
    assert absent in caught.value.what
    assert "CPUExecutionProvider" in caught.value.what
    assert caught.value.mend
    backend.check_available({})
    backend.check_available({"provider": "CPU"})


def test_the_cuda_provider_is_mended_by_pip(
    backend: OnnxRuntimeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(BackendMissingError, match=r"CUDAExecutionProvider(.|\n)*pytest-gptune\[cuda\]"):
        backend.check_available({"provider": "cuda"})


def test_the_cuda_provider_without_a_device(
    backend: OnnxRuntimeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRuntime()
    fake.failing["cudaGetDeviceCount"] = Error.cudaErrorNoDevice
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", fake)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    with pytest.raises(BackendMissingError, match="no CUDA device to use: cudaErrorNoDevice"):
        backend.check_available({"provider": "cuda"})
    fake.failing.clear()
    backend.check_available({"provider": "cuda"})
    with pytest.raises(BackendMissingError, match="CUDA shows no device '3'; it shows 0: NVIDIA H200"):
        backend.check_available({"provider": "cuda", "device": 3})


def test_the_environment_of_the_cuda_provider(
    backend: OnnxRuntimeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", FakeRuntime())
    monkeypatch.setitem(sys.modules, "pynvml", None)
    environment = backend.environment({"provider": "cuda"})
    assert environment.device_class == "cuda:NVIDIA H200:132"
    assert environment.software["provider"] == "CUDAExecutionProvider"
    assert environment.software["driver_cuda"] == "13.0"
    assert set(environment.software) >= {"driver", "cuda_runtime", "cublas", "cudnn", "environment"}
    assert environment.device["gpu"] == "NVIDIA H200"
    assert environment.device["memory_bytes"] == 150 * 10**9
    assert environment.device["mig"] is False
    assert "nvidia-ml-py is not installed" in environment.noted["nvml"]
    json.dumps([environment.software, environment.device, environment.noted])  # plain data


def test_onnxruntime_that_is_not_installed(
    backend: OnnxRuntimeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendMissingError, match=r"not installed(.|\n)*pip install \"pytest-gptune\[cpu\]"):
        backend.check_available({})


def test_a_session_that_fell_back_is_rejected(build: Build, fused: Path) -> None:
    """ONNX Runtime only warns of a provider that it does not have."""
    with pytest.raises(BuildRejectedError, match="fell back from QNNExecutionProvider to CPU"):
        build(fused, provider="QNNExecutionProvider")


def test_nodes_that_fell_back_are_rejected(build: Build, fused: Path) -> None:
    if "AzureExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this build of ONNX Runtime has no second provider")
    if not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        pytest.skip("this version of ONNX Runtime does not tell where nodes run")
    with pytest.raises(BuildRejectedError) as caught:
        build(fused, provider="azure")
    assert "nodes fell back from AzureExecutionProvider" in caught.value.what
    assert "Gemm" in caught.value.what or "MatMul" in caught.value.what
    assert "allow_cpu_nodes" in caught.value.mend
    engine = build(fused, provider="azure", allow_cpu_nodes=True)
    assert engine.run({"x": np.ones((4, 64), np.float32)})["y"].shape == (4, 64)
    assert engine.info.digest != build(fused).info.digest


def test_only_some_of_many_nodes_are_named(build: Build, tmp_path: Path) -> None:
    if not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        pytest.skip("this version of ONNX Runtime does not tell where nodes run")
    with pytest.raises(BuildRejectedError, match=r"^12 nodes .* and 7 more"):
        build(models.mlp(tmp_path / "m.onnx", layers=6), provider="azure")


@pytest.mark.parametrize(
    ("options", "said", "mend"),
    [
        ({"providers": "cpu"}, "no option 'providers'", "write 'provider'"),
        ({"zzz": 1}, "no option 'zzz'", "provider, allow_cpu_nodes, device"),
        ({"provider": "gpu9"}, "'provider' is 'gpu9'", "cpu"),
        ({"provider": 7}, "'provider' is 7", "cpu"),
        ({"provider": None}, "'provider' is None", "cpu"),
        ({"log_severity": 5}, "'log_severity' is 5", "0 to 4"),
        ({"log_severity": -1}, "'log_severity' is -1", "0 to 4"),
        ({"log_severity": True}, "'log_severity' is True", "0 to 4"),
        ({"log_severity": "3"}, "'log_severity' is '3'", "0 to 4"),
        ({"allow_cpu_nodes": "no"}, "'allow_cpu_nodes' is 'no'", "True or False"),
        ({"provider": "cuda", "device": -1}, "'device' is -1", "GPU-..."),
        ({"provider": "cuda", "device": "H200"}, "'device' is 'H200'", "an index"),
        ({"provider": "cuda", "device": True}, "'device' is True", "an index"),
        ({"provider": "cuda", "l2_flush": 1}, "'l2_flush' is 1", "True or False"),
        ({"device": 1}, "'device' is for provider cuda", "set 'provider' to 'cuda'"),
        ({"provider": "cpu", "l2_flush": True}, "'l2_flush' is for provider cuda", "leave 'l2_flush' out"),
        ({"provider": "cuda", "transfers": "yes"}, "'transfers' is 'yes'", "True or False"),
        ({"provider": "cpu", "transfers": True}, "'transfers' is for provider cuda", "leave 'transfers' out"),
    ],
)
def test_bad_options_are_refused(
    backend: OnnxRuntimeBackend, options: dict[str, Any], said: str, mend: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        backend.check_options(options)
    assert said in caught.value.what
    assert mend in caught.value.mend
    assert "options=" in caught.value.where


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"provider": "cpu"},
        {"provider": "cuda", "device": 1, "l2_flush": True},
        {"provider": "CUDAExecutionProvider", "device": "MIG-c0ffee00-1111-2222-3333-444444444444"},
        {"provider": "CPUExecutionProvider", "log_severity": 0, "allow_cpu_nodes": True},
    ],
)
def test_good_options_are_taken(backend: OnnxRuntimeBackend, options: dict[str, Any]) -> None:
    backend.check_options(options)


def test_the_environment_names_machine_and_stack(backend: OnnxRuntimeBackend) -> None:
    plain = backend.environment({"provider": "cpu"})
    assert plain.tuner_version == onnxruntime.__version__
    assert plain.software["backend"] == f"onnxruntime {onnxruntime.__version__}"
    assert plain.device_class.startswith("cpu:")
    assert plain.device_class.endswith(f":{plain.device['cores']}")
    json.dumps([plain.software, plain.device, plain.noted])  # plain data


def test_the_route_of_a_request_as_text() -> None:
    assert BuildRequest("m.onnx", "").route_text == "default"
    assert BuildRequest("m.onnx", "", (("-a", "1"), ("-b", "x"))).route_text == "-a=1 -b=x"


def test_signatures_as_text(tmp_path: Path) -> None:
    info = inspect_model(models.dynamic(tmp_path / "m.onnx"))
    assert [str(item) for item in (*info.inputs, *info.outputs)] == [
        "tokens: float32[batch, sequence, 8]",
        "hidden: float32[batch, sequence, 8]",
        "pooled: float32[batch, 8]",
    ]


def test_getting_ready_loads_the_providers_library_and_makes_no_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An application's session is the first one of its process."""
    fake, driver = FakeRuntime(), FakeDriver()
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", fake)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
    made: list[tuple[object, ...]] = []

    class Value:
        @staticmethod
        def ortvalue_from_numpy(array: np.ndarray, kind: str, index: int) -> None:
            made.append((array.shape, kind, index))

    monkeypatch.setattr(onnxruntime, "OrtValue", Value)
    monkeypatch.setattr(onnxruntime, "InferenceSession", None)
    OnnxRuntimeBackend().get_ready(BuildRequest("", "", options={"provider": "cuda"}))
    assert made == [((1,), "cuda", 0)]
    assert "cudaStreamCreateWithFlags" in fake.called
    assert not driver.launches


@pytest.mark.parametrize("fresh", [False, True])
def test_the_process_of_an_only_engine_runs_nothing_before_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fresh: bool
) -> None:
    """How fast kernels start is for engines that come later, of which there are none."""
    driver, seen = FakeDriver(), []
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", FakeRuntime())
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
    backend, path = OnnxRuntimeBackend(), models.mlp(tmp_path / "mlp.onnx")

    class Session:
        def __init__(self, *_: object, **__: object) -> None:
            seen.append(driver.launches)
            raise RuntimeError("seen enough")

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    request = BuildRequest(str(path), "", options={"provider": "cuda"}, fresh=fresh, digest="known")
    for _ in range(2):
        with pytest.raises(BuildRejectedError, match="seen enough"):
            backend.build(request)
    assert seen == ([0, 0] if fresh else [201, 201])
