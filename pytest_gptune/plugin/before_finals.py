"""What can be said of a tuning before anything is measured again: nothing ran, or nothing passed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_gptune.accuracy import Golden
from pytest_gptune.records.route_record import RouteRecord
from pytest_gptune.reports.terminal import rounded_up
from pytest_gptune.reports.tuning_report import TuningReport
from pytest_gptune.verdict import Verdict

# Statuses of routes that were not to run.
_LEFT_OUT = frozenset({"skipped", "pruned"})

_INACCURATE = frozenset({"no_route_passes", "baseline_route_inaccurate"})

# Statuses of routes that did not get as far as numbers.
_NEVER_RAN = frozenset({"rejected", "crashed", "timeout", "out_of_memory", "test_failed"})


def verdict_before_finals(report: TuningReport) -> Verdict | None:
    """The verdict where nothing has to be measured, None where finals may follow."""
    spec = report.spec
    if spec.build_only:
        return _built(report)
    statuses = [record.status for record in report.routes]
    ran = [record for record in report.routes if record.status not in _LEFT_OUT]
    guarded = [key for key in spec.baseline_keys.values() if key is not None]
    broken = [r for r in ran if r.key in guarded and r.status == "inaccurate"]
    if spec.search == "engine":
        kept = next((record for record in report.routes if record.kept), None)
        if kept is None:
            return Verdict("incomparable", "partial_run", message="the kept engine did not run.")
        if kept.status != "passed":
            message = f"the kept engine: {kept.status}: {kept.error}"
            return Verdict("fail", "no_route_passes", message=message)
    if "passed" not in statuses and not broken and not is_complete(report):
        # What some routes are like says nothing of the others.
        message = f"none of the routes that ran passed, and only {ran_of_planned(report)} ran."
        return Verdict("incomparable", "partial_run", message=message)
    if ran and all(record.status in _NEVER_RAN for record in ran):
        failed_tests = sum(record.status == "test_failed" for record in ran)
        if failed_tests == len(ran):
            # The user's own assertions failed, and their reports say so: there is nothing to add.
            return Verdict("incomparable", "partial_run", message="the test itself failed on every route.")
        first = next(record for record in ran if record.status != "test_failed")
        return Verdict(
            "fail",
            "every_route_failed",
            message=f"no route gave an engine that runs. {first.id}: {first.status}: {first.error}",
        )
    if "passed" not in statuses and "inaccurate" in statuses and is_complete(report):
        return Verdict("fail", "no_route_passes", message=_needed(ran))
    if broken and not ("passed" in statuses and spec.update_baseline):
        return Verdict(
            "fail",
            "baseline_route_inaccurate",
            message=f"the baseline's route is not accurate any more. {broken[0].error}",
        )
    if "passed" not in statuses:
        return Verdict(
            "incomparable",
            "partial_run",
            message="no route was checked against a golden, so none can win: "
            "call gptune_golden.check(engine).",
        )
    return None


def told_of_another_model(verdict: Verdict, golden: Golden, model_sha256: str) -> Verdict:
    """The verdict; where routes are inaccurate and the golden is of another model, with that."""
    made_of = golden.provenance.model_sha256
    if verdict.reason not in _INACCURATE or made_of in ("", model_sha256):
        return verdict
    return verdict.saying(
        "The golden is of another model than this one: if the change is meant, make it anew by "
        "--gptune-update-goldens."
    )


def _built(report: TuningReport) -> Verdict:
    """The verdict of a run that builds and does nothing else: the engines that matter can be built."""
    spec = report.spec
    ran = [record for record in report.routes if record.status not in _LEFT_OUT]
    built = [record for record in ran if record.status not in _NEVER_RAN]
    needed = {spec.default_key, *spec.baseline_keys.values()}
    broken = [record for record in ran if record.key in needed and record not in built]
    count = f"{len(built)} of {len(ran)} routes were built, and none was run"
    if broken:
        first = broken[0]
        reason = "not_built" if built else "every_route_failed"
        return Verdict("fail", reason, message=f"{first.id}: {first.status}: {first.error} {count}.")
    return Verdict("pass", "built", message=f"{count}: nothing was compared or timed.")


def is_complete(report: TuningReport) -> bool:
    """Whether every route of the search ran; a single route that was asked for is never all."""
    if report.unfinished or any(record.status == "skipped" for record in report.routes):
        return False
    return report.spec.search not in ("route", "engine") and len(report.routes) >= report.spec.planned


def ran_of_planned(report: TuningReport) -> str:
    """How many routes ran, in words."""
    if report.spec.search == "route":
        return "the one route that was asked for"
    if report.spec.search == "engine":
        return "the kept engine and what it is compared with"
    ran = sum(record.status != "skipped" for record in report.routes)
    return f"{ran} of {max(report.spec.planned, len(report.routes))} routes"


def _needed(records: Sequence[RouteRecord]) -> str:
    needed = [r.needed_epsilon for r in records if r.needed_epsilon is not None]
    finite = [value for value in needed if math.isfinite(value)]
    if finite:
        return f"the smallest epsilon at which one would pass: {rounded_up(min(finite))}."
    if needed:
        outputs = "outputs are missing, of another shape or not finite"
        return f"no epsilon would do: {outputs}, or the metric gave no number."
    return "no route is within the epsilon of every output."
