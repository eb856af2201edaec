"""What a backend raises, as the failure of one route; and failures as plain data."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from typing import Any

from pytest_gptune.engines.base import (
    BackendMissingError,
    BuildRejectedError,
    EngineFailedError,
    EngineOutOfMemoryError,
    EngineTimeoutError,
)
from pytest_gptune.errors import GptuneError, ModelError, SettingsError, StorageError

_OUT_OF_MEMORY = re.compile(
    r"out of memory|bad[_ ]alloc|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|"
    r"failed to allocate memory",
    re.IGNORECASE,
)

_CROSSING: tuple[type[GptuneError], ...] = (
    BackendMissingError,
    BuildRejectedError,
    EngineFailedError,
    EngineOutOfMemoryError,
    EngineTimeoutError,
    ModelError,
    SettingsError,
    StorageError,
)


def failure_of(error: BaseException) -> GptuneError:
    """An error of ours as it is, or running out of memory; anything else: the engine failed."""
    if isinstance(error, MemoryError):
        return EngineOutOfMemoryError(f"the host's memory ran out: {_one_line(error) or 'MemoryError'}")
    if isinstance(error, (EngineFailedError, BuildRejectedError)) and _OUT_OF_MEMORY.search(error.what):
        return EngineOutOfMemoryError(error.what, where=error.where, log=error.log)
    if isinstance(error, GptuneError):
        return error
    text = f"{type(error).__name__}: {_one_line(error)}"
    if _OUT_OF_MEMORY.search(text):
        return EngineOutOfMemoryError(text)
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    return EngineFailedError(f"the backend raised {text}", where=where)


def failure_to_plain(error: GptuneError) -> dict[str, Any]:
    """An error of ours as built-in types."""
    return {
        "type": next((cls.__name__ for cls in _CROSSING if type(error) is cls), EngineFailedError.__name__),
        "what": error.what,
        "where": error.where,
        "mend": error.mend,
        "log": list(error.log),
    }


def failure_from_plain(plain: Mapping[str, Any], log: tuple[str, ...] = ()) -> GptuneError:
    """The inverse of ``failure_to_plain``; ``log`` is what the worker wrote meanwhile."""
    cls = next((c for c in _CROSSING if c.__name__ == plain["type"]), EngineFailedError)
    return cls(plain["what"], where=plain["where"], mend=plain["mend"], log=tuple(plain["log"]) or log)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
