"""On the one process that sees all reports: collects records, concludes tunings, reports their verdicts."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_gptune.errors import GptuneError
from pytest_gptune.plugin.conclude import conclude
from pytest_gptune.plugin.figures import with_speedups
from pytest_gptune.plugin.known_engines import mark_inert
from pytest_gptune.plugin.late_routes import LateRoute, LateRoutes
from pytest_gptune.plugin.progress import Progress, best_so_far
from pytest_gptune.plugin.settings import report_paths
from pytest_gptune.plugin.state import GptuneWarning, state_of
from pytest_gptune.records.route_record import RouteRecord, TuningSpec
from pytest_gptune.reports.json_report import write_json_report
from pytest_gptune.reports.terminal import summary_lines, verdict_text
from pytest_gptune.reports.tuning_report import TuningReport
from pytest_gptune.verdict import Verdict

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter


@dataclass
class _Tuning:
    spec: TuningSpec
    records: dict[str, RouteRecord] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unfinished: str = ""


class Controller:
    """Collects the records of all routes and ends the run with a verdict for each tuning."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tunings: dict[str, _Tuning] = {}
        self._reports: list[TuningReport] = []
        self._progress = Progress(config)

    def receive(self, plain: Mapping[str, Any]) -> None:
        """Take the record of a route from its report."""
        spec = TuningSpec.from_plain(plain["spec"])
        record = RouteRecord.from_plain(plain["record"])
        tuning = self._tunings.setdefault(spec.tuning, _Tuning(spec))
        tuning.records[record.key] = record
        self._progress.route_ended(spec, tuning.records, spec.planned)

    def finish(self, session: pytest.Session) -> None:
        """Conclude every tuning and emit the reports of their verdicts; write the reports asked for."""
        session.testscollected += len(self._tunings)
        if (manager := self._config.pluginmanager.getplugin("terminalreporter")) and self._tunings:
            manager._numcollected = max(manager._numcollected, session.testscollected)
        ended_by = sys.exc_info()[1]
        interrupted = type(ended_by) is KeyboardInterrupt or isinstance(ended_by, pytest.exit.Exception)
        in_finals: KeyboardInterrupt | None = None
        for tuning in self._tunings.values():
            try:
                report = _interrupted(tuning) if interrupted else self._conclude(tuning, session)
            except KeyboardInterrupt as error:
                in_finals, interrupted = error, True
                report = _interrupted(tuning)
            self._reports.append(report)
            self._emit(report)
        for path in report_paths(self._config):
            try:
                write_json_report(path, self._reports)
            except GptuneError as error:
                raise pytest.UsageError(str(error)) from None
        if in_finals is not None:
            raise in_finals

    def summarise(self, reporter: TerminalReporter) -> None:
        """Show every tuning in the terminal summary."""
        if not self._reports:
            return
        reporter.section("gptune")
        width = reporter._tw.fullwidth
        for report in self._reports:
            for line in summary_lines(report, width, colour=reporter._tw.hasmarkup):
                reporter.write_line(line)

    def _conclude(self, tuning: _Tuning, session: pytest.Session) -> TuningReport:
        state, failure = state_of(self._config), ""
        try:
            self._search_on(tuning, session)
        except GptuneError as error:
            # What was measured until then is judged all the same, and the run fails.
            failure = tuning.unfinished = str(error)
        try:
            records = tuple(tuning.records.values())
            report = conclude(tuning.spec, records, state, tuning.unfinished)
        except GptuneError as error:
            report = TuningReport(
                tuning.spec,
                tuple(tuning.records.values()),
                Verdict("incomparable", "environment", message=str(error)),
            )
        if failure and report.verdict.outcome != "fail":
            failed = replace(report.verdict, outcome="fail", reason="search_failed", message=failure)
            report = replace(report, verdict=failed)
        ended = (tuning.unfinished,) if tuning.unfinished and not failure else ()
        return replace(report, notes=(*report.notes, *tuning.notes, *ended))

    def _search_on(self, tuning: _Tuning, session: pytest.Session) -> None:
        """Run the routes that a search proposes after its first ones.

        Not where the run was cut short, by -x or by what was selected: the search would go on from what it
        has not seen.
        """
        spec = tuning.spec
        late = LateRoutes(spec, state_of(self._config), tuning.records)
        if not late.may_follow:
            return
        records = tuning.records.values()
        if not any(record.status in ("passed", "inaccurate") for record in records):
            return  # nothing gave numbers: there is nothing to go on from
        if any(record.status == "passed" and record.latency is None for record in records):
            return  # the test measures nothing, or benchmarks are disabled
        if session.shouldfail or session.shouldstop:
            tuning.unfinished = f"the {spec.search} search was not continued: the run was stopped"
            return
        if len(tuning.records) < spec.planned:
            ran = f"only {len(tuning.records)} of its first {spec.planned} routes ran"
            tuning.unfinished = f"the {spec.search} search was not continued: {ran}"
            return
        tuning.records.update({r.key: r for r in _marked(spec, tuning.records)})
        count = 0
        try:
            for route in late.proposed():
                count += 1
                self._run_late(tuning, late, route, session)
        finally:
            tuning.unfinished = late.unfinished
            tuning.notes += late.notes
            if count:
                tuning.notes.append(
                    f"late:    {count} routes were built, checked and timed without the body of the test"
                )

    def _run_late(self, tuning: _Tuning, late: LateRoutes, route: LateRoute, session: pytest.Session) -> None:
        spec, hook = tuning.spec, self._config.hook
        session.testscollected += 1
        nodeid = spec.route_nodeid(route.record.id)
        location = (spec.file, None, nodeid.split("::", 1)[1].replace("::", "."))
        hook.pytest_runtest_logstart(nodeid=nodeid, location=location)
        start = time.time()
        try:
            record = late.run(route)
        except BaseException:
            hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)
            raise
        outcome = _route_outcome(record, spec.file)
        alone = f"python -m pytest '{spec.command_id}' '--gptune-route={record.key or 'default'}'"
        self._log_phases(nodeid, location, *outcome, start=start, sections=[("gptune", f"alone: {alone}")])
        self._progress.route_ended(spec, tuning.records, late.expected)

    def _log_phases(
        self,
        nodeid: str,
        location: tuple[str, int | None, str],
        outcome: Literal["passed", "failed", "skipped"],
        longrepr: Any,
        wasxfail: str = "",
        *,
        properties: list[tuple[str, object]] | None = None,
        sections: list[tuple[str, str]] | None = None,
        start: float = 0.0,
    ) -> None:
        """Reports of setup, call and teardown, as a test has them."""
        hook, stop = self._config.hook, time.time() if start else 0.0
        phases: tuple[tuple[Literal["setup", "call", "teardown"], Any, Any], ...] = (
            ("setup", "passed", None),
            ("call", outcome, longrepr),
            ("teardown", "passed", None),
        )
        for when, phase_outcome, phase_longrepr in phases:
            report = pytest.TestReport(
                nodeid=nodeid,
                location=location,
                keywords={},
                outcome=phase_outcome,
                longrepr=phase_longrepr,
                when=when,
                # JUnit takes them from the last phase, everything else from the call.
                user_properties=[] if when == "setup" else properties or [],
                start=start if when == "call" else stop,
                stop=stop,
                duration=stop - start if when == "call" else 0.0,
            )
            if sections and when == "call":
                report.sections += sections
            if wasxfail and when == "call":
                report.wasxfail = wasxfail
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)

    def _emit(self, report: TuningReport) -> None:
        """A report of its own for the verdict: setup, call and teardown, as a test's."""
        spec = report.spec
        outcome, longrepr = self._outcome(report)
        location = (spec.file, None, spec.gate_id.split("::", 1)[1].replace("::", "."))
        self._config.hook.pytest_runtest_logstart(nodeid=spec.gate_id, location=location)
        self._log_phases(spec.gate_id, location, outcome, longrepr, properties=_properties(report))
        if report.verdict.outcome == "ambiguous" and outcome == "passed":
            self._warn(spec.gate_id, verdict_text(report), location)

    def _outcome(self, report: TuningReport) -> tuple[Literal["passed", "failed", "skipped"], Any]:
        verdict, spec = report.verdict, report.spec
        text = verdict_text(report)
        # Asked for on purpose: there is nothing that a required baseline could add.
        asked_for = verdict.reason in ("written", "off")
        if verdict.outcome == "pass":
            return "passed", None
        if verdict.outcome == "fail":
            return "failed", text
        if verdict.outcome == "ambiguous":
            if spec.ambiguous_fails:
                return "failed", f"{text}\nini gptune_ambiguous = fail makes this a failure."
            return "passed", None
        if spec.require_baseline and not asked_for:
            return "failed", f"{text}\nini gptune_require_baseline makes this a failure."
        return "skipped", (spec.file, 0, f"Skipped: {text}")

    def _warn(self, nodeid: str, text: str, location: tuple[str, int | None, str]) -> None:
        import warnings

        message = warnings.WarningMessage(GptuneWarning(text), GptuneWarning, location[0], 0)
        self._config.hook.pytest_warning_recorded.call_historic(
            kwargs={"warning_message": message, "nodeid": nodeid, "when": "runtest", "location": None}
        )


