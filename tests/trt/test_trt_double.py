"""The double of TensorRT is no wider than the interface of the real bindings."""

from __future__ import annotations

import enum
import inspect
import re
import sys
from typing import Any

import pytest
from recorded import Recorded

from pytest_gptune.engines.tensorrt import TensorRtBackend
from pytest_gptune.engines.tensorrt.library import features_of

# What it defines beside classes: functions of the module, and what it imports.
BESIDE = {"init_libnvinfer_plugins", "annotations", "enum", "json", "os", "time", "Path", "onnx"}


@pytest.fixture
def module(double: TensorRtBackend) -> Any:
    return double._trt


def public(names: Any) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def test_it_has_no_class_that_the_real_one_lacks(module: Any) -> None:
    recorded = Recorded("11.1")
    assert module.__version__ == recorded.version
    assert public(vars(module)) - BESIDE <= set(recorded.members)


def test_it_has_no_member_that_the_real_one_lacks(module: Any) -> None:
    recorded = Recorded("11.1")
    for name, cls in vars(module).items():
        if name not in recorded.members or not inspect.isclass(cls):
            continue
        if issubclass(cls, enum.Enum):
            assert set(cls.__members__) <= set(recorded.enums[name]), name
        else:
            source = inspect.getsource(cls.__init__) if "__init__" in vars(cls) else ""
            assigned = {
                word.strip().removeprefix("self.").split(" ")[0].rstrip(",")
                for line in source.splitlines()
                if line.strip().startswith("self.")
                for word in line.split(" = ")[0].split(", ")
            }
            assert public(vars(cls)) | public(assigned) <= recorded.members[name], name


def test_it_is_the_version_it_says(module: Any) -> None:
    ours, theirs = features_of(module), features_of(Recorded("11.1").skeleton)
    assert ours == theirs


def test_it_is_not_left_behind(double: TensorRtBackend) -> None:
    assert double._trt is sys.modules["tensorrt"]


def test_nothing_of_it_is_there_afterwards() -> None:
    assert "double" not in getattr(sys.modules.get("tensorrt"), "__file__", "")


def real_parameters(function: Any) -> list[str] | None:
    """Names of the parameters that the real bindings document; None for one that is overloaded."""
    head = (function.__doc__ or "").strip().splitlines()[0] if function.__doc__ else ""
    match = re.fullmatch(r"\w+\((.*)\) -> .*", head)
    if match is None or match[1].startswith("*args"):
        return None
    # Types may have commas of their own, in brackets.
    parameters = re.sub(r"\[[^\]]*\]+", "", match[1])
    return [parameter.split(":")[0].strip() for parameter in parameters.split(",")]


def test_its_methods_take_what_the_real_ones_take(module: Any) -> None:
    rtx = pytest.importorskip("tensorrt_rtx", reason="TensorRT RTX is not installed", exc_type=ImportError)
    compared, differing = 0, {}
    for name, cls in vars(module).items():
        if not inspect.isclass(cls) or issubclass(cls, enum.Enum) or not hasattr(rtx, name):
            continue
        for member, function in vars(cls).items():
            if member.startswith("_") or not inspect.isfunction(function):
                continue
            real = real_parameters(getattr(getattr(rtx, name), member))
            if real is not None:
                compared += 1
                ours = list(inspect.signature(function).parameters)
                if ours != real:
                    differing[f"{name}.{member}"] = ours, real
    assert differing == {}
    assert compared > 35
