"""The rules of verdicts: which route wins, which gate applies, what an interval means."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from verdict_records import change, entry, finals, ratio

from pytest_gptune.plugin.options import GATE_CHOICES
from pytest_gptune.records.baseline import BaselineEntry
from pytest_gptune.timing.statistics import Ratio
from pytest_gptune.verdict import (
    ABSOLUTE_EXTRA_LIMIT,
    CO_WINNER,
    GATES,
    TAIL_FACTORS,
    choose_gate,
    choose_winner,
    confidence_among,
    judge,
    judge_tail,
    relative_ratio,
)
from pytest_gptune.verdict import absolute_ratio as rule_of_the_absolute_gate

LATENCY = st.floats(1e-6, 1e3)
WOBBLES = st.lists(st.floats(0.9, 1.1), min_size=2, max_size=6)
# Powers of two scale every float exactly, so that no rounding can stand at a limit.
FACTOR = st.integers(-20, 20).map(lambda exponent: 2.0**exponent)


def winner_of(latency: dict[str, float], baseline: str | None = None, **knobs: int) -> str:
    passing = {route: knobs.get(route, 0 if route == "default" else 1) for route in latency}
    return choose_winner(finals(latency), passing, baseline_route=baseline)[0]


class TestWinner:
    def test_the_fastest_wins(self) -> None:
        assert winner_of({"default": 1.0, "a": 0.9, "b": 0.8}) == "b"

    def test_within_one_percent_the_default_is_preferred(self) -> None:
        assert winner_of({"default": 1.009, "a": 1.0}) == "default"
        assert winner_of({"default": 1.011, "a": 1.0}) == "a"

    def test_within_one_percent_the_baseline_is_preferred_to_the_default(self) -> None:
        assert winner_of({"default": 1.0, "a": 1.009, "b": 1.005}, baseline="a") == "a"

    def test_a_baseline_that_is_not_close_has_no_privilege(self) -> None:
        assert winner_of({"default": 1.0, "a": 1.02}, baseline="a") == "default"

    def test_a_baseline_that_did_not_pass_has_no_privilege(self) -> None:
        assert winner_of({"default": 1.0, "b": 0.995}, baseline="a") == "default"

    def test_fewer_knobs_are_preferred_to_a_better_latency(self) -> None:
        assert winner_of({"default": 2.0, "a": 1.0, "b": 1.009}, a=3, b=1) == "b"

    def test_of_equally_many_knobs_the_faster_wins(self) -> None:
        assert winner_of({"default": 2.0, "a": 1.001, "b": 1.0}) == "b"

    def test_the_default_is_preferred_to_a_route_with_as_few_knobs(self) -> None:
        """Fixed knobs are knobs of the default as well."""
        latency = {"fixed": 1.005, "a": 1.0}
        chosen, _ = choose_winner(
            finals(latency), {"fixed": 1, "a": 1}, baseline_route=None, default_route="fixed"
        )
        assert chosen == "fixed"

    def test_co_winners_are_those_within_one_percent_fastest_first(self) -> None:
        latency = {"default": 1.02, "a": 1.008, "b": 1.0, "c": 1.0101}
        winner, close = choose_winner(
            finals(latency), {"default": 0, "a": 1, "b": 2, "c": 1}, baseline_route=None
        )
        assert (winner, close) == ("a", ("b", "a"))

    def test_what_is_not_slower_for_certain_is_a_co_winner(self) -> None:
        """Builds of the default are 2 % slower in the middle, and 8 % apart."""
        latency = {"": 1.02, "a": 1.0}
        noisy = finals(latency, [0.96, 0.98, 1.0, 1.02, 1.04])
        assert choose_winner(noisy, {"": 0, "a": 1}, baseline_route=None) == ("", ("a", ""))
        steady = finals(latency, [0.998, 0.999, 1.0, 1.001, 1.002])
        assert choose_winner(steady, {"": 0, "a": 1}, baseline_route=None) == ("a", ("a",))

    def test_doubt_makes_no_winner_of_fewer_knobs(self) -> None:
        """The noisy one has fewer knobs and is slower than the default, which is surely slower than a."""
        measured = finals({"b": 1.06, "": 1.05, "a": 1.0}, [0.85, 0.95, 1.0, 1.05, 1.15])
        winner, close = choose_winner(measured, {"": 0, "a": 3, "b": 1}, baseline_route=None)
        assert (winner, close) == ("a", ("a", "b"))
        assert choose_winner(measured, {"": 0, "a": 3, "b": 1}, baseline_route="b")[0] == "b"

    def test_the_fastest_of_more_routes_has_to_be_surer(self) -> None:
        """Of nine equal routes one is as fast as that by luck more often than of two."""
        measured = finals({"": 1.02, **dict.fromkeys("abcdefgh", 1.0)}, [0.9830, 0.9905, 1.0, 1.0095, 1.0170])
        assert 1.0 < measured.ratio("", "a").low < 1.003
        assert choose_winner(measured, {"": 0, "a": 1}, baseline_route=None)[0] == "a"
        assert choose_winner(measured, {"": 0, "a": 1, "b": 1}, baseline_route=None)[0] == "a"
        several = {"": 0, **dict.fromkeys("abcdefgh", 1)}
        assert choose_winner(measured, several, baseline_route=None)[0] == ""

    def test_the_chance_that_any_of_them_is_faster_by_luck_stays_the_same(self) -> None:
        assert [round(confidence_among(routes), 3) for routes in (1, 2, 3, 4, 5, 11)] == [
            0.95,
            0.95,
            0.95,
            0.967,
            0.975,
            0.99,
        ]

    def test_of_co_winners_one_that_does_not_wait_for_the_host_wins(self) -> None:
        wobbles = [0.9, 0.95, 1.0, 1.05, 1.1]
        measured = finals({"host": 1.04, "": 1.6, "graph": 1.1, "other": 1.105}, wobbles)
        knobs = {"": 0, "host": 1, "graph": 3, "other": 2}

        def winner(waiting: set[str], baseline: str | None = None) -> str:
            return choose_winner(measured, knobs, baseline_route=baseline, at_hosts_pace=waiting)[0]

        assert winner(set()) == "host"
        assert winner({"", "host"}) == "other"  # within 1 % of the fastest such, with fewer knobs
        assert winner({"", "host"}, baseline="host") == "host"
        assert winner({"", "host", "graph", "other"}) == "host"

    def test_what_does_not_wait_for_the_host_but_is_surely_slower_does_not_win(self) -> None:
        measured = finals({"host": 1.0, "": 1.6, "graph": 1.1}, [0.99, 1.0, 1.01])
        winner, close = choose_winner(
            measured, {"": 0, "host": 1, "graph": 1}, baseline_route=None, at_hosts_pace={"", "host"}
        )
        assert (winner, close) == ("host", ("host",))

    @given(st.floats(0.8, 1.3), WOBBLES)
    def test_the_default_loses_to_nothing_but_certainty(self, value: float, wobbles: list[float]) -> None:
        measured = finals({"": value, "a": 1.0}, wobbles)
        winner, _ = choose_winner(measured, {"": 0, "a": 1}, baseline_route=None)
        ratio = measured.ratio("", "a")
        assert (winner == "a") == (ratio.value > CO_WINNER and ratio.low > 1.0)

    @given(
        st.dictionaries(st.sampled_from("abcdefgh"), LATENCY, min_size=1), st.sampled_from([*"abch", None])
    )
    def test_the_winner_is_a_co_winner_and_nothing_is_more_than_one_percent_faster(
        self, latency: dict[str, float], baseline: str | None
    ) -> None:
        winner, close = choose_winner(finals(latency), dict.fromkeys(latency, 1), baseline_route=baseline)
        fastest = min(latency.values())
        assert winner in close
        assert set(close) == {route for route, value in latency.items() if value <= fastest * CO_WINNER}
        assert list(close) == sorted(close, key=lambda route: latency[route])
        assert winner == baseline or baseline not in close

    @given(st.dictionaries(st.sampled_from("abcdefgh"), LATENCY, min_size=1), FACTOR)
    def test_another_unit_of_time_changes_nothing(self, latency: dict[str, float], factor: float) -> None:
        knobs = {route: index for index, route in enumerate(latency)}
        scaled = {route: value * factor for route, value in latency.items()}
        assert choose_winner(finals(latency), knobs, baseline_route="a") == choose_winner(
            finals(scaled), knobs, baseline_route="a"
        )

    @given(st.permutations("abcdef"))
    def test_the_order_of_routes_does_not_matter(self, order: list[str]) -> None:
        latency = {"a": 1.0, "b": 1.005, "c": 1.009, "d": 1.02, "e": 0.999, "f": 3.0}
        knobs = {"a": 3, "b": 1, "c": 2, "d": 0, "e": 4, "f": 0}
        shuffled = {route: knobs[route] for route in order}
        assert choose_winner(finals(latency), shuffled, baseline_route=None)[0] == "b"


class TestGate:
    @pytest.mark.parametrize("asked", [gate for gate in GATES if gate != "auto"])
    def test_a_gate_that_is_asked_for_is_taken(self, asked: str) -> None:
        for model, old_model in itertools.product([False, True], repeat=2):
            assert choose_gate(asked, change(model=model), old_model=old_model) == asked  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("changed", "old_model", "gate"),
        [
            ({}, False, "unchanged"),
            ({}, True, "unchanged"),
            ({"golden": True}, False, "unchanged"),
            ({"device": ("cpu: a -> b",)}, False, "unchanged"),
            ({"model": True}, True, "paired"),
            ({"model": True}, False, "absolute"),
            ({"route": True}, True, "paired"),
            ({"route": True}, False, "absolute"),
            ({"software": ("backend: 1 -> 2",)}, True, "absolute"),
            ({"defaults": True}, True, "absolute"),
            # The stack moves both engines of a pair: it says nothing of the model or the route.
            ({"software": ("backend: 1 -> 2",), "model": True}, True, "paired"),
            ({"software": ("backend: 1 -> 2",), "model": True}, False, "absolute"),
        ],
    )
    def test_what_auto_takes(self, changed: dict[str, object], old_model: bool, gate: str) -> None:
        assert choose_gate("auto", change(**changed), old_model=old_model) == gate

    def test_the_options_offer_every_gate(self) -> None:
        assert GATE_CHOICES == GATES

    def test_what_changed_is_said_a_line_each(self) -> None:
        everything = change(
            model=True,
            route=True,
            golden=True,
            defaults=True,
            software=("backend: 1 -> 2",),
            device=("cores: 2 -> 4",),
        )
        lines = everything.lines()
        assert [line.partition(":")[0] for line in lines] == [
            "model",
            "route",
            "golden",
            "defaults",
            "backend",
            "cores",
        ]
        assert change().lines() == ()


class TestJudge:
    @pytest.mark.parametrize(
        ("low", "high", "outcome"),
        [
            (0.9, 0.95, "pass"),
            (1.02, 1.03, "pass"),
            (1.02, 1.04, "ambiguous"),
            (1.03, 1.05, "ambiguous"),
            (1.0301, 1.05, "fail"),
            (0.0, math.inf, "ambiguous"),
        ],
    )
    def test_by_where_the_interval_lies(self, low: float, high: float, outcome: str) -> None:
        assert judge(ratio((low + high) / 2, low, high), 1.03) == outcome

    @given(LATENCY, WOBBLES, LATENCY, st.floats(0, 0.5), FACTOR)
    def test_another_unit_of_time_changes_nothing(
        self, latency: float, wobbles: list[float], other: float, limit: float, factor: float
    ) -> None:
        def judged(scale: float) -> str:
            result = finals({"a": latency * scale, "b": other * scale}, wobbles)
            return judge(result.ratio("a", "b"), 1 + limit)

        assert judged(1.0) == judged(factor)

    @given(st.floats(1.04, 3), st.floats(0, 0.005))
    def test_what_is_slower_beyond_noise_and_limit_fails(self, slower: float, wobble: float) -> None:
        result = finals({"a": slower, "b": 1.0}, [1 - wobble, 1 + wobble, 1.0, 1.0])
        assert judge(result.ratio("a", "b"), 1.03) == "fail"
        assert judge(result.ratio("b", "a"), 1.03) == "pass"


class TestTail:
    def test_nothing_is_no_tail(self) -> None:
        assert judge_tail({}, 0.03) == ""

    def test_each_statistic_has_its_own_limit(self) -> None:
        for statistic, factor in TAIL_FACTORS.items():
            limit = 1 + factor * 0.03
            assert judge_tail({statistic: ratio(limit, limit - 1e-3, limit + 0.1)}, 0.03) == ""
            assert judge_tail({statistic: ratio(limit + 0.1, limit + 1e-3, limit + 0.2)}, 0.03) == statistic

    def test_the_statistic_itself_is_no_tail(self) -> None:
        assert judge_tail({"p25": ratio(9.0, 9.0, 9.0)}, 0.03) == ""

    def test_noise_is_no_tail(self) -> None:
        assert judge_tail({"p95": ratio(3.0, 0.5, 9.0)}, 0.03) == ""


def absolute_ratio(latency_s: Sequence[float], then: BaselineEntry, calibration_s: float | None) -> Ratio:
    """With a calibration engine that takes the same time beside every build."""
    calibrations = [calibration_s] * len(latency_s) if calibration_s else None
    return rule_of_the_absolute_gate(latency_s, then, calibrations)


class TestAbsoluteRatio:
    then = entry(latency_s=1e-3, calibration_s=5e-5, between_build_spread=0.002, builds=4)

    def test_a_machine_that_is_slower_by_a_factor_is_scaled_away(self) -> None:
        result = absolute_ratio([1.2e-3, 1.2e-3], self.then, 6e-5)
        assert result.value == pytest.approx(1.0)

    def test_a_model_that_is_slower_is_not_scaled_away(self) -> None:
        assert absolute_ratio([1.2e-3, 1.2e-3], self.then, 5e-5).value == pytest.approx(1.2)

    @pytest.mark.parametrize("calibration_s", [None, 0.0])
    def test_without_calibration_nothing_is_scaled(self, calibration_s: float | None) -> None:
        assert absolute_ratio([1.2e-3, 1.2e-3], self.then, calibration_s).value == pytest.approx(1.2)
        bare = replace(self.then, calibration_s=calibration_s)
        assert absolute_ratio([1.2e-3, 1.2e-3], bare, 6e-5).value == pytest.approx(1.2)

    def test_the_interval_has_the_spread_of_both_runs(self) -> None:
        steady_here = absolute_ratio([1e-3] * 4, self.then, 5e-5)
        assert steady_here.low < 1 < steady_here.high
        wider = absolute_ratio([1e-3] * 4, replace(self.then, between_build_spread=0.02), 5e-5)
        assert wider.high - wider.low > 5 * (steady_here.high - steady_here.low)
        noisy_here = absolute_ratio([0.98e-3, 1.02e-3, 0.98e-3, 1.02e-3], self.then, 5e-5)
        assert noisy_here.high - noisy_here.low > 5 * (steady_here.high - steady_here.low)

    def test_a_baseline_of_one_build_is_taken_to_have_the_spread_of_this_run(self) -> None:
        single = replace(self.then, builds=1, between_build_spread=None)
        result = absolute_ratio([0.99e-3, 1.01e-3, 1e-3], single, 5e-5)
        known = absolute_ratio([0.99e-3, 1.01e-3, 1e-3], replace(self.then, between_build_spread=0.01), 5e-5)
        assert result.high - result.low > known.high - known.low

    def test_one_build_allows_no_statement(self) -> None:
        result = absolute_ratio([1.5e-3], self.then, 5e-5)
        assert (result.low, result.high, result.builds) == (0.0, math.inf, 1)
        assert judge(result, 1 + 0.03 + ABSOLUTE_EXTRA_LIMIT) == "ambiguous"

    def test_a_calibration_engine_that_varies_widens_the_interval(self) -> None:
        calm = rule_of_the_absolute_gate([1e-3] * 4, self.then, [5e-5] * 4)
        varied = rule_of_the_absolute_gate([1e-3] * 4, self.then, [4.5e-5, 5.5e-5, 4.5e-5, 5.5e-5])
        assert varied.high - varied.low > 10 * (calm.high - calm.low)

    def test_what_moves_a_build_and_its_calibration_alike_does_not_show(self) -> None:
        moved = rule_of_the_absolute_gate([1e-3, 2e-3, 1.5e-3], self.then, [5e-5, 1e-4, 7.5e-5])
        assert moved.value == pytest.approx(1.0)
        assert moved.high < 1.02

    @given(LATENCY, WOBBLES, st.floats(0.2, 5.0), FACTOR)
    def test_a_verdict_does_not_depend_on_the_speed_of_the_machine(
        self, latency: float, wobbles: list[float], slower: float, factor: float
    ) -> None:
        """The machine of this run is another ``factor`` times as slow, calibration engine included."""
        then = entry(latency_s=latency, calibration_s=5e-5, between_build_spread=0.002, builds=4)

        def judged(scale: float) -> str:
            builds = [latency * slower * wobble * scale for wobble in wobbles]
            return judge(absolute_ratio(builds, then, 5e-5 * scale), 1.13)

        assert judged(1.0) == judged(factor)

    @given(WOBBLES)
    def test_the_interval_contains_the_value(self, wobbles: list[float]) -> None:
        result = absolute_ratio([1e-3 * wobble for wobble in wobbles], self.then, 5e-5)
        assert result.low <= result.value <= result.high


class TestRelativeRatio:
    def test_an_equal_gain_is_one(self) -> None:
        now = ratio(0.8, 0.79, 0.81)
        result = relative_ratio(now, latency_s=4e-3, default_s=5e-3)
        assert (result.value, result.builds) == (pytest.approx(1.0), now.builds)
        assert result.low < 1 < result.high

    def test_a_lost_gain_is_above_one(self) -> None:
        assert relative_ratio(ratio(1.0, 0.99, 1.01), 4e-3, 5e-3).value == pytest.approx(1.25)

    @given(st.floats(0.1, 10), st.floats(0.1, 10), FACTOR)
    def test_another_unit_of_time_changes_nothing(
        self, latency: float, default: float, factor: float
    ) -> None:
        now = ratio(0.8, 0.7, 0.9)
        assert relative_ratio(now, latency, default) == relative_ratio(
            now, latency * factor, default * factor
        )


@given(st.lists(st.tuples(LATENCY, LATENCY), min_size=2, max_size=12))
@settings(max_examples=200)
def test_the_ratio_the_other_way_round_is_its_inverse(pairs: list[tuple[float, float]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    assume(all(1e-9 < a / b < 1e9 for a, b in pairs))
    result = finals({"a": 1.0, "b": 1.0})
    result.blocks = {"a": [[[value]] for value in first], "b": [[[value]] for value in second]}
    there, back = result.ratio("a", "b"), result.ratio("b", "a")
    assert there.value == pytest.approx(1 / back.value)
    assert there.low <= there.value <= there.high
    if back.high < 1e100:
        assert there.low == pytest.approx(1 / back.high)
