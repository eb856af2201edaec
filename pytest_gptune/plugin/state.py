"""What one pytest process keeps while it runs: backends, knob spaces, plans, goldens. Nothing is global."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

from pytest_gptune.accuracy import BUILTIN_METRICS, Golden, Metric, find_metric, load_golden
from pytest_gptune.engines.base import Backend, Environment, ModelInfo
from pytest_gptune.engines.in_process import InProcessBackend
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.registry import check_registered, load_backend
from pytest_gptune.engines.worker import WorkerBackend
from pytest_gptune.errors import GptuneError
from pytest_gptune.plugin.command_line import find_interpreter
from pytest_gptune.plugin.device_lock import DeviceLock
from pytest_gptune.plugin.hook_answers import (
    FILTER,
    ask_hook,
    checked_metric,
    checked_search,
    hook_failure,
)
from pytest_gptune.plugin.known_engines import KnownEngines
from pytest_gptune.plugin.progress import Progress
from pytest_gptune.records.cache_files import read_existing
from pytest_gptune.records.priors import helpful_values
from pytest_gptune.records.tuning_cache import CacheError
from pytest_gptune.reports.tuning_report import TuningReport
from pytest_gptune.routes import KnobSpace, Route, RouteExpression
from pytest_gptune.search import SEARCHES, Search, create
from pytest_gptune.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from pytest_gptune.plugin.cache_use import CacheUse
    from pytest_gptune.plugin.plan import Plan, Unavailable

# A build may take many minutes; a hang must still end.
ROUTE_TIMEOUT_S = 3600.0


class GptuneWarning(pytest.PytestWarning):
    """An ambiguous verdict, or a tuning cache that cannot be written."""


@dataclass
class State:
    """Kept on the configuration's stash; every answer is computed once."""

    config: pytest.Config
    plans: dict[str, Plan | GptuneError | Unavailable] = field(default_factory=dict)
    best_s: dict[str, float] = field(default_factory=dict)
    engines: dict[str, KnownEngines] = field(default_factory=dict)
    _hints: dict[tuple[Path, ...], dict[tuple[str, str], float]] = field(default_factory=dict)
    _spent_s: dict[str, float] = field(default_factory=dict)
    timed_cases: dict[str, str] = field(default_factory=dict)
    updated_goldens: set[Path] = field(default_factory=set)
    _backends: dict[str, WorkerBackend | InProcessBackend] = field(default_factory=dict)
    _models: dict[tuple[Path, int, int], ModelInfo] = field(default_factory=dict)
    _spaces: dict[tuple[str, str, str], KnobSpace] = field(default_factory=dict)
    _environments: dict[tuple[str, str], Environment] = field(default_factory=dict)
    _goldens: dict[tuple[Path, int, int], Golden] = field(default_factory=dict)

    @cached_property
    def device_lock(self) -> DeviceLock:
        """Held while an engine is built, checked or timed in this process."""
        return DeviceLock(Progress(self.config).write)

    @cached_property
    def cache(self) -> CacheUse | None:
        """The tuning cache, None where none was asked for."""
        from pytest_gptune.plugin.cache_use import CacheUse

        path = self.setting("cache", None)
        if path is None:
            return None
        resuming = bool(self.config.getoption("gptune_continue"))
        return CacheUse(self.config.invocation_params.dir / path, self, resuming=resuming)

    def writing_cache(self, write: Callable[[CacheUse], None]) -> None:
        """Write to the tuning cache; where that fails it is said once, and the run goes on without."""
        if self.cache is None:
            return
        try:
            write(self.cache)
        except GptuneError as error:
            warnings.warn(GptuneWarning(f"the tuning cache is not written any more: {error}"), stacklevel=2)
            self.cache = None

    def known_engines(self, tuning: str) -> KnownEngines:
        """The engines of a tuning that this process has seen."""
        return self.engines.setdefault(tuning, KnownEngines())

    def spend(self, tuning: str, seconds: float, *, at_least: float = 0.0) -> None:
        """Count the seconds that a route of a tuning took; ``at_least`` is what is known of all of them."""
        self._spent_s[tuning] = max(self._spent_s.get(tuning, 0.0) + seconds, at_least)

    def budget_is_spent(self, tuning: str, budget_s: float | None) -> bool:
        """Whether the routes of a tuning have taken their time; what other tests take does not count."""
        return budget_s is not None and self._spent_s.get(tuning, 0.0) >= budget_s

    def search(
        self, name: str, expression: RouteExpression, where: str, *, max_routes: int, mixed_max_routes: int
    ) -> Search:
        """The search called ``name``, asking the hook for one that is not built in.

        Raises:
            RouteError: there is none, or it begins with too many routes.
            GptuneError: the hook failed, or what it gave is no search.
        """
        if name not in SEARCHES:
            own = ask_hook(self.config, "pytest_gptune_search", where, name=name, expression=expression)
            if own is not None:
                return checked_search(own, name, where, max_routes)
        return create(name, expression, max_routes=max_routes, mixed_max_routes=mixed_max_routes)

    def hints(self, priors: tuple[Path, ...]) -> dict[tuple[str, str], float]:
        """For knob and value what it made of the latency in earlier caches, where it helped.

        Raises:
            CacheError: a file is missing, or is no tuning cache.
        """
        if priors not in self._hints:
            contents = []
            for path in priors:
                try:
                    contents.append(read_existing(path))
                except GptuneError as error:
                    raise CacheError(error.what, where=f"--gptune-prior, {path}", mend=error.mend) from None
            found = helpful_values(contents) if contents else ()
            self._hints[priors] = {(hint.knob, hint.value): hint.ratio for hint in found}
        return self._hints[priors]

    def vetoes(self, nodeid: str, routes: Sequence[Route]) -> dict[Route, str]:
        """Routes that a hook vetoes, with the reasons.

        Raises:
            GptuneError: the hook failed.
        """
        found: dict[Route, str] = {}
        for vetoed in ask_hook(self.config, FILTER, nodeid, nodeid=nodeid, routes=routes):
            try:
                found.update({route: str(reason) for route, reason in dict(vetoed).items()})
            except Exception as error:  # it gave anything but a mapping
                raise hook_failure(FILTER, error, nodeid) from error
        return found

    def own_verdict(self, report: TuningReport) -> TuningReport:
        """The report with the verdict that a hook gives; a hook that fails is a failed verdict."""
        message = ""
        try:
            own = self.config.hook.pytest_gptune_verdict(report=report)
        except Exception as error:  # whatever a conftest.py raises
            own, message = error, f"pytest_gptune_verdict: {type(error).__name__}: {error}"
        if own is None:
            return report
        if not isinstance(own, Verdict):
            message = message or f"pytest_gptune_verdict returned {own!r}, which is no Verdict"
            own = Verdict("fail", "hook_failed", message=message)
        elif own.outcome not in get_args(Outcome):
            # Of a word that nobody knows nothing would follow, and the gate would be off.
            message = f"pytest_gptune_verdict returned the outcome {own.outcome!r}, which is none of "
            message += ", ".join(get_args(Outcome))
            own = Verdict("fail", "hook_failed", message=message)
        return replace(report, verdict=own)

    def backend(self, name: str) -> WorkerBackend | InProcessBackend:
        """The backend called ``name``, isolated in worker processes unless that is switched off."""
        if name not in self._backends:
            check_registered(name)
            if self.setting("isolation", "process") == "none":
                self._backends[name] = InProcessBackend(load_backend(name))
            else:
                timeout_s = float(self.setting("route_timeout", ROUTE_TIMEOUT_S))
                self._backends[name] = WorkerBackend(name, route_timeout_s=timeout_s)
        return self._backends[name]

    def reference_backend(self, name: str) -> WorkerBackend | None:
        """The backend under another interpreter, None where none is asked for."""
        python = self.setting("reference_python", None)
        if python is None:
            return None
        key = f"{name} under {python}"
        if key not in self._backends:
            path = find_interpreter(python, self.config.invocation_params.dir)
            timeout_s = float(self.setting("route_timeout", ROUTE_TIMEOUT_S))
            self._backends[key] = WorkerBackend(name, route_timeout_s=timeout_s, python=path)
        found = self._backends[key]
        assert isinstance(found, WorkerBackend)
        return found

    def setting(self, name: str, default: Any) -> Any:
        """An option that holds for the whole run: command line over ini."""
        for value in (self.config.getoption(f"gptune_{name}"), self.config.getini(f"gptune_{name}")):
            if value not in (None, ""):
                return value
        return default

    def close(self) -> None:
        """End all workers."""
        for backend in self._backends.values():
            backend.close()
        self._backends.clear()

    def model(self, path: Path) -> ModelInfo:
        """Signature and digest of a model; read again only if the file changed."""
        key = _file_key(path)
        if key is None:
            return inspect_model(path)
        if key not in self._models:
            self._models[key] = inspect_model(path)
        return self._models[key]

    def environment(self, backend: Backend, options: Mapping[str, Any]) -> Environment:
        """The machine and software of a backend, as of the first time it was asked."""
        key = backend.name, json.dumps(dict(options), sort_keys=True)
        if key not in self._environments:
            self._environments[key] = backend.environment(options)
        return self._environments[key]

    def space(self, backend: Backend, model: ModelInfo | None, options: Mapping[str, Any]) -> KnobSpace:
        """The knob space of a backend for a model."""
        key = (backend.name, model.sha256 if model else "", json.dumps(dict(options), sort_keys=True))
        if key not in self._spaces:
            self._spaces[key] = KnobSpace.from_json(backend.knob_space(model, options))
        return self._spaces[key]

    def golden(self, path: Path) -> Golden:
        """A golden; read again only if the file changed."""
        key = _file_key(path)
        if key is None:
            return load_golden(path)
        if key not in self._goldens:
            self._goldens[key] = load_golden(path)
        return self._goldens[key]

    def metric(self, name: str) -> str | Metric:
        """The metric a name stands for, asking the hook for one that is not built in.

        Raises:
            GptuneError: there is none, or the hook failed.
        """
        if name in BUILTIN_METRICS:
            return name
        own = ask_hook(self.config, "pytest_gptune_metric", "", name=name)
        return find_metric(name, {} if own is None else {name: checked_metric(own)})


_STATE = pytest.StashKey[State]()


def close_state(config: pytest.Config) -> None:
    """End what the state holds; nothing where there is none."""
    state = config.stash.get(_STATE, None)
    if state is not None:
        state.close()


def state_of(config: pytest.Config) -> State:
    """The state of this process."""
    if _STATE not in config.stash:
        config.stash[_STATE] = State(config)
    return config.stash[_STATE]


def _file_key(path: Path) -> tuple[Path, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return path, stat.st_mtime_ns, stat.st_size
