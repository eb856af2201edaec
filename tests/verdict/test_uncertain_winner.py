"""A route that is faster, but not for certain, does not win over the one that is preferred."""

from __future__ import annotations

import pytest
from verdict_project import SteadyProject

# Of the default: 180 us in half of the builds, and 4 % more or less in the others, without an end.
FIVE = ("--gptune-search=fast", "--override-ini=gptune_final_builds=5")
NOISY = [1.04, 0.96, 1.0, 1.05, 0.95, 1.0, 1.03, 0.97]


def latency_of(run: object, route: str) -> dict[str, object]:
    (found,) = [r for r in run.test["routes"] if r["id"] == route]  # type: ignore[attr-defined]
    latency: dict[str, object] = found["latency"]
    return latency


def test_the_default_is_kept_and_the_reader_is_told(steady: SteadyProject) -> None:
    """Two percent faster in the middle; single builds differ by ten."""
    steady.set(latency_us={"-first=on": 176.4}, builds={"-first=on": NOISY})

    run = steady.run(*FIVE)

    assert run.test["winner"] == "default"
    assert set(run.test["co_winners"]) >= {"default", "first=on"}
    assert "but not for certain" in run.text
    assert "default is preferred" in run.text
    # Both were built more often than the five times of the plan, before it was given up.
    assert latency_of(run, "first=on")["builds"] == 11
    assert latency_of(run, "default")["builds"] == 11
    assert latency_of(run, "second=on")["builds"] == 5
    assert latency_of(run, "first=on")["stop_reason"] == "most_builds"


def test_what_further_builds_make_certain_wins(steady: SteadyProject) -> None:
    """Five pairs with one that is spoilt say nothing for certain; eight do."""
    spoilt = [1.0, 1.0, 1.0, 1.25, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    steady.set(latency_us={"-first=on": 172}, builds={"-first=on": spoilt})

    run = steady.run(*FIVE)

    assert run.test["winner"] == "first=on"
    assert "not for certain" not in run.text
    assert latency_of(run, "first=on")["builds"] in (8, 11)
    assert latency_of(run, "first=on")["stop_reason"] == "decided"


def test_a_clear_winner_costs_no_further_builds(steady: SteadyProject) -> None:
    steady.set(latency_us={"-first=on": 172})

    run = steady.run(*FIVE)

    assert run.test["winner"] == "first=on"
    assert latency_of(run, "first=on")["builds"] == 5


def test_of_two_that_are_close_the_one_that_does_not_wait_for_the_host_wins(
    steady: SteadyProject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The host's pace is another one on another day, and so is what seems to be a gain."""
    cache = f"--gptune-cache={tmp_path_factory.mktemp('cache') / 'tune.jsonl'}"
    steady.set(
        latency_us={"": 180, "-first=on": 150, "-second=on": 153},
        builds={"-first=on": NOISY},
        enqueue_share={"": 1.0, "-first=on": 0.97, "-second=on": 0.2},
    )

    run = steady.run(*FIVE, cache)

    assert run.test["winner"] == "second=on"
    assert run.test["co_winners"] == ["first=on", "second=on"]
    assert "second=on is preferred, which does not wait for the host" in run.text
    again = steady.run(*FIVE, cache, "--gptune-continue")
    assert "of builds are of an earlier run" in again.text
    assert again.test["winner"] == "second=on"


@pytest.mark.parametrize("builds", [1, 2])
def test_few_builds_are_taken_at_their_word(steady: SteadyProject, builds: int) -> None:
    """One build has no interval; of two that agree it is narrow."""
    steady.set(latency_us={"-first=on": 150}, builds={"": [1.0], "-first=on": [1.0]})

    run = steady.run("--gptune-search=fast", f"--override-ini=gptune_final_builds={builds}")

    assert run.test["winner"] == "first=on"
    assert latency_of(run, "first=on")["builds"] == builds
