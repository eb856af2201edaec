"""The TensorRT that is installed, under either of its modules, and what that version of it has.

The two modules and their versions are told apart by what they have, never by their names: a name says nothing
about a later version.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from dataclasses import dataclass
from typing import Any

from pytest_gptune.engines.base import BackendMissingError

_EXTRAS = {"tensorrt": "tensorrt", "tensorrt_rtx": "rtx"}


@dataclass(frozen=True)
class Features:
    """What a version of TensorRT has.

    Attributes:
        version: of the library, as ``11.1.0.106``.
        build_routes: ``IBuilderConfig.build_route`` and ``all_build_routes``, from 11.1.
        weak_types: networks whose precisions the builder may choose, and the flags that allow them; gone
            with 11.0.
        just_in_time: kernels are chosen when an engine is loaded, so that a plan holds no measurement and
            there is nothing for a timing cache to keep.
        context_bytes: the attribute of an engine that tells what its context takes of the device's memory.
        tells_weights: whether an engine tells what its weights take.
        targets: compute capabilities that engines can be built for without a GPU, as ``12.0``; empty where
            the builder needs one.
    """

    version: str
    build_routes: bool
    weak_types: bool
    just_in_time: bool
    context_bytes: str
    tells_weights: bool
    targets: tuple[str, ...]


def import_library(name: str) -> Any:
    """The module called ``name``.

    Raises:
        BackendMissingError: it is not installed, or its libraries cannot be loaded.
    """
    mend = install_command(name)
    if importlib.util.find_spec(name) is None:
        raise BackendMissingError(f"backend '{name}' is not installed", mend=mend)
    try:
        return importlib.import_module(name)
    except Exception as error:  # an import runs code of the package, which loads libraries by itself
        raise BackendMissingError(
            f"module '{name}' cannot be imported: {' '.join(str(error).split()) or type(error).__name__}",
            mend=f"{mend}; its libraries have to be of the version of its module",
        ) from error


def install_command(name: str) -> str:
    """What installs the module called ``name`` and all that engines need to run."""
    return f'python -m pip install "pytest-gptune[{_EXTRAS.get(name, name)}]"'


def features_of(trt: Any) -> Features:
    """What the module has, found out by looking."""
    members = getattr(getattr(trt, "ComputeCapability", None), "__members__", {})
    found = [re.fullmatch(r"SM(\d+)(\d)", member) for member in members]
    return Features(
        version=str(trt.__version__),
        build_routes=hasattr(trt.IBuilderConfig, "build_route"),
        weak_types=hasattr(trt.BuilderFlag, "FP16"),
        just_in_time=hasattr(trt, "IRuntimeCache"),
        # Before 10.1 it had another name; 11.0 took that away.
        context_bytes="device_memory_size_v2"
        if hasattr(trt.ICudaEngine, "device_memory_size_v2")
        else "device_memory_size",
        tells_weights=hasattr(trt, "EngineStat"),
        targets=tuple(f"{match[1]}.{match[2]}" for match in found if match)
        if hasattr(trt.IBuilderConfig, "set_compute_capability")
        else (),
    )
