"""Runs in which no route can win, and the reasons that they tell."""

from __future__ import annotations

import re

import pytest
from verdict_project import SteadyProject


@pytest.mark.parametrize("search", ["replay", "fast"])
def test_the_first_reason_is_told_where_no_second_build_is_accurate(
    steady: SteadyProject, search: str
) -> None:
    """As with models whose outputs are random: the losses of the first builds explain nothing."""
    steady.record("baseline.json").unlink()
    routes = ("", "-first=on", "-second=on")
    steady.set(moved_from_build=dict.fromkeys(routes, 1), moved=dict.fromkeys(routes, 1.0))
    run = steady.run(f"--gptune-search={search}")
    assert (run.code, run.said) == (1, ("fail", "no_route_passes"))
    first = re.fullmatch(
        r"no route passed when built again; (\S+): built again, it is inaccurate: (.+)",
        run.verdict["message"],
    )
    assert first is not None
    errors = {route["id"]: route["error"] for route in run.test["routes"]}
    assert errors[first[1]] == f"built again, it is inaccurate: {first[2]}"
    assert "lInf 1e+00 > epsilon 1e-03" in first[2]


def test_every_route_is_rejected(steady: SteadyProject) -> None:
    steady.record("baseline.json").unlink()
    steady.set(rejected=["18"])
    run = steady.run("--gptune-search=full")
    assert (run.code, run.said) == (1, ("fail", "every_route_failed"))
    assert run.outcomes == {"failed": 1, "xfailed": 4}
    assert "default: rejected: steady refuses ''" in run.text


def test_every_route_crashes(steady: SteadyProject) -> None:
    steady.record("baseline.json").unlink()
    steady.set(crashed=["18"])
    run = steady.run("--gptune-search=full")
    assert (run.code, run.said) == (1, ("fail", "every_route_failed"))
    assert "steady gave up" in run.text


def test_one_of_several_is_rejected(steady: SteadyProject) -> None:
    steady.set(rejected=["-first=on"])
    run = steady.run("--gptune-search=full")
    assert (run.code, run.said) == (0, ("pass", "unchanged"))
    assert run.statuses["first=on"] == "rejected"
