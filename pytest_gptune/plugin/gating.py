"""Applies a gate to the finals: measures again before it fails, and says what was compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pytest_gptune.plugin.contest import CALIBRATION, REFERENCE, Contest
from pytest_gptune.records.baseline import BaselineEntry
from pytest_gptune.records.route_record import TuningSpec
from pytest_gptune.timing.finals import FinalsStop
from pytest_gptune.timing.statistics import Ratio
from pytest_gptune.verdict import (
    ABSOLUTE_EXTRA_LIMIT,
    TAIL_FACTORS,
    Change,
    Verdict,
    absolute_ratio,
    judge,
    judge_tail,
    relative_ratio,
)

_TAIL_CONFIDENCE = 0.99

_GRAVITY = {"pass": 0, "new": 1, "incomparable": 1, "ambiguous": 2, "fail": 3}

# Both of two engines in turns are capped or neither; further apart, one of them ran on another device.
_CAPPED_APART = 0.5


@dataclass(frozen=True)
class Gating:
    """Everything a gate looks at.

    Attributes:
        reference: contestant the winner is compared with by the paired gate; None where there is none.
        foreign: whether the baseline's entry is of another device class.
    """

    spec: TuningSpec
    contest: Contest
    winner: str
    entry: BaselineEntry
    change: Change
    reference: str | None
    foreign: bool

    def verdict(self, gate: str) -> Verdict:
        """The verdict of one of the gates ``unchanged``, ``paired``, ``absolute``, ``relative``."""
        verdict = {
            "unchanged": self._unchanged,
            "paired": self._paired,
            "absolute": self._absolute,
            "relative": self._relative,
        }[gate]()
        if verdict.ratio is not None and gate == "paired" and self.reference is not None:
            verdict = replace(verdict, against_s=self.contest.result.latency(self.reference))
        elif verdict.ratio is not None and gate == "absolute":
            verdict = replace(verdict, against_s=self.entry.latency_s)
        return replace(verdict, changed=self.change.lines(), baseline=compared_with(self.entry))

    def _unchanged(self) -> Verdict:
        return unchanged_verdict(self.contest.result.latency(self.winner), self.entry, foreign=self.foreign)

    def _paired(self) -> Verdict:
        limit = 1 + self.spec.max_regression
        if self.reference is None:
            return Verdict(
                "incomparable",
                "environment",
                "paired",
                limit=limit,
                message="the reference engine is missing.",
            )
        if not self.contest.standing(self.reference):
            error = self.contest.result.failures.get(self.reference)
            return Verdict(
                "incomparable",
                "environment",
                "paired",
                limit=limit,
                message=f"the reference engine could not be measured: {error}",
            )
        if self.reference == self.winner:
            return Verdict(
                "pass",
                "within_limit",
                "paired",
                Ratio(1.0, 1.0, 1.0, self.contest.result.builds(self.winner)),
                limit,
                message="winner and reference engine are the same model and route.",
            )
        verdict = self._judged(
            "paired",
            limit,
            lambda skip: self._ratio(self.winner, self.reference or "", skip),
            (self.winner, self.reference),
            tail_against=self.reference,
        )
        capped = [self.contest.result.capped(key) for key in (self.winner, self.reference)]
        if capped[0] is not None and capped[1] is not None and abs(capped[0] - capped[1]) > _CAPPED_APART:
            return replace(verdict, outcome="ambiguous", reason="noise").saying(
                f"the device was power capped in {capped[0]:.0%} of the winner's blocks, in {capped[1]:.0%} "
                "of the reference engine's: give it more power, or lock its clock lower."
            )
        in_cycles = self.contest.result.ratio_in_cycles(self.winner, self.reference)
        if verdict.outcome == "fail" and in_cycles is not None and in_cycles <= limit:
            # The device ran slower for one of the two, for the heat of the other say: not the engine's doing.
            return replace(verdict, outcome="ambiguous", reason="noise").saying(
                f"in cycles of the device the ratio is {in_cycles:.3f}, which is within the limit: "
                "its clock was lower."
            )
        return verdict

    def _absolute(self) -> Verdict:
        limit = 1 + self.spec.max_regression + ABSOLUTE_EXTRA_LIMIT
        if self.foreign:
            return Verdict(
                "incomparable",
                "environment",
                "absolute",
                limit=limit,
                message=f"the baseline is of {self.entry.device_class}; "
                "latencies of two device classes do not compare. "
                "Add this one with --gptune-update-baseline.",
            )

        self.contest.calibrate(self.winner, self.entry.route)
        verdict = self._judged(
            "absolute", limit, self._against_then, (self.winner, CALIBRATION), tail_against=None
        )
        if verdict.outcome == "fail":
            in_seconds = self._against_then(0, scaled=False)
            if in_seconds.value <= limit:
                # The machine became faster, or only the calibration engine did: one of two measures objects.
                verdict = replace(verdict, outcome="ambiguous", reason="noise").saying(
                    f"in seconds the ratio is {in_seconds.value:.3f}, which is within the limit."
                )
        return verdict.saying(self._calibration_note())

    def _against_then(self, skip: int, *, scaled: bool = True) -> Ratio:
        """This run over the baseline, on builds after ``skip`` that have a calibration build beside them."""
        result = self.contest.result
        latencies = result.latencies(self.winner)
        calibrations = result.latencies(CALIBRATION) if scaled else []
        if not calibrations or not self.entry.calibration_s:
            return absolute_ratio(latencies[skip:], self.entry, None)
        # The calibration engine may have joined late: its builds are those of the last turns.
        late = len(latencies) - len(calibrations)
        skip = max(skip, late)
        return absolute_ratio(latencies[skip:], self.entry, calibrations[skip - late :])

    def verdict_of_both(self) -> Verdict:
        """The paired gate sees model and route on this stack; a changed stack takes the absolute one.

        The worse of the two counts.
        """
        paired, absolute = self.verdict("paired"), self.verdict("absolute")
        if absolute.outcome == "incomparable":
            return paired.saying(f"The stack changed as well and was not judged: {absolute.message}")
        told = f"ratio {absolute.ratio.value:.3f}" if absolute.ratio else absolute.reason
        if _GRAVITY[absolute.outcome] > _GRAVITY[paired.outcome]:
            return absolute.saying(f"On this stack alone, the paired gate says {paired.outcome}.")
        return paired.saying(f"The stack changed as well: the absolute gate says {absolute.outcome}, {told}.")

    def _relative(self) -> Verdict:
        limit = 1 + self.spec.max_regression
        change = self.change
        if change.defaults:
            return Verdict(
                "incomparable", "default_changed", "relative", limit=limit, message="the defaults are others."
            )
        if change.model or change.software:
            what = "the model is another" if change.model else "the software is another"
            return Verdict(
                "incomparable",
                "environment",
                "relative",
                limit=limit,
                message=f"{what}, so gains do not compare.",
            )
        default, then = self.spec.default_key, self.entry.default
        if then is None or not self.contest.standing(default):
            return Verdict(
                "incomparable",
                "environment",
                "relative",
                limit=limit,
                message="the default was not measured.",
            )
        verdict = self._judged(
            "relative",
            limit,
            lambda skip: relative_ratio(
                self._ratio(self.winner, default, skip), self.entry.latency_s, then.latency_s
            ),
            (self.winner, default),
            tail_against=None,
        )
        now = self._ratio(self.winner, default).value
        shares = (
            f"{now:.3f} of the default's time, {self.entry.latency_s / then.latency_s:.3f} in the baseline"
        )
        return verdict.saying(f"the winner takes {shares}.")

    def _ratio(self, first: str, second: str, skip: int = 0, **options: Any) -> Ratio:
        return self.contest.result.ratio(
            first, second, skip_builds=skip, known_spread=self.entry.between_build_spread, **options
        )

    def _judged(
        self, gate: str, limit: float, ratio_of: Any, keys: tuple[str, ...], *, tail_against: str | None
    ) -> Verdict:
        """Judge, and measure again before anything but a pass is said.

        More builds are added up to the plan's most; a failure must show in the builds that were added, taken
        alone, as well.
        """
        result, plan = self.contest.result, self.contest.plan
        fresh: Ratio | None = None
        before = 0
        while True:
            ratio = ratio_of(0)
            outcome = judge(ratio, limit)
            tail = self._tail(tail_against, 0) if outcome == "pass" and tail_against else ""
            confirmed = fresh is not None and fresh.value > limit
            if tail and tail_against and fresh is not None:
                confirmed = bool(self._tail(tail_against, before))
            if outcome == "pass" and not tail:
                reason = "improved" if ratio.high < 1 else "within_limit"
                if fresh:
                    self._stopped(keys, "decided")
                return Verdict("pass", reason, gate, ratio, limit)
            if confirmed and (outcome == "fail" or tail):
                self._stopped(keys, "decided")
                return Verdict(
                    "fail",
                    "tail" if tail else "slower",
                    gate,
                    ratio,
                    limit,
                    message=f"its {tail} is slower although its {result.statistic} is not." if tail else "",
                )
            builds = result.builds(self.winner)
            if builds >= plan.most_builds:
                self._stopped(keys, "most_builds")
                return Verdict(
                    "ambiguous",
                    "noise",
                    gate,
                    ratio,
                    limit,
                    message=(
                        f"after {builds} builds the interval still covers the limit: "
                        if outcome == "ambiguous"
                        else f"the last of {builds} builds, taken alone, do not confirm it: "
                    )
                    + "measure on a quieter machine, or raise ini gptune_final_builds.",
                )
            self.contest.prolong(keys)
            if failed := [k for k in keys if k != CALIBRATION and not self.contest.standing(k)]:
                error = self.contest.result.failures.get(failed[0])
                message = f"an engine failed when it was built again: {error}"
                return Verdict("incomparable", "environment", gate, limit=limit, message=message)
            before, fresh = builds, ratio_of(builds)

    def _stopped(self, keys: tuple[str, ...], why: FinalsStop) -> None:
        self.contest.result.stop_reasons.update(dict.fromkeys(keys, why))

    def _tail(self, reference: str, skip: int) -> str:
        ratios: Mapping[str, Ratio] = {
            statistic: self._ratio(
                self.winner, reference, skip, statistic=statistic, confidence=_TAIL_CONFIDENCE
            )
            for statistic in TAIL_FACTORS
            if statistic != self.contest.result.statistic
        }
        return judge_tail(ratios, self.spec.max_regression)

    def _calibration_note(self) -> str:
        if not self.contest.standing(CALIBRATION) or not self.entry.calibration_s:
            return "no calibration in the baseline: nothing was scaled."
        drift = self.contest.result.latency(CALIBRATION) / self.entry.calibration_s
        return f"the calibration engine takes {drift:.3f} of its time in the baseline; that is scaled away."


def unchanged_verdict(latency_s: float, entry: BaselineEntry, *, foreign: bool) -> Verdict:
    """Nothing changed, so nothing is compared: the drift of the machine is shown and never failed."""
    drift = (
        f"its latency is {latency_s / entry.latency_s:.3f} of the baseline's: drift of the machine."
        if not foreign
        else f"its latency was recorded on {entry.device_class}."
    )
    return Verdict(
        "pass",
        "unchanged",
        "",
        message=f"model, route and stack are the baseline's; {drift}",
        baseline=compared_with(entry),
    )


def compared_with(entry: BaselineEntry) -> dict[str, Any]:
    """The baseline's entry as a verdict shows it."""
    return {
        "route": entry.route,
        "latency_s": entry.latency_s,
        "interval": entry.interval,
        "builds": entry.builds,
        "device_class": entry.device_class,
        "model_sha256": entry.model_sha256,
        "tuner_version": entry.tuner_version,
    }


def reference_of(*, winner: str, entry_key: str | None, model_changed: bool, contest: Contest) -> str | None:
    """The contestant that is the reference engine: the baseline's model at the baseline's route."""
    if model_changed or contest.reference_backend is not None:
        return REFERENCE if REFERENCE in contest.requests else None
    return entry_key if entry_key in contest.requests or entry_key == winner else None
