"""The options of the backend are checked before anything is built."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gptune.engines.base import ShapeRange
from pytest_gptune.engines.tensorrt.options import Options, parse_options
from pytest_gptune.errors import SettingsError


def test_nothing_given_is_the_defaults() -> None:
    assert parse_options("tensorrt", {}) == Options()


def test_values_are_taken() -> None:
    given = {
        "device": 1,
        "workspace_mib": 512,
        "plugins": ["a.so"],
        "strongly_typed": True,
        "compute_capabilities": ["8.9"],
        "shape_values": {"size": [1, 2], "other": {"min": [1], "opt": [2], "max": [3]}},
    }
    assert parse_options("tensorrt", given) == Options(
        device="1",
        workspace_mib=512,
        plugins=("a.so",),
        strongly_typed=True,
        compute_capabilities=("8.9",),
        shape_values={"size": ShapeRange.fixed((1, 2)), "other": ShapeRange((1,), (2,), (3,))},
    )


@pytest.mark.parametrize(
    ("options", "what", "mend"),
    [
        ({"workspace": 1}, "backend 'tensorrt' has no option 'workspace'", "write 'workspace_mib'"),
        ({"qqq": 1}, "has no option 'qqq'", "use one of: device, "),
        ({"device": True}, "option 'device' is True", "index or the UUID"),
        ({"device": ""}, "option 'device' is ''", "index or the UUID"),
        ({"workspace_mib": 0}, "option 'workspace_mib' is 0", "at least 1"),
        ({"workspace_mib": 1.5}, "option 'workspace_mib' is 1.5", "at least 1"),
        ({"plugins": "a.so"}, "option 'plugins' is 'a.so'", "a list of paths"),
        ({"timing_cache": 1}, "option 'timing_cache' is 1", "True or False"),
        ({"cuda_graph": None}, "option 'cuda_graph' is None", "True or False"),
        ({"compute_capabilities": [8.9]}, "option 'compute_capabilities' is [8.9]", "['8.9', '12.0']"),
        ({"shape_values": 3}, "option 'shape_values' is 3", "give values as"),
        ({"shape_values": {"x": {"min": [1]}}}, "option 'shape_values' is", "give values as"),
        ({"shape_values": {"x": ["a"]}}, "option 'shape_values' is", "give values as"),
    ],
)
def test_a_mistake_is_named(options: dict[str, Any], what: str, mend: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_options("tensorrt", options)
    assert what in caught.value.what
    assert mend in caught.value.mend
