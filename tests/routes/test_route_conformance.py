"""The expansion agrees with what was recorded from the reference, except where it differs on purpose."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from pytest_gptune.routes import KnobSpace, RouteError, RouteExpression, RouteSequence

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "route_expansion.json").read_text(encoding="utf-8")
)
SPACE = KnobSpace.from_json(json.dumps(RECORDED["knobs"]))

TWICE = "-copy_ppg=[on|off] -copy_ppg=off"
TAB = "-copy_ppg=[on|off]\t-slice_fusion=[on|off]"
COMMON = [case for case in RECORDED["cases"] if case["expression"] not in (TWICE, TAB)]
GOOD = [case for case in COMMON if "error" not in case]
BAD = [case for case in COMMON if "error" in case]

# What a message has to name, by expression.
NAMED = {
    "-example:limit=int32_t": ["'int32_t' at character 16", "-example:limit=16"],
    "-example:range=[0|1]": ["-example:range", "'[0|1]' at character 16"],
    "-copy_ppg=[on|...]": ["'...' at character 15", "on, off"],
    "-copy_ppg=[on|on]": ["'on'", "at character 12 and at character 15"],
    "-copy_ppg=maybe": ["'maybe' at character 11", "on, off"],
    "-copy_ppg=[]": ["'[]'", "at character 11", "-copy_ppg=[on|off]"],
    "-copy_ppg": ["'-copy_ppg' at character 1", "-copy_ppg=[on|off]"],
    "copy_ppg=[on|off]": ["unknown knob 'copy_ppg' at character 1", "write -copy_ppg, with its leading dash"],
    "": ["empty", "-conv_use_long_w=[on|off]"],
    "   ": ["empty", "-conv_use_long_w=[on|off]"],
    "-copy_ppg=on|off]": ["'on|off]' at character 11", "on, off"],
    "-copy_ppg=x[on|off]": ["'x' at character 11", "'-copy_ppg=x[on|off]'"],
    "-copy_ppg=[[on|off]]": ["'[' at character 11", "'-copy_ppg=[[on|off]]'"],
    "-copy_ppg=ON": ["'ON' at character 11", "write on, the nearest of on, off"],
}


def expand(case: dict[str, Any]) -> RouteSequence:
    expression = RouteExpression.parse(case["expression"], SPACE)
    # The first phase of the reference's mixed search is its fast search.
    return expression.full() if case["search"] == "full" else expression.fast()


@pytest.mark.parametrize("case", GOOD, ids=lambda case: f"{case['search']}-{case['expression'][:50]}")
def test_routes_are_those_of_the_reference(case: dict[str, Any]) -> None:
    routes = expand(case)
    assert [str(route) for route in islice(routes, 64)] == case["routes"]
    assert [str(routes[i]) for i in range(len(case["routes"]))] == case["routes"]
    assert routes.count == int(case["count"])


@pytest.mark.parametrize("case", BAD, ids=lambda case: f"{case['search']}-{case['expression'][:50]}")
def test_what_the_reference_refuses_is_refused_by_name(case: dict[str, Any]) -> None:
    with pytest.raises(RouteError) as caught:
        expand(case)
    for part in NAMED[case["expression"]]:
        assert part in str(caught.value)
    assert caught.value.mend


def test_the_recording_is_whole() -> None:
    assert len(GOOD) == 30
    assert {case["expression"] for case in BAD} == set(NAMED)
    assert {case["expression"] for case in RECORDED["cases"]} >= {TWICE, TAB}


def test_a_knob_named_twice_is_an_error_that_names_both_places() -> None:
    with pytest.raises(RouteError, match="'-copy_ppg' is named twice, at character 1 and at character 20"):
        RouteExpression.parse(TWICE, SPACE)


def test_a_tab_separates() -> None:
    expression = RouteExpression.parse(TAB, SPACE)
    assert str(expression) == TAB.replace("\t", " ")
    assert expression.full().count == 4


def test_the_whole_space_has_the_recorded_default_route() -> None:
    route = " ".join(f"{knob.name}={knob.default}" for knob in SPACE)
    assert route == RECORDED["default_route"]
    assert str(RouteExpression.parse(route, SPACE).default) == route
