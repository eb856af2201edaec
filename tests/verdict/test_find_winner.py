"""The choice of a winner over builds that are drawn, prolonged as a tuning prolongs its finals."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, cast

import pytest
from verdict_records import spec

from pytest_gptune.plugin.contest import Contest
from pytest_gptune.plugin.winner import Choice, find_winner, with_finals
from pytest_gptune.records.route_record import RouteRecord
from pytest_gptune.reports.tuning_report import TuningReport
from pytest_gptune.timing.finals import FinalsResult
from pytest_gptune.verdict import Verdict

BUILDS, STEP = 5, 3


class Drawn:
    """A contest whose builds differ at random: by 3 %, as on a shared machine, unless told otherwise."""

    def __init__(self, latency: Mapping[str, float], seed: int, spread: float = 0.03) -> None:
        self.result = FinalsResult()
        self.prolonged: list[tuple[str, ...]] = []
        self._latency, self._spread, self._rng = latency, spread, random.Random(seed)
        self._build(tuple(latency), BUILDS)

    def prolong(self, keys: tuple[str, ...]) -> None:
        self.prolonged.append(keys)
        self._build(keys, STEP)

    def standing(self, key: str) -> bool:
        return self.result.builds(key) > 0

    def _build(self, keys: tuple[str, ...], builds: int) -> None:
        for key in keys:
            for _ in range(builds):
                value = self._latency[key] * self._rng.lognormvariate(0.0, self._spread)
                self.result.blocks.setdefault(key, []).append([[value] * 4])


def choice(
    contest: Drawn, at_hosts_pace: frozenset[str] = frozenset(), baseline: str | None = None
) -> Choice:
    records = tuple(
        RouteRecord(key or "default", key, key, key.count("=") or 0, "passed")
        for key in contest.result.blocks
    )
    plain = cast(Any, contest)
    report = TuningReport(spec(), records, Verdict("incomparable", "partial_run"))
    report = with_finals(report, cast(Contest, plain))
    return find_winner(report, cast(Contest, plain), baseline, at_hosts_pace)[1]


@pytest.mark.parametrize(("spread", "others", "wins"), [(0.01, 3, 0.05), (0.03, 1, 0.05), (0.03, 3, 0.09)])
def test_equal_routes_seldom_win_by_luck(spread: float, others: int, wins: float) -> None:
    """By one look at most 5 %. There are three, of which docs/how-it-decides.md tells with these figures."""
    latency = {"": 1.0, **{f"k{n}=on": 1.0 for n in range(others)}}
    drawn = (Drawn(latency, seed, spread) for seed in range(800))
    assert sum(choice(contest).winner != "" for contest in drawn) / 800 == pytest.approx(wins, abs=0.005)


def test_a_gain_beyond_what_builds_differ_by_wins_nearly_always() -> None:
    latency = {"": 1.0, "k0=on": 0.9, "k1=on": 1.0, "k2=on": 1.0}
    won = sum(choice(Drawn(latency, seed)).winner == "k0=on" for seed in range(200)) / 200
    assert won > 0.95, won


def test_the_default_is_preferred_for_no_other_reason() -> None:
    for seed in range(100):
        found = choice(Drawn({"": 1.02, "k0=on": 1.0}, seed), frozenset({"k0=on"}))
        if found.winner == "" and found.notes:
            assert found.notes[0].endswith("default is preferred")
            return
    pytest.fail("none was in doubt")


def test_what_is_close_by_its_ratio_to_the_default_is_in_no_doubt() -> None:
    """Ratios of pairs of builds are not transitive: the direct one of such routes may be beyond 1 %."""
    latency = {"": 1.5, "k0=on": 1.0, "k0=on k1=on": 1.0}
    for seed in range(300):
        contest = Drawn(latency, seed, 0.02)
        found = choice(contest)
        assert (found.notes, contest.prolonged) == ((), [])


def test_one_that_does_not_wait_for_the_host_is_preferred_and_the_reader_is_told() -> None:
    latency = {"": 2.0, "host=on": 1.0, "graph=on": 1.02}
    told = 0
    for seed in range(50):
        found = choice(Drawn(latency, seed), frozenset({"", "host=on"}))
        assert (found.winner == "graph=on") == ("graph=on" in found.close)
        if found.winner == "graph=on" and found.notes:
            assert found.close[0] == "host=on"
            assert found.notes[0].endswith("graph=on is preferred, which does not wait for the host")
            told += 1
    assert told > 10
