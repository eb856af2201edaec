"""The backend's own options, from the marker's ``options``."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_gptune.engines.base import ShapeRange
from pytest_gptune.errors import SettingsError

WHERE = "options={...} of the marker"


@dataclass(frozen=True)
class Options:
    """Options of a TensorRT backend.

    Attributes:
        device: index or UUID of the GPU.
        workspace_mib: the most scratch memory a layer may use, in MiB; None leaves it to TensorRT.
        device_memory_mib: the most memory that an engine and its context may need, in MiB.
        plugins: paths of plugin libraries.
        timing_cache: whether the routes of a search share what the builder measured.
        strongly_typed: whether the network's own types hold; None: as the version's default is.
        compute_capabilities: what to build for, as ``8.9``, where no GPU is needed; empty: the GPU here.
        shape_values: for inputs that hold a shape, the values they may take.
        cuda_graph: whether runs are captured.
        l2_flush: whether the L2 cache is emptied before each sample.
        transfers: whether the copies of inputs and outputs are timed as well.
    """

    device: str = "0"
    workspace_mib: int | None = None
    device_memory_mib: int | None = None
    plugins: tuple[str, ...] = ()
    timing_cache: bool = True
    strongly_typed: bool | None = None
    compute_capabilities: tuple[str, ...] = ()
    shape_values: Mapping[str, ShapeRange] = field(default_factory=dict)
    cuda_graph: bool = True
    l2_flush: bool = False
    transfers: bool = False


def parse_options(backend: str, given: Mapping[str, Any]) -> Options:
    """The options that were given, checked.

    Raises:
        SettingsError: there is no such option, or its value is of the wrong kind.
    """
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _READERS:
            near = difflib.get_close_matches(name, _READERS, n=1)
            raise SettingsError(
                f"backend '{backend}' has no option '{name}'",
                where=WHERE,
                mend=f"write '{near[0]}'" if near else f"use one of: {', '.join(_READERS)}",
            )
        read, wanted = _READERS[name]
        try:
            values[name] = read(value)
        except (TypeError, ValueError):
            raise SettingsError(f"option '{name}' is {value!r}", where=WHERE, mend=f"give {wanted}") from None
    return Options(**values)


def _device(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, str)) or value == "":
        raise ValueError
    return str(value)


def _mebibytes(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(text, str) and text for text in value):
        raise ValueError
    return tuple(value)


def _shape_values(value: Any) -> dict[str, ShapeRange]:
    found = {}
    for name, profile in dict(value).items():
        given: Mapping[str, Any] = (
            profile if isinstance(profile, Mapping) else {"min": profile, "opt": profile, "max": profile}
        )
        found[name] = ShapeRange(**{which: tuple(int(n) for n in values) for which, values in given.items()})
    return found


_SWITCH = "True or False"
_SIZE = "a whole number of MiB, at least 1"
_READERS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "device": (_device, "the index or the UUID of a GPU, as 0 or 'GPU-4a1b...'"),
    "workspace_mib": (_mebibytes, _SIZE),
    "device_memory_mib": (_mebibytes, _SIZE),
    "plugins": (_texts, "a list of paths of plugin libraries"),
    "timing_cache": (_flag, _SWITCH),
    "strongly_typed": (_flag, _SWITCH),
    "compute_capabilities": (_texts, "a list as ['8.9', '12.0']"),
    "shape_values": (_shape_values, "values as {'size': {'min': [1, 8], 'opt': [1, 64], 'max': [4, 128]}}"),
    "cuda_graph": (_flag, _SWITCH),
    "l2_flush": (_flag, _SWITCH),
    "transfers": (_flag, _SWITCH),
}
