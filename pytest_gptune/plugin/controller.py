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
from pytest_gptune.plugin.known_engines import mark_inert
from pytest_gptune.plugin.late_routes import LateRoutes
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
        try:
            self._search_on(tuning, session)
            report = conclude(tuning.spec, tuple(tuning.records.values()), state_of(self._config))
        except GptuneError as error:
            report = TuningReport(
                tuning.spec,
                tuple(tuning.records.values()),
                Verdict("incomparable", "environment", message=str(error)),
            )
        report = replace(report, notes=(*report.notes, *tuning.notes))
        own = self._config.hook.pytest_gptune_verdict(report=report)
        return report if own is None else replace(report, verdict=own)

    def _search_on(self, tuning: _Tuning, session: pytest.Session) -> None:
        """Run the routes that a search proposes after its first ones.

        Not where the run was cut short, by -x or by what was selected: the search would go on from what it
        has not seen.
        """
        spec = tuning.spec
        late = LateRoutes(spec, state_of(self._config), tuning.records)
        if not late.may_follow or session.shouldfail or session.shouldstop:
            return
        if not any(record.status in ("passed", "inaccurate") for record in tuning.records.values()):
            return  # nothing gave numbers: there is nothing to go on from
        if len(tuning.records) < spec.planned:
            tuning.notes.append(
                f"the {spec.search} search was not continued: "
                f"only {len(tuning.records)} of its first {spec.planned} routes ran"
            )
            return
        tuning.records.update({r.key: r for r in _marked(spec, tuning.records)})
        try:
            for route in late.proposed():
                session.testscollected += 1
                nodeid = spec.route_nodeid(route.record.id)
                location = (spec.file, None, nodeid.split("::", 1)[1].replace("::", "."))
                self._config.hook.pytest_runtest_logstart(nodeid=nodeid, location=location)
                start = time.time()
                record = late.run(route)
                self._log_phases(nodeid, location, *_route_outcome(record, spec.file), start=start)
                self._progress.route_ended(spec, tuning.records, late.expected)
        finally:
            tuning.notes += late.notes

    def _log_phases(
        self,
        nodeid: str,
        location: tuple[str, int | None, str],
        outcome: Literal["passed", "failed", "skipped"],
        longrepr: Any,
        wasxfail: str = "",
        *,
        properties: list[tuple[str, object]] | None = None,
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
    """Whoever interrupts a run does not want to wait for finals."""
    found = best_so_far(tuning.spec, tuning.records)
    message = f"the run was interrupted, so nothing was judged; {found}."
    return TuningReport(
        tuning.spec,
        tuple(tuning.records.values()),
        Verdict("incomparable", "partial_run", message=message),
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
