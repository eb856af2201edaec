"""``--gptune-route-timeout`` and its ini key: seconds above 0, with an end."""

from __future__ import annotations

import pytest
from projects import CHECK, Project


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
@pytest.mark.parametrize("place", ["--gptune-route-timeout", "ini gptune_route_timeout"])
def test_a_time_that_cannot_be_is_refused_before_anything_runs(
    project: Project, place: str, seconds: str
) -> None:
    project.tests(CHECK)
    if place.startswith("ini"):
        project.ini(gptune_route_timeout=seconds)
        result = project.run()
    else:
        result = project.run(f"{place}={seconds}")

    assert result.ret == 4
    assert result.errlines[:3] == [
        f"ERROR: route_timeout is {seconds}",
        f"  in: {place}",
        "  do: give seconds above 0, or leave it out for 3600",
    ]


def test_a_time_that_can_be(project: Project) -> None:
    project.tests(CHECK)
    project.ini(gptune_route_timeout=0.5)

    project.run("--gptune-route-timeout=60").assert_outcomes(passed=1, skipped=1)
