"""The winner of the finals, which are prolonged where a faster route is in doubt."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, replace

from pytest_gptune.engines.base import RouteFailureError
from pytest_gptune.plugin.contest import Contest
from pytest_gptune.plugin.figures import finals_latency
from pytest_gptune.reports.tuning_report import TuningReport
from pytest_gptune.timing.statistics import Ratio
from pytest_gptune.verdict import CO_WINNER, choose_winner, confidence_among, shares

# How often the finals are prolonged to make sure of a faster route.
_MORE_ROUNDS = 2


@dataclass(frozen=True)
class Choice:
    """What the finals came to.

    Attributes:
        winner: None where no route passes any more.
        close: it and its co-winners, the fastest first.
        notes: what a reader has to know of it.
    """

    winner: str | None
    close: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def with_finals(report: TuningReport, contest: Contest) -> TuningReport:
    """The report with the figures of the finals in its records."""
    result, default = contest.result, report.spec.default_key
    records = []
    for record in report.routes:
        if record.key in result.failures:
            error = result.failures[record.key]
            status = error.status if isinstance(error, RouteFailureError) else "inaccurate"
            records.append(
                replace(
                    record,
                    status=status,
                    error=str(error),
                    latency=None,
                    speedup=None,
                    speedup_interval=None,
                )
            )
        elif contest.standing(record.key):
            ratio = result.ratio(default, record.key) if contest.standing(default) else None
            records.append(
                replace(
                    record,
                    latency=finals_latency(result, record.key),
                    builds=1 + result.builds(record.key),
                    speedup=None if ratio is None else ratio.value,
                    speedup_interval=None if record.key == default else _bounds(ratio),
                )
            )
        else:
            records.append(record)
    finalists = tuple(r.key for r in records if contest.standing(r.key))
    return replace(report, routes=tuple(records), finalists=finalists)


def _bounds(ratio: Ratio | None) -> tuple[float, float] | None:
    """The ends of its interval; None where a single build has none."""
    return None if ratio is None or math.isinf(ratio.high) else (ratio.low, ratio.high)


def find_winner(
    report: TuningReport, contest: Contest, entry_key: str | None, at_hosts_pace: Set[str]
) -> tuple[TuningReport, Choice]:
    """The winner, and the report with the figures of all builds.

    Where a faster route loses only because that it is faster is not certain, both are built some more.

    Args:
        report: has the figures of the finals so far.
        contest: is prolonged.
        entry_key: the baseline's route, None without one.
        at_hosts_pace: routes that wait for the host.
    """
    spec, result = report.spec, contest.result
    prolonged: set[str] = set()
    for left in reversed(range(_MORE_ROUNDS + 1)):
        passing = {
            r.key: r.knobs
            for r in report.routes
            if r.status == "passed" and contest.standing(r.key) and (r.kept or spec.search != "engine")
        }
        if not passing:
            return report, Choice(None)
        winner, close = choose_winner(
            result,
            passing,
            baseline_route=entry_key,
            default_route=spec.default_key,
            at_hosts_pace=at_hosts_pace,
        )
        share = shares(result, passing, spec.default_key)
        certain = share[winner] <= share[close[0]] * CO_WINNER
        if certain or not left:
            break
        prolonged |= {close[0], winner}
        contest.prolong((close[0], winner))
        report = with_finals(report, contest)
    if prolonged:
        result.stop_reasons.update(dict.fromkeys(prolonged, "decided" if certain else "most_builds"))
        report = with_finals(report, contest)
    notes: tuple[str, ...] = ()
    faster, kept = report.record(close[0]), report.record(winner)
    if faster and kept and not certain:
        ratio = result.ratio(winner, close[0], confidence=confidence_among(len(passing)))
        by_pace = winner not in (entry_key, spec.default_key)  # nothing else prefers a slower one
        notes = (
            f"winner:  {faster.id} measured {ratio.value:.2f}x the speed of {kept.id}, but not for "
            f"certain ({ratio.low:.2f}x to {ratio.high:.2f}x): {kept.id} is preferred"
            + (", which does not wait for the host" if by_pace else ""),
        )
    return report, Choice(winner, close, notes)
