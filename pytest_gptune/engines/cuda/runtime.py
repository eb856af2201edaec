"""Calls of the CUDA runtime whose return code is checked."""

from __future__ import annotations

import importlib
from typing import Any

from pytest_gptune.engines.base import BackendMissingError, EngineFailedError, EngineOutOfMemoryError

_MODULE = "cuda.bindings.runtime"
_DRIVER = "cuda.bindings.driver"

# CUDA_ERROR_OUT_OF_MEMORY of the driver's CUresult.
_OUT_OF_MEMORY = 2


class CudaError(EngineFailedError):
    """A call of CUDA failed; the text names the call and CUDA's error."""


def runtime() -> Any:
    """cuda-python's module of the CUDA runtime.

    Raises:
        BackendMissingError: cuda-python is not installed.
    """
    try:
        return importlib.import_module(_MODULE)
    except ImportError as error:
        raise BackendMissingError(
            f"cuda-python is not installed: {error}", mend='python -m pip install "pytest-gptune[cuda]"'
        ) from error


def call(name: str, *args: Any) -> Any:
    """Call a function of the CUDA runtime and return what it returns beside its code.

    Raises:
        EngineOutOfMemoryError: the device's memory ran out.
        CudaError: any other code than success.
        BackendMissingError: cuda-python is not installed.
    """
    module = runtime()
    code, *values = getattr(module, name)(*args)
    if int(code):
        # A code that is left behind would be taken for that of somebody's next launch.
        module.cudaGetLastError()
        raise error_of(name, code)
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def driver_call(name: str, *args: Any) -> Any:
    """Call a function of the CUDA driver, for what the runtime lacks, and return what it returns.

    Raises:
        EngineOutOfMemoryError: the device's memory ran out.
        CudaError: any other code than success, or there is no such module.
    """
    try:
        function = getattr(importlib.import_module(_DRIVER), name)
    except (ImportError, AttributeError) as error:
        raise CudaError(f"cuda-python has no {name}: {error}") from error
    code, *values = function(*args)
    if int(code):
        message = f"{name} failed: {getattr(code, 'name', None) or int(code)}"
        raise EngineOutOfMemoryError(message) if int(code) == _OUT_OF_MEMORY else CudaError(message)
    return values[0] if values else None


def check(name: str, code: Any) -> None:
    """Raise what ``call`` raises for ``code``: loops that are timed call the bindings themselves."""
    if int(code):
        raise error_of(name, code)


def error_of(name: str, code: Any) -> CudaError | EngineOutOfMemoryError:
    """The error of a call that returned ``code``."""
    message = f"{name} failed: {error_text(code)}"
    if int(code) == int(runtime().cudaError_t.cudaErrorMemoryAllocation):
        return EngineOutOfMemoryError(
            message, mend="choose smaller shapes, or end other programs on the device"
        )
    return CudaError(message)


def error_text(code: Any) -> str:
    """CUDA's name of a code and its description, as ``cudaErrorNoDevice (no CUDA-capable device ...)``."""
    _, text = runtime().cudaGetErrorString(code)
    said = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    return f"{getattr(code, 'name', None) or int(code)} ({said})"
