"""ONNX Runtime's CUDA provider: whether it can be used here, what it is given, and what it runs on."""

from __future__ import annotations

import contextlib
import ctypes
import io
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_gptune.engines.base import Environment
from pytest_gptune.engines.cuda import Clocks, Device
from pytest_gptune.engines.cuda.runtime import call
from pytest_gptune.engines.machine import cpu_model, load_average, usable_cores
from pytest_gptune.engines.onnxruntime import knobs
from pytest_gptune.errors import SettingsError

GRAPH = "enable_cuda_graph"

# Options of the marker that are on or off.
_SWITCHES = ("l2_flush", "transfers")

# cublasGetProperty's numbers of major, minor and patch level.
_PROPERTIES = (0, 1, 2)

_DEVICE = re.compile(r"\d+|(GPU|MIG)-[0-9a-fA-F-]+", re.IGNORECASE)


def check_options(options: Mapping[str, Any], provider: str) -> None:
    """Raise SettingsError for a device or a flush that cannot be meant; no device is asked."""
    for name in ("device", *_SWITCHES):
        if name in options and provider != knobs.CUDA:
            raise SettingsError(
                f"option '{name}' is for provider cuda, and the provider is {provider}",
                where="options={...} of the marker",
                mend=f"leave '{name}' out, or set 'provider' to 'cuda'",
            )
    device = options.get("device", 0)
    if isinstance(device, bool) or not isinstance(device, (int, str)) or not _DEVICE.fullmatch(str(device)):
        raise SettingsError(
            f"option 'device' is {device!r}",
            where="options={...} of the marker",
            mend="use an index, as 0, or a UUID, as 'GPU-...' or 'MIG-...' (nvidia-smi -L lists them)",
        )
    for name in _SWITCHES:
        if not isinstance(options.get(name, False), bool):
            raise SettingsError(
                f"option '{name}' is {options[name]!r}",
                where="options={...} of the marker",
                mend="use True or False",
            )


def device_of(options: Mapping[str, Any]) -> Device:
    """The device that the options name, the first by default.

    Raises:
        BackendMissingError: it is not there.
    """
    return Device.find(str(options.get("device", 0)))


def known_options(core: Path) -> frozenset[str]:
    """Knobs that the provider's library, beside ONNX Runtime's own, has; none without that library."""
    found = sorted(core.parent.glob("*onnxruntime_providers_cuda.*"))
    return knobs.known_cuda_options(found[0]) if found else frozenset()


def load_libraries() -> None:
    """Load CUDA and cuDNN from this environment's nvidia packages, which ONNX Runtime does not find itself.

    What is missing is told by the session, which falls back and is rejected.
    """
    import onnxruntime as ort

    preload = getattr(ort, "preload_dlls", None)
    if preload is not None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(RuntimeError, OSError):
            preload()


def prepare(options: Mapping[str, Any]) -> dict[str, str]:
    """Make the device current, and return what the provider is always given."""
    device = device_of(options)
    load_libraries()
    device.make_current()
    return {"device_id": str(device.index)}


def get_ready(options: Mapping[str, Any]) -> None:
    """Load the provider's library and all that it needs, which a value on the device does."""
    import numpy as np
    import onnxruntime as ort

    index = int(prepare(options)["device_id"])
    ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32), "cuda", index)


def environment(options: Mapping[str, Any], software: Mapping[str, Any], tuner_version: str) -> Environment:
    """The device, its driver and libraries, and the machine it is in."""
    import onnxruntime as ort

    load_libraries()
    device = device_of(options)
    clocks = Clocks(device)
    try:
        now, driver = clocks.read(), clocks.driver_version()
        highest, chosen = clocks.max_sm_hz(), clocks.application_sm_hz()
    finally:
        clocks.close()
    return Environment(
        device_class=f"cuda:{device.name}:{device.sm_count}",
        tuner_version=tuner_version,
        software={
            **software,
            "driver": driver,
            "driver_cuda": _version(call("cudaDriverGetVersion")),
            **library_versions(str(getattr(ort, "cuda_version", "") or "").partition(".")[0]),
        },
        device={
            "gpu": device.name,
            "compute_capability": device.compute_capability,
            "sm_count": device.sm_count,
            "memory_bytes": device.memory_bytes,
            "mig": device.is_mig,
            "power_limit_w": now.power_limit_w,
            "max_sm_hz": highest,
            "application_sm_hz": chosen,
            "cpu_model": cpu_model(),
            "cores": usable_cores(),
            "machine": platform.machine(),
            "system": platform.system(),
        },
        noted={
            "host": platform.node(),
            "load": load_average(),
            "python": platform.python_version(),
            "uuid": device.uuid,
            "temperature_c": now.temperature_c,
            "nvml": clocks.unavailable or "read",
        },
    )


def library_versions(cuda_major: str) -> dict[str, str | None]:
    """Versions of the CUDA runtime, cuBLAS and cuDNN that ONNX Runtime loads; None where not found."""
    found: dict[str, str | None] = dict.fromkeys(("cuda_runtime", "cublas", "cudnn"))
    number = ctypes.c_int()
    with contextlib.suppress(OSError, AttributeError):
        if not ctypes.CDLL(f"libcudart.so.{cuda_major}").cudaRuntimeGetVersion(ctypes.byref(number)):
            found["cuda_runtime"] = _version(number.value)
    with contextlib.suppress(OSError, AttributeError):
        cublas = ctypes.CDLL(f"libcublas.so.{cuda_major}")
        found["cublas"] = ".".join(str(_property(cublas, which)) for which in _PROPERTIES)
    with contextlib.suppress(OSError, AttributeError):
        cudnn = ctypes.CDLL("libcudnn.so.9")
        cudnn.cudnnGetVersion.restype = ctypes.c_size_t
        version = int(cudnn.cudnnGetVersion())
        found["cudnn"] = f"{version // 10000}.{version // 100 % 100}.{version % 100}"
    return found


def _version(number: int) -> str:
    """``13.0`` for CUDA's 13000."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _property(cublas: ctypes.CDLL, which: int) -> int:
    number = ctypes.c_int()
    cublas.cublasGetProperty(which, ctypes.byref(number))
    return number.value
