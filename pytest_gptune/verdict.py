"""What the measurements mean: the winner of a search, the gate that applies, and its verdict.

Pure decisions on numbers and records. A verdict starts from "don't know" and is upgraded by evidence: it
fails only where a slowdown is both significant (the interval lies beyond the limit) and large enough to
matter (the limit itself), and was seen again in builds of its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pytest_gptune.records.baseline import BaselineEntry
from pytest_gptune.timing.finals import FinalsResult
from pytest_gptune.timing.statistics import Ratio

Outcome = Literal["pass", "fail", "ambiguous", "new", "incomparable"]
Gate = Literal["auto", "paired", "absolute", "relative", "off"]
GATES: tuple[Gate, ...] = ("auto", "paired", "absolute", "relative", "off")

# Routes this close are the same speed: two builds of one route differ by as much.
CO_WINNER = 1.01

# A slow tail is judged by its own statistics, each with its own factor on the limit: the further out a
# quantile lies, the more it moves without cause.
TAIL_FACTORS: Mapping[str, float] = {"median": 2.0, "p95": 5.0}

# The absolute gate compares two days; what calibration leaves of the machine's drift must not fail a run.
ABSOLUTE_EXTRA_LIMIT = 0.10


@dataclass(frozen=True)
class Verdict:
    """What a gate says of a tuning.

    Attributes:
        outcome: pass, fail, ambiguous, new or incomparable.
        reason: one word, as ``unchanged`` or ``slower``.
        gate: the gate that was applied; empty where nothing was compared.
        ratio: winner over what it was compared with; None where nothing was.
        limit: the largest ratio that passes.
        changed: what differs from the baseline, a line each.
        message: sentences for the reader.
        command: what to run next, empty where there is nothing to do.
        against_s: the latency the winner was compared with, in seconds; None where none was.
        baseline: what it was compared with, as plain data; empty without a baseline.
    """

    outcome: Outcome
    reason: str
    gate: str = ""
    ratio: Ratio | None = None
    limit: float = 1.0
    changed: tuple[str, ...] = ()
    message: str = ""
    command: str = ""
    against_s: float | None = None
    baseline: Mapping[str, Any] = field(default_factory=dict)

    def saying(self, sentence: str) -> Verdict:
        """The same with a further sentence in its message."""
        return replace(self, message=f"{self.message} {sentence}".strip())


@dataclass(frozen=True)
class Change:
    """What differs between this run and the baseline's entry, by kind."""

    model: bool
    route: bool
    software: tuple[str, ...]
    device: tuple[str, ...]
    defaults: bool
    golden: bool

    @property
    def stack(self) -> bool:
        """Whether backend, its version, its options or its defaults are others."""
        return bool(self.software) or self.defaults

    def lines(self) -> tuple[str, ...]:
        """What changed, a line each."""
        lines = ["model: another digest"] if self.model else []
        lines += ["route: another route won"] if self.route else []
        lines += ["golden: another digest"] if self.golden else []
        lines += ["defaults: knobs have other defaults"] if self.defaults else []
        return (*lines, *self.software, *self.device)


def choose_winner(
    finals: FinalsResult,
    passing: Mapping[str, int],
    *,
    baseline_route: str | None,
    default_route: str = "",
    at_hosts_pace: Set[str] = frozenset(),
) -> tuple[str, tuple[str, ...]]:
    """The winner of the finals and all co-winners: routes within 1 % of the fastest, or not surely slower.

    Among them the baseline's is preferred, then the default: a change of route must be worth it, and certain.
    Then come those that do not wait for the host, whose pace is another one on another day. Of others, doubt
    speaks for none: of those within 1 % the one with the fewest knobs wins.

    Args:
        finals: latencies by route.
        passing: routes that may win, with their number of knobs.
        baseline_route: the baseline's route, None without a baseline.
        default_route: the default route; it has knobs of its own where some are fixed.
        at_hosts_pace: routes that wait for the host.
    """
    share = shares(finals, passing, default_route)
    fastest = min(passing, key=lambda route: share[route])
    close = [
        route
        for route in passing
        if share[route] <= share[fastest] * CO_WINNER
        or not surely_slower(finals, route, fastest, confidence=confidence_among(len(passing)))
    ]
    preferred = [r for r in (baseline_route, default_route) if r is not None and r in close]
    steady = [route for route in close if route not in at_hosts_pace] or close
    best = min(share[route] for route in steady)
    within = [route for route in steady if share[route] <= best * CO_WINNER]
    fewest = min(within, key=lambda route: (passing[route], share[route]))
    winner = preferred[0] if preferred else fewest
    return winner, tuple(sorted(close, key=lambda route: share[route]))


