"""The gates themselves: what they compare, when they measure again, and what they say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verdict_records import change, entry, spec

from pytest_gptune.engines.base import SampleBlock
from pytest_gptune.plugin.contest import CALIBRATION, REFERENCE, Contest
from pytest_gptune.plugin.gating import Gating, reference_of, unchanged_verdict
from pytest_gptune.timing.finals import FinalistFailedError, FinalsPlan, FinalsResult
from pytest_gptune.verdict import Verdict

WINNER = "-first=on"
SHARES = {"p25": 0.25, "median": 0.5, "p95": 0.95}


@dataclass
class Scripted(Contest):
    """Finals whose measurements are written down: for each contestant, one latency after the other."""

    script: dict[str, Sequence[Any]] = field(default_factory=dict)
    runs: list[tuple[str, ...]] = field(default_factory=list)

    def _measure(self, keys: tuple[str, ...], builds: int) -> None:
        self.runs.append(keys)
        for _ in range(builds):
            for key, latencies in self.script.items():
                if key in keys and key not in self.result.failures:
                    built = self.result.blocks.setdefault(key, [])
                    latency = latencies[len(built) % len(latencies)]
                    if isinstance(latency, Exception):
                        self.result.failures[key] = latency  # type: ignore[assignment]
                        del self.result.blocks[key]
                    else:
                        block = list(latency) if isinstance(latency, (tuple, list)) else [latency] * 20
                        built.append([block])


def contest(script: dict[str, Any], builds: int = 4, of: type[Scripted] = Scripted) -> Scripted:
    """Finals that were run once."""
    nothing: Any = None
    made = of(
        backend=nothing,
        gate=nothing,
        golden=nothing,
        case=nothing,
        plan=FinalsPlan(builds=builds, step=builds, most_builds=3 * builds),
        requests=dict.fromkeys(script, nothing),
        result=FinalsResult(),
        script=script,
    )
    made.run()
    return made


def around(latency: float, spread: float = 0.001) -> list[float]:
    """Builds that differ a little."""
    return [latency * (1 + spread * step) for step in (-1, 0.5, 1, -0.5, 0)]


def with_tail(latency: float, factor: float, share: float = 0.1) -> tuple[float, ...]:
    """Samples of one build, of which some are slower."""
    slow = round(100 * share)
    return (latency,) * (100 - slow) + (latency * factor,) * slow


def gating(made: Scripted, **values: Any) -> Gating:
    plain: dict[str, Any] = {
        "spec": spec(),
        "contest": made,
        "winner": WINNER,
        "entry": entry(route=WINNER),
        "change": change(model=True),
        "reference": REFERENCE,
        "foreign": False,
    }
    return Gating(**(plain | values))


def paired(winner: Any, reference: Any, builds: int = 4, **values: Any) -> tuple[Verdict, Scripted]:
    made = contest({WINNER: winner, REFERENCE: reference, CALIBRATION: [5e-5]}, builds)
    return gating(made, **values).verdict("paired"), made


class TestPaired:
    @pytest.mark.parametrize(
        ("winner", "reference", "outcome"),
        [(9, 9, "pass"), (0, 0, "pass"), (9, 5, "pass"), (9, 4, "ambiguous"), (0, 9, "ambiguous")],
    )
    def test_a_power_cap_has_to_be_on_both_sides(self, winner: int, reference: int, outcome: str) -> None:
        made = contest({WINNER: around(1e-3), REFERENCE: around(1e-3), CALIBRATION: [5e-5]})
        for key, capped in ((WINNER, winner), (REFERENCE, reference)):
            made.result.taken[key] = [
                SampleBlock((1e-3,), conditions=("power capped",) if number < capped else ())
                for number in range(9)
            ]
        verdict = gating(made).verdict("paired")
        assert verdict.outcome == outcome
        said = f"power capped in {winner / 9:.0%} of the winner's blocks, in {reference / 9:.0%} of the ref"
        assert (said in verdict.message) is (outcome == "ambiguous")

    @pytest.mark.parametrize(("clock_hz", "outcome"), [(2.0e9, "fail"), (1.8e9, "ambiguous")])
    def test_a_lower_clock_is_no_slower_engine(self, clock_hz: float, outcome: str) -> None:
        """Slower by 11 %, and at a clock that is lower by a tenth."""

        class Clocked(Scripted):
            def _measure(self, keys: tuple[str, ...], builds: int) -> None:
                super()._measure(keys, builds)
                for key, hz in ((WINNER, clock_hz), (REFERENCE, 2.0e9)):
                    self.result.clocks_hz[key] = [hz] * len(self.result.blocks[key])

        made = contest({WINNER: around(1.11e-3), REFERENCE: around(1e-3), CALIBRATION: [5e-5]}, of=Clocked)
        verdict = gating(made).verdict("paired")
        assert verdict.outcome == outcome
        assert ("its clock was lower" in verdict.message) is (outcome == "ambiguous")

    def test_slower_fails_after_a_second_measurement(self) -> None:
        verdict, made = paired(around(1.11e-3), around(1e-3))
        assert (verdict.outcome, verdict.reason, verdict.gate) == ("fail", "slower", "paired")
        assert verdict.ratio is not None
        assert verdict.ratio.value == pytest.approx(1.11, rel=1e-3)
        assert verdict.ratio.builds == 8
        assert made.runs == [tuple(made.requests), (WINNER, REFERENCE)]

    def test_equal_passes_at_once(self) -> None:
        verdict, made = paired(around(1e-3), around(1e-3, -0.001))
        assert (verdict.outcome, verdict.reason) == ("pass", "within_limit")
        assert made.runs == [tuple(made.requests)]

    def test_faster_is_improved(self) -> None:
        verdict, _ = paired(around(0.9e-3), around(1e-3, -0.001))
        assert (verdict.outcome, verdict.reason) == ("pass", "improved")

    def test_slower_within_the_limit_passes(self) -> None:
        verdict, _ = paired(around(1.02e-3), around(1e-3))
        assert (verdict.outcome, verdict.reason) == ("pass", "within_limit")

    def test_a_slowdown_that_is_not_seen_again_does_not_fail(self) -> None:
        """The first pairs met a bad minute; those that were added did not."""
        verdict, _ = paired([1.5e-3] * 4 + [1e-3] * 20, [1e-3] * 24)
        assert verdict.outcome != "fail"

    def test_a_difference_at_the_limit_is_ambiguous(self) -> None:
        verdict, made = paired(around(1.03e-3, 0.01), around(1e-3))
        assert (verdict.outcome, verdict.reason) == ("ambiguous", "noise")
        assert verdict.ratio is not None
        assert verdict.ratio.builds == 12
        assert len(made.runs) == 3
        assert "12 builds" in verdict.message

    def test_one_build_is_never_enough_to_fail(self) -> None:
        verdict, made = paired(around(1.5e-3), around(1e-3), builds=1, entry=entry(between_build_spread=None))
        assert len(made.runs) > 1
        assert verdict.ratio is not None
        assert verdict.ratio.builds >= 2

    def test_the_spread_of_the_baseline_makes_one_build_enough_to_pass(self) -> None:
        verdict, made = paired([1e-3], [1e-3], builds=1, entry=entry(between_build_spread=0.002))
        assert verdict.outcome == "pass"
        assert made.runs == [tuple(made.requests)]

    def test_a_slow_tail(self) -> None:
        verdict, made = paired([with_tail(1e-3, 2.0)], [1e-3])
        assert (verdict.outcome, verdict.reason) == ("fail", "tail")
        assert "p95" in verdict.message
        assert len(made.runs) == 2

    def test_a_tail_that_the_reference_has_as_well(self) -> None:
        verdict, _ = paired([with_tail(1e-3, 2.0)], [with_tail(1e-3, 2.0)])
        assert verdict.outcome == "pass"

    def test_a_tail_of_some_builds_is_noise(self) -> None:
        verdict, _ = paired([with_tail(1e-3, 2.0), with_tail(1e-3, 1.0)], [1e-3])
        assert verdict.outcome == "pass"

    def test_winner_and_reference_are_the_same(self) -> None:
        made = contest({WINNER: [1e-3]})
        verdict = gating(made, reference=WINNER).verdict("paired")
        assert (verdict.outcome, verdict.ratio and verdict.ratio.value) == ("pass", 1.0)

    def test_there_is_no_reference(self) -> None:
        verdict = gating(contest({WINNER: [1e-3]}), reference=None).verdict("paired")
        assert (verdict.outcome, verdict.reason) == ("incomparable", "environment")

    def test_the_reference_failed(self) -> None:
        verdict, _ = paired([1e-3], [FinalistFailedError("no such luck")])
        assert (verdict.outcome, verdict.reason) == ("incomparable", "environment")
        assert "no such luck" in verdict.message

    @pytest.mark.parametrize("who", ["winner", "reference"])
    def test_an_engine_that_fails_when_it_is_measured_again(self, who: str) -> None:
        winner: list[Any] = [1.5e-3] * 4
        reference: list[Any] = [1e-3] * 4
        (winner if who == "winner" else reference).append(FinalistFailedError("its memory ran out"))
        verdict, _ = paired(winner, reference)
        assert verdict.outcome == "incomparable"
        assert "its memory ran out" in verdict.message


class TestAbsolute:
    def absolute(self, latency: float, calibration: float = 5e-5, **values: Any) -> Verdict:
        made = contest({WINNER: around(latency), CALIBRATION: [calibration]})
        return gating(made, change=change(software=("backend: 1 -> 2",)), **values).verdict("absolute")

    def test_slower_fails(self) -> None:
        verdict = self.absolute(1.2e-3)
        assert (verdict.outcome, verdict.reason, verdict.gate) == ("fail", "slower", "absolute")
        assert verdict.limit == pytest.approx(1.13)

    def test_a_slower_machine_does_not(self) -> None:
        verdict = self.absolute(1.2e-3, calibration=6e-5)
        assert verdict.outcome == "pass"
        assert "the calibration engine takes 1.200 of its time" in verdict.message

    def test_another_device_is_incomparable(self) -> None:
        verdict = self.absolute(1e-3, foreign=True)
        assert (verdict.outcome, verdict.reason) == ("incomparable", "environment")
        assert "cpu:One:2" in verdict.message

    def test_the_limit_follows_the_setting(self) -> None:
        verdict = self.absolute(1.2e-3, spec=spec(max_regression=0.2))
        assert verdict.outcome == "pass"
        assert verdict.limit == pytest.approx(1.3)

    def test_a_calibration_engine_that_fails_leaves_the_ratio_unscaled(self) -> None:
        made = contest({WINNER: around(1e-3), CALIBRATION: [FinalistFailedError("no")]})
        verdict = gating(made).verdict("absolute")
        assert verdict.outcome == "pass"
        assert "nothing was scaled" in verdict.message


class TestRelative:
    def relative(self, winner: float, default: float, **values: Any) -> Verdict:
        made = contest({WINNER: around(winner), "": around(default, -0.001)})
        plain = {"change": change(), "reference": None}
        return gating(made, **(plain | values)).verdict("relative")

    def test_the_gain_is_kept(self) -> None:
        assert self.relative(0.8e-3, 1e-3).reason == "within_limit"

    def test_the_gain_is_lost(self) -> None:
        verdict = self.relative(1e-3, 1e-3)
        assert (verdict.outcome, verdict.reason) == ("fail", "slower")
        assert "1.000 of the default's time, 0.800 in the baseline" in verdict.message

    @pytest.mark.parametrize(
        ("what", "reason"),
        [
            ({"defaults": True}, "default_changed"),
            ({"model": True}, "environment"),
            ({"software": ("backend: 1 -> 2",)}, "environment"),
        ],
    )
    def test_what_makes_gains_incomparable(self, what: dict[str, Any], reason: str) -> None:
        verdict = self.relative(1e-3, 1e-3, change=change(**what))
        assert (verdict.outcome, verdict.reason) == ("incomparable", reason)

    def test_another_route_or_device_does_not(self) -> None:
        verdict = self.relative(0.8e-3, 1e-3, change=change(route=True, device=("cores: 2 -> 4",)))
        assert verdict.outcome == "pass"


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(0.95, 1.2), min_size=3, max_size=7),
    st.lists(st.floats(0.95, 1.05), min_size=3, max_size=7),
    st.integers(-15, 15).map(lambda exponent: 2.0**exponent),
    st.sampled_from(["paired", "absolute", "relative"]),
)
def test_a_verdict_does_not_flip_with_the_unit_of_time(
    winner: list[float], other: list[float], factor: float, gate: str
) -> None:
    """All latencies, those of the baseline and of the calibration engine included, times one factor."""

    def judged(scale: float) -> Verdict:
        made = contest(
            {
                WINNER: [1e-3 * value * scale for value in winner],
                REFERENCE: [1e-3 * value * scale for value in other],
                "": [1.25e-3 * value * scale for value in other],
                CALIBRATION: [5e-5 * scale],
            },
            builds=2,
        )
        base = entry(route=WINNER)
        assert base.default is not None
        assert base.calibration_s is not None
        base = replace(
            base,
            latency_s=base.latency_s * scale,
            calibration_s=base.calibration_s * scale,
            default=replace(base.default, latency_s=base.default.latency_s * scale),
        )
        return gating(made, entry=base, change=change()).verdict(gate)

    first, second = judged(1.0), judged(factor)
    assert (first.outcome, first.reason, first.ratio) == (second.outcome, second.reason, second.ratio)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(0.9, 1.3), min_size=3, max_size=7),
    st.lists(st.floats(0.95, 1.05), min_size=3, max_size=7),
    st.floats(0, 0.2),
    st.integers(1, 4),
)
def test_a_failure_lies_beyond_the_limit_and_was_seen_twice(
    winner: list[float], reference: list[float], limit: float, builds: int
) -> None:
    verdict, made = paired(
        [1e-3 * value for value in winner],
        [1e-3 * value for value in reference],
        builds,
        spec=spec(max_regression=limit),
    )
    assert verdict.ratio is not None
    if verdict.outcome == "fail":
        assert verdict.ratio.low > 1 + limit
        assert len(made.runs) >= 2
    if verdict.outcome == "pass":
        assert verdict.ratio.high <= 1 + limit
    if verdict.reason == "improved":
        assert verdict.ratio.high < 1
    assert verdict.ratio.builds <= 3 * builds
    assert math.isfinite(verdict.ratio.value)


class TestReference:
    def reference(self, **values: Any) -> str | None:
        made = contest({WINNER: [1e-3], "": [1e-3], **values.pop("script", {})})
        plain = {"winner": WINNER, "entry_key": "", "model_changed": False, "contest": made}
        return reference_of(**(plain | values))

    def test_of_a_changed_model_is_the_old_model(self) -> None:
        assert self.reference(model_changed=True, script={REFERENCE: [1e-3]}) == REFERENCE

    def test_of_a_changed_model_that_cannot_be_had(self) -> None:
        assert self.reference(model_changed=True) is None

    def test_of_the_same_model_is_the_baselines_route(self) -> None:
        assert self.reference() == ""

    def test_of_a_route_that_is_not_in_the_finals(self) -> None:
        assert self.reference(entry_key="-gone=1") is None
        assert self.reference(entry_key=None) is None


def test_unchanged_shows_the_drift() -> None:
    verdict = unchanged_verdict(1.1e-3, entry(), foreign=False)
    assert (verdict.outcome, verdict.reason, verdict.gate, verdict.ratio) == ("pass", "unchanged", "", None)
    assert "1.100" in verdict.message
    assert "1.100" not in unchanged_verdict(1.1e-3, entry(), foreign=True).message


def test_what_changed_and_the_baseline_are_in_every_verdict() -> None:
    made = contest({WINNER: around(1.11e-3), REFERENCE: around(1e-3), "": [1e-3], CALIBRATION: [5e-5]})
    gates: Sequence[str] = ("unchanged", "paired", "absolute", "relative")
    verdicts: Callable[[str], Verdict] = gating(made).verdict
    for gate in gates:
        assert verdicts(gate).changed == ("model: another digest",)
        assert verdicts(gate).baseline["latency_s"] == 1e-3
