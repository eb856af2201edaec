"""Concludes a tuning when its routes have run: finals, winner, gate, verdict, baseline."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_gptune.accuracy import AccuracyGate, Case, Golden, load_golden
from pytest_gptune.engines.base import Backend, BackendMissingError, Environment
from pytest_gptune.errors import GptuneError, StorageError
from pytest_gptune.plugin.baseline_entry import new_entry, relative_to
from pytest_gptune.plugin.before_finals import (
    is_complete,
    ran_of_planned,
    told_of_another_model,
    verdict_before_finals,
)
from pytest_gptune.plugin.contest import Contest, make_contest
from pytest_gptune.plugin.figures import engine_notes, environment_facts, with_speedups
from pytest_gptune.plugin.finals_journal import FinalsJournal
from pytest_gptune.plugin.gating import Gating, compared_with, reference_of, unchanged_verdict
from pytest_gptune.plugin.kept_engines import keep_winner
from pytest_gptune.plugin.known_engines import mark_inert
from pytest_gptune.plugin.run import find_case
from pytest_gptune.plugin.state import State
from pytest_gptune.plugin.winner import find_winner, with_finals
from pytest_gptune.records.baseline import (
    Baseline,
    BaselineEntry,
    BaselineSchemaError,
    load_baseline,
    save_baseline,
    select_entry,
)
from pytest_gptune.records.fingerprint import DEVICE, SOFTWARE, Fingerprint
from pytest_gptune.records.graphs import baseline_kind, set_apart
from pytest_gptune.records.history import old_model, required_root
from pytest_gptune.records.route_record import RouteRecord, TuningSpec
from pytest_gptune.reports.layers import layer_difference, layer_times
from pytest_gptune.reports.tuning_report import TuningReport
from pytest_gptune.storage import locked, scratch_folder
from pytest_gptune.verdict import Change, Verdict, choose_gate


def conclude(
    spec: TuningSpec, records: Sequence[RouteRecord], state: State, unfinished: str = ""
) -> TuningReport:
    """The report of a tuning whose routes have run, with the verdict that counts.

    Args:
        spec: the tuning.
        records: of its routes.
        state: of this process.
        unfinished: why the search is not at its end; empty when it is.

    Raises:
        GptuneError: golden, baseline or backend cannot be used any more.
    """
    guarded = frozenset(key for key in spec.baseline_keys.values() if key is not None)
    records = mark_inert(records, default_key=spec.default_key, guarded=guarded)
    records = set_apart(records, spec.default_key)
    backend = state.backend(spec.backend)
    environment = backend.environment(spec.options)
    report = TuningReport(
        spec=spec,
        routes=with_speedups(records, spec),
        verdict=Verdict("incomparable", "partial_run"),
        environment=environment_facts(environment),
        unfinished=unfinished,
        notes=engine_notes(records),
    )
    path = Path(spec.golden_path)
    golden = load_golden(path) if path.exists() else None
    if golden is not None:
        case = find_case(golden, next((r.timed_case for r in records if r.timed_case is not None), None))
        shapes = {name: tuple(array.shape) for name, array in case.inputs.items()}
        report = replace(report, shapes=shapes, cases=tuple(c.name for c in golden.cases))
    verdict = verdict_before_finals(report)
    if verdict is not None and golden is not None:
        verdict = told_of_another_model(verdict, golden, spec.model_sha256)
    if verdict is not None or golden is None:
        return state.own_verdict(replace(report, verdict=verdict or report.verdict))
    # By first measurements, which a run that is resumed has as well.
    waiting = frozenset(r.key for r in records if r.latency is not None and r.latency.at_hosts_pace)
    conclusion = _Conclusion(report, state, backend, environment, golden, case, waiting, report.notes)
    judged = conclusion.report()
    return judged if conclusion.asked else state.own_verdict(judged)


@dataclass
class _Conclusion:
    """The steps that need goldens, finals and the baseline."""

    _report: TuningReport
    _state: State
    _backend: Backend
    _environment: Environment
    _golden: Golden
    _case: Case
    _at_hosts_pace: frozenset[str]
    _notes: tuple[str, ...] = ()
    asked: bool = False

    def report(self) -> TuningReport:
        """Run what has to be measured, and judge it."""
        spec = self._report.spec
        baseline, schema_error = self._baseline()
        entry, why = self._entry(baseline)
        entry_key = spec.baseline_keys.get(entry.route) if entry else None
        missing = self._missing(entry, entry_key)
        if missing is not None:
            return self._done(missing)
        change = self._change(entry, entry_key, entry_key) if entry else None
        if spec.search == "replay" and entry and change and self._is_unchanged(change):
            record = self._report.record(entry_key or "")
            if record and record.latency and not spec.update_baseline and not spec.save_engine:
                foreign = entry.device_class != self._environment.device_class
                verdict = unchanged_verdict(record.latency.value, entry, foreign=foreign)
                return self._done(replace(verdict, changed=change.device), winner=entry_key)
        with ExitStack() as stack:
            contest = self._contest(stack, entry, entry_key, change)
            contest.run()
            self._take_finals(contest)
            report = self._judge(contest, baseline, entry, entry_key, why, schema_error)
            report = self._with_layers(report, contest)
            if contest.journal is not None and contest.journal.restored:
                made = contest.journal.restored
                note = f"finals:  {made} rounds of builds are of an earlier run, from the tuning cache"
                report = replace(report, notes=(*report.notes, note))
            return self._with_engine_kept(report, contest)

    def _with_layers(self, report: TuningReport, contest: Contest) -> TuningReport:
        """The report with what the compiler made otherwise of the winner than of the default."""
        if contest.not_inspected:
            report = replace(
                report, notes=(*report.notes, f"layers:  could not be timed: {contest.not_inspected}")
            )
        before = contest.chosen_build(report.spec.default_key, described=True)
        after = contest.chosen_build(report.winner or "", described=True)
        if before is None or after is None:
            return report
        timed = before.layer_times and after.layer_times
        return replace(
            report,
            layers=layer_difference(before.layers, after.layers) if before.layers and after.layers else (),
            layer_times=layer_times(before.layer_times, after.layer_times) if timed else (),
        )

    def _with_engine_kept(self, report: TuningReport, contest: Contest) -> TuningReport:
        """The report, after the winner's engine was kept where that is asked for.

        A failed verdict keeps nothing: what is in the folder is to be shipped.
        """
        if report.winning is None or not report.spec.save_engine:
            return report
        if not self.asked:
            self.asked = True
            report = self._state.own_verdict(report)
        winner = report.winning
        if winner is None or report.verdict.outcome == "fail":
            return report
        try:
            notes = keep_winner(report.spec, winner, contest, self._environment)
        except StorageError as error:
            message = f"the winner's engine was not kept: {error}"
            return replace(report, verdict=Verdict("fail", "not_written", message=message))
        return replace(report, notes=(*report.notes, *notes))

    def _baseline(self) -> tuple[Baseline, GptuneError | None]:
        try:
            return load_baseline(Path(self._report.spec.baseline_path)) or Baseline(), None
        except BaselineSchemaError as error:
            return Baseline(), error

    def _entry(self, baseline: Baseline) -> tuple[BaselineEntry | None, str]:
        kinds = [
            baseline_kind(record.latency.latency_kind, graph_missing=record.graph_missing)
            for record in self._report.routes
            if record.latency
        ]
        return select_entry(
            baseline.of_backend(self._report.spec.backend).entries,
            device_class=self._environment.device_class,
            shapes=self._report.shapes,
            latency_kind=kinds[0] if kinds else None,
        )

    def _missing(self, entry: BaselineEntry | None, entry_key: str | None) -> Verdict | None:
        """The verdict where a route that every comparison needs did not run."""
        spec = self._report.spec
        if spec.update_baseline:
            # What was there is replaced, whatever has become of its route.
            entry = entry_key = None
        if entry is not None and entry_key is None and spec.search == "replay":
            return self._unavailable(entry)
        untold = " The baseline was not updated." if spec.update_baseline else ""
        needed = {"default": spec.default_key} | ({"baseline's": entry_key} if entry_key is not None else {})
        absent = [name for name, key in needed.items() if self._report.record(key) is None]
        if absent:
            message = f"the {' and the '.join(absent)} route did not run, so nothing can be judged.{untold}"
            return Verdict("incomparable", "partial_run", message=message)
        baseline_record = None if entry_key is None else self._report.record(entry_key)
        if baseline_record is not None and baseline_record.status == "test_failed":
            message = "the baseline's route failed its own test, so nothing can be judged."
            return Verdict("incomparable", "partial_run", message=message)
        if not any(record.latency for record in self._report.routes if record.status == "passed"):
            return Verdict(
                "incomparable",
                "partial_run",
                message=f"no latency was measured in this run (gptune_benchmark was not "
                f"called, or --benchmark-disable was given).{untold}",
            )
        return None

    def _change(self, entry: BaselineEntry, entry_key: str | None, winner: str | None) -> Change:
        spec = self._report.spec
        now = Fingerprint.of(self._environment)
        return Change(
            model=entry.model_sha256 != spec.model_sha256,
            route=entry_key != winner,
            software=tuple(now.changes(entry.fingerprint, SOFTWARE)),
            device=tuple(now.changes(entry.fingerprint, DEVICE)),
            defaults=entry.defaults_digest != spec.defaults_digest,
            golden=entry.golden_sha256 != self._golden_sha256(),
        )

    def _is_unchanged(self, change: Change) -> bool:
        return choose_gate(self._gate(), change, old_model=False) == "unchanged"

    def _gate(self) -> Any:
        return self._report.spec.gate

    def _golden_sha256(self) -> str:
        return hashlib.sha256(Path(self._report.spec.golden_path).read_bytes()).hexdigest()

    def _contest(
        self, stack: ExitStack, entry: BaselineEntry | None, entry_key: str | None, change: Change | None
    ) -> Contest:
        spec = self._report.spec
        old = None
        if (
            entry
            and change
            and change.model
            and self._gate() in ("auto", "paired")
            and not spec.update_baseline
        ):
            old = self._old_model(stack, entry)
        assert spec.epsilon is not None  # a route has passed, so there was one
        gate = AccuracyGate(self._state.metric(spec.metric), spec.epsilon, spec.atol, spec.rtol)
        return make_contest(
            spec,
            {record.key: record for record in self._report.routes},
            backend=self._backend,
            gate=gate,
            golden=self._golden,
            case=self._case,
            guarded=entry_key,
            old_model=old,
            folder=stack.enter_context(scratch_folder()),
            reference_backend=self._reference_backend(entry, not (change and change.model and old is None)),
            journal=FinalsJournal.of(spec, self._state),
            lock=self._state.device_lock,
        )

    def _reference_backend(self, entry: BaselineEntry | None, has_model: bool) -> Backend | None:
        """The backend under the interpreter of ``--gptune-reference-python``, None where none is asked for.

        Nor where the baseline's model cannot be had: another one would be compared.
        """
        spec = self._report.spec
        backend = self._state.reference_backend(spec.backend)
        if backend is None or entry is None or not has_model or self._gate() not in ("auto", "paired"):
            return None
        try:
            backend.check_available(spec.options)
            version = backend.environment(spec.options).software.get("backend", spec.backend)
        except GptuneError as error:
            # Of a log the last line is the error; what stands before it is the traceback of our own worker.
            raise BackendMissingError(
                f"the reference engine cannot be built: {error.what}",
                where=f"--gptune-reference-python, {backend.python}",
                mend="install it there (numpy and the backend's package are enough), or name another one",
                log=error.log[-1:],
            ) from None
        self._notes += (f"reference engine: built by {version} of --gptune-reference-python",)
        return backend

    def _old_model(self, stack: ExitStack, entry: BaselineEntry) -> tuple[Path, str] | None:
        spec = self._report.spec
        try:
            root = required_root(Path(spec.baseline_path).parent)
            folder = stack.enter_context(scratch_folder())
            model = old_model(
                root=root,
                baseline=Path(spec.baseline_path),
                model_path=entry.model_path,
                sha256=entry.model_sha256,
                into=folder,
                against=spec.against,
            )
        except GptuneError as error:
            self._notes += (f"no paired gate: {error}",)
            return None
        self._notes += (f"reference engine: {entry.model_path} of commit {model.commit[:12]}",)
        return model.path, entry.model_sha256

    def _take_finals(self, contest: Contest) -> None:
        """Put the figures of the finals into the records."""
        self._report = with_finals(self._report, contest)

    def _winner(self, contest: Contest, entry_key: str | None) -> tuple[str | None, tuple[str, ...]]:
        self._report, choice = find_winner(self._report, contest, entry_key, self._at_hosts_pace)
        self._notes += choice.notes
        return choice.winner, choice.close

    def _judge(
        self,
        contest: Contest,
        baseline: Baseline,
        entry: BaselineEntry | None,
        entry_key: str | None,
        why: str,
        schema_error: GptuneError | None,
    ) -> TuningReport:
        spec = self._report.spec
        winner, close = self._winner(contest, entry_key)
        if entry_key is not None and entry_key in contest.result.failures:
            message = f"the baseline's route, built again: {contest.result.failures[entry_key]}"
            return self._done(Verdict("fail", "baseline_route_inaccurate", message=message))
        if winner is None:
            return self._done(Verdict("fail", "no_route_passes", message=self._why_none(contest)))
        if spec.update_baseline:
            self.asked = True
            asked = self._state.own_verdict(self._done(Verdict("new", "written"), winner, close))
            if asked.verdict.outcome == "fail":
                return asked.saying("The baseline was not written.")
            return self._done(self._update(contest, baseline, winner), winner, close)
        if schema_error is not None:
            message = f"{schema_error.what}: {schema_error.mend}."
            return self._done(Verdict("incomparable", "schema", message=message), winner, close)
        if entry is None:
            return self._done(self._no_entry(baseline, why), winner, close)
        if entry_key is None:
            return self._done(self._unavailable(entry), winner, close)
        change = self._change(entry, entry_key, winner)
        if self._gate() == "off":
            return self._done(
                Verdict("incomparable", "off", "off", changed=change.lines(), message="the gate is off."),
                winner,
                close,
            )
        reference = reference_of(
            winner=winner, entry_key=entry_key, model_changed=change.model, contest=contest
        )
        gate = choose_gate(
            self._gate(),
            change,
            old_model=reference is not None,
            old_stack=contest.reference_backend is not None,
        )
        gating = Gating(
            spec,
            contest,
            winner,
            entry,
            change,
            reference,
            foreign=entry.device_class != self._environment.device_class,
        )
        stack_unseen = gate == "paired" and change.stack and contest.reference_backend is None
        verdict = (
            gating.verdict_of_both() if stack_unseen and self._gate() == "auto" else gating.verdict(gate)
        )
        self._take_finals(contest)  # the gate may have measured again
        if winner in contest.result.failures:
            # Built once more it failed, so it is no winner; each time there is one route less.
            return self._judge(contest, baseline, entry, entry_key, why, schema_error)
        # Where it is not certain that the new engine is no slower, a new baseline would accept that it is.
        tuning_helps = verdict.outcome not in ("fail", "ambiguous") and (
            change.model or change.stack or change.device
        )
        if spec.search == "replay" and tuning_helps:
            advised = verdict.saying("Tuning again is worth while.")
            verdict = replace(advised, command=_tune_command(spec))
        return self._done(verdict, winner, close)

    def _why_none(self, contest: Contest) -> str:
        """That no route stood the finals, and what stopped the first of them."""
        ids = {record.key: record.id for record in self._report.routes}
        reasons = (f"; {ids[key]}: {error}" for key, error in contest.result.failures.items() if key in ids)
        return "no route passed when built again" + next(reasons, ".")

    def _unavailable(self, entry: BaselineEntry) -> Verdict:
        spec = self._report.spec
        return Verdict(
            "incomparable",
            "route_unavailable",
            message=f"the baseline's route '{entry.route}' is not in the knob space of "
            f"{spec.backend} {self._environment.tuner_version} on this machine: tune again.",
            command=_tune_command(spec),
            baseline=compared_with(entry),
        )

    def _no_entry(self, baseline: Baseline, why: str) -> Verdict:
        spec = self._report.spec
        command = _tune_command(spec)
        if why == "new":
            return Verdict("new", "new", message="no baseline yet: make one and commit it.", command=command)
        entries = baseline.of_backend(spec.backend).entries
        have = "; ".join(
            sorted(
                {
                    e.latency_kind if why == "kind" else str({k: list(v) for k, v in e.shapes.items()})
                    for e in entries
                }
            )
        )
        message = f"the baseline has other {why}: {have}."
        return Verdict("incomparable", why, message=message, command=command)

    def _update(self, contest: Contest, baseline: Baseline, winner: str) -> Verdict:
        spec = self._report.spec
        if not is_complete(self._report):
            why = self._report.unfinished or f"only {ran_of_planned(self._report)} ran"
            message = f"{why}: the baseline was not updated."
            return Verdict("incomparable", "partial_run", message=message)
        contest.calibrate(winner, winner)
        if not contest.standing(winner):
            error = contest.result.failures.get(winner)
            return Verdict("fail", "no_route_passes", message=f"the winner failed when built again: {error}")
        entry = new_entry(
            self._report, contest, winner, Fingerprint.of(self._environment), self._golden_sha256()
        )
        path = Path(spec.baseline_path)
        try:
            # Read again: another run may have added an entry of its own while this one measured.
            with locked(path.with_suffix(".update")):
                present, schema_error = self._baseline()
                save_baseline(path, (baseline if schema_error else present).with_entry(entry))
        except StorageError as error:
            return Verdict("fail", "not_written", message=f"the baseline was not written: {error}")
        return Verdict(
            "new",
            "written",
            message=f"the baseline was written: commit {relative_to(path, Path(spec.root))} with the model.",
            baseline=compared_with(entry),
        )

    def _done(
        self, verdict: Verdict, winner: str | None = None, co_winners: tuple[str, ...] = ()
    ) -> TuningReport:
        return replace(self._report, verdict=verdict, winner=winner, co_winners=co_winners, notes=self._notes)


def _tune_command(spec: TuningSpec) -> str:
    search = spec.search if spec.search not in ("replay", "route", "engine") else "fast"
    return f"python -m pytest '{spec.command_id}' --gptune-search {search} --gptune-update-baseline"