def _interrupted(tuning: _Tuning) -> TuningReport:
    """Whoever interrupts a run does not want to wait for finals: what is known by now is told."""
    spec, records = tuning.spec, tuple(tuning.records.values())
    left = spec.planned - len(records)
    skipped = f" {left} of {spec.planned} routes were skipped." if left > 0 else ""
    found = best_so_far(spec, tuning.records)
    message = f"the run was interrupted, so nothing was judged; {found}.{skipped}"
    return TuningReport(
        spec,
        with_speedups(records, spec),
        Verdict("incomparable", "partial_run", message=message),
        notes=tuple(tuning.notes),
        unfinished="the run was interrupted",
    )


def _marked(spec: TuningSpec, records: Mapping[str, RouteRecord]) -> tuple[RouteRecord, ...]:
    guarded = frozenset(key for key in spec.baseline_keys.values() if key is not None)
    return mark_inert(tuple(records.values()), default_key=spec.default_key, guarded=guarded)


def _route_outcome(record: RouteRecord, file: str) -> tuple[Literal["passed", "failed", "skipped"], Any, str]:
    """Outcome, text and reason of an expected failure, as a test of the route would have them."""
    if record.status == "passed":
        return "passed", None, ""
    text = f"{record.status}: {record.error}"
    if record.status in ("inert", "skipped", "pruned"):
        return "skipped", (file, 0, f"Skipped: {text}"), ""
    return "skipped", text, f"reason: {text}"


def _properties(report: TuningReport) -> list[tuple[str, object]]:
    """What JUnit shows of a verdict."""
    verdict, winner = report.verdict, report.winning
    properties: list[tuple[str, object]] = [
        ("gptune_outcome", verdict.outcome),
        ("gptune_reason", verdict.reason),
        ("gptune_gate", verdict.gate),
    ]
    if winner is not None and winner.latency is not None:
        properties += [("gptune_winner", winner.id), ("gptune_latency_s", winner.latency.value)]
    if verdict.ratio is not None:
        properties.append(("gptune_ratio", verdict.ratio.value))
    return properties