def shares(finals: FinalsResult, passing: Collection[str], default_route: str) -> dict[str, float]:
    """Each route's latency over that of one of them, the default where it was measured.

    By pairs of builds: what moved a build's turn moved both.
    """
    anchor = default_route if finals.builds(default_route) else next(iter(passing))
    return {route: finals.ratio(route, anchor).value for route in passing}


def confidence_among(routes: int) -> float:
    """The confidence of a two-sided interval that makes one of several routes surely faster than another.

    Each of the others could have been the fastest by luck: Bonferroni's correction keeps the chance that one
    of them seems faster, and is not, at 5 %. For slower ones that does not matter, so it is of one side.
    """
    return 1 - 2 * 0.05 / max(routes - 1, 2)


def surely_slower(finals: FinalsResult, route: str, other: str, *, confidence: float = 0.95) -> bool:
    """Whether the whole interval of the ratio says so; single builds have none, and their value counts."""
    ratio = finals.ratio(route, other, confidence=confidence)
    return ratio.low > 1.0 if math.isfinite(ratio.high) else ratio.value > 1.0


def choose_gate(
    asked: Gate, change: Change, *, old_model: bool, old_stack: bool = False
) -> Gate | Literal["unchanged"]:
    """The gate that applies.

    Args:
        asked: ``auto`` chooses; anything else is taken as it is.
        change: what differs from the baseline.
        old_model: whether the baseline's model can be had.
        old_stack: whether the reference engine is built by another interpreter, which has the old stack.
    """
    if asked != "auto":
        return asked
    if not (change.model or change.route or change.stack):
        return "unchanged"
    if old_model and (change.model or change.route or old_stack):
        return "paired"
    return "absolute"


def judge(ratio: Ratio, limit: float) -> Literal["pass", "fail", "ambiguous"]:
    """Where the interval of a ratio lies: beyond the limit, within it, or across."""
    if ratio.low > limit:
        return "fail"
    if ratio.high <= limit:
        return "pass"
    return "ambiguous"


def judge_tail(ratios: Mapping[str, Ratio], max_regression: float) -> str:
    """The statistic whose ratio shows a slow tail, empty where none does."""
    for statistic, factor in TAIL_FACTORS.items():
        if statistic in ratios and judge(ratios[statistic], 1 + factor * max_regression) == "fail":
            return statistic
    return ""


def absolute_ratio(
    latency_s: Sequence[float],
    entry: BaselineEntry,
    calibration_s: Sequence[float] | None,
) -> Ratio:
    """This run's latency over the baseline's, both in units of their run's calibration engine.

    The interval contains the variance between builds of both runs, and of the calibration engine in this
    one. A baseline of one build, or one without a spread, is taken to have the spread of this run.

    Args:
        latency_s: latency of each build of the winner in this run, in seconds.
        entry: the baseline.
        calibration_s: latency of the build of the calibration engine that was interleaved with each; None
            leaves the ratio unscaled.
    """
    import statistics

    from pytest_gptune.timing.statistics import t_quantile

    scales = [1.0] * len(latency_s)
    if calibration_s is not None and entry.calibration_s:
        scales = [entry.calibration_s / value for value in calibration_s]
    logs = [math.log(value * scale / entry.latency_s) for value, scale in zip(latency_s, scales, strict=True)]
    centre = statistics.fmean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(centre), 0.0, math.inf, len(logs))
    here = statistics.stdev(logs)
    there = entry.between_build_spread if entry.between_build_spread is not None else here
    error = math.sqrt(here**2 / len(logs) + there**2 / max(entry.builds, 1))
    half = t_quantile(0.975, len(logs) - 1) * error
    return Ratio(math.exp(centre), math.exp(centre - half), math.exp(centre + half), len(logs))


def relative_ratio(now: Ratio, latency_s: float, default_s: float) -> Ratio:
    """The winner's share of the default's latency in this run over the same share in the baseline."""
    then = latency_s / default_s
    return Ratio(now.value / then, now.low / then, now.high / then, now.builds)
