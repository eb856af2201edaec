"""On the one process that sees all reports: collects records, concludes tunings, reports their verdicts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_gptune.errors import GptuneError
from pytest_gptune.plugin.conclude import conclude
from pytest_gptune.plugin.settings import report_paths
from pytest_gptune.plugin.state import GptuneWarning, state_of
from pytest_gptune.records.route_record import RouteRecord, TuningSpec
from pytest_gptune.reports.json_report import write_json_report
from pytest_gptune.reports.terminal import summary_lines, verdict_text
from pytest_gptune.reports.tuning_report import TuningReport
from pytest_gptune.verdict import Verdict

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

_EXPLAIN_AFTER = 4


@dataclass
class _Tuning:
    spec: TuningSpec
    records: dict[str, RouteRecord] = field(default_factory=dict)


class Controller:
    """Collects the records of all routes and ends the run with a verdict for each tuning."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tunings: dict[str, _Tuning] = {}
        self._reports: list[TuningReport] = []

    def receive(self, plain: Mapping[str, Any]) -> None:
        """Take the record of a route from its report."""
        spec = TuningSpec.from_plain(plain["spec"])
        record = RouteRecord.from_plain(plain["record"])
        tuning = self._tunings.setdefault(spec.tuning, _Tuning(spec))
        tuning.records[record.key] = record
        if len(tuning.records) == 1:
            self._estimate(spec, record)

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
                report = _interrupted(tuning) if interrupted else self._conclude(tuning)
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

    def _conclude(self, tuning: _Tuning) -> TuningReport:
        try:
            return conclude(tuning.spec, tuple(tuning.records.values()), state_of(self._config))
        except GptuneError as error:
            return TuningReport(
                tuning.spec,
                tuple(tuning.records.values()),
                Verdict("incomparable", "environment", message=str(error)),
            )

    def _estimate(self, spec: TuningSpec, record: RouteRecord) -> None:
        """After the first route, say how long the search will take."""
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is None or spec.planned < _EXPLAIN_AFTER or record.wall_s <= 0:
            return
        total = record.wall_s * spec.planned
        reporter.ensure_newline()
        if reporter._tw.width_of_current_line:  # with -q the line has no file name, only dots
            reporter._tw.line()
        reporter.write_line(
            f"gptune: {spec.tuning}: {spec.planned} routes at about {record.wall_s:.1f} s: "
            f"about {_duration(total)} and the finals"
        )

    def _emit(self, report: TuningReport) -> None:
        """A report of its own for the verdict: setup, call and teardown, as a test's."""
        spec = report.spec
        outcome, longrepr = self._outcome(report)
        location = (spec.file, None, spec.gate_id.split("::", 1)[1].replace("::", "."))
        hook = self._config.hook
        hook.pytest_runtest_logstart(nodeid=spec.gate_id, location=location)
        phases: tuple[tuple[Literal["setup", "call", "teardown"], Any, Any], ...] = (
            ("setup", "passed", None),
            ("call", outcome, longrepr),
            ("teardown", "passed", None),
        )
        for when, phase_outcome, phase_longrepr in phases:
            hook.pytest_runtest_logreport(
                report=pytest.TestReport(
                    nodeid=spec.gate_id,
                    location=location,
                    keywords={},
                    outcome=phase_outcome,
                    longrepr=phase_longrepr,
                    when=when,
                    # JUnit takes them from the last phase, everything else from the call.
                    user_properties=[] if when == "setup" else _properties(report),
                )
            )
        hook.pytest_runtest_logfinish(nodeid=spec.gate_id, location=location)
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
    message = "the run was interrupted, so nothing was judged."
    return TuningReport(
        tuning.spec,
        tuple(tuning.records.values()),
        Verdict("incomparable", "partial_run", message=message),
    )


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


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
