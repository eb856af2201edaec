"""Routes that a search proposes when it has seen results: run on the controlling process, from plain data.

The test's body is not run for them. Each is built, checked against the golden and timed as the fixtures do
it, and has a report of its own, with the node id that a test of the route would have.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_gptune.accuracy import AccuracyGate, Case, Golden, load_golden
from pytest_gptune.engines.base import BuildRequest, Engine, RouteFailureError, ShapeRange
from pytest_gptune.errors import GptuneError
from pytest_gptune.plugin.confirmation import Confirmation
from pytest_gptune.plugin.contest import Contest
from pytest_gptune.plugin.finals_journal import FinalsJournal
from pytest_gptune.plugin.golden_making import golden_shapes
from pytest_gptune.plugin.kept_engines import keep_route_engine
from pytest_gptune.plugin.run import RouteRun, RouteStopped, find_case, route_pairs
from pytest_gptune.plugin.state import State
from pytest_gptune.records.graphs import set_apart
from pytest_gptune.records.route_record import RouteRecord, TuningSpec
from pytest_gptune.routes import KnobSpace, Route, RouteExpression
from pytest_gptune.search import MixedSearch, RouteResult, Search
from pytest_gptune.timing.finals import FinalsPlan

# Builds of each route on whose gain the combinations of mixed depend.
_CONFIRMING_BUILDS = 3

# Searches whose routes are all known when tests are collected.
_WHOLE = frozenset({"replay", "route", "engine", "fast", "full"})


@dataclass(frozen=True)
class LateRoute:
    """A route that is about to be run.

    Attributes:
        record: what is known of it before.
        veto: why it must not be built, empty where it may be.
    """

    record: RouteRecord
    veto: str


@dataclass
class LateRoutes:
    """The late routes of one tuning.

    Attributes:
        spec: the tuning.
        state: of this process.
        records: of all routes so far, by key; grows.
        notes: sentences for the report.
        expected: how many routes are known to come, those that ran included.
        unfinished: why the search is not at its end; empty when it is.
    """

    spec: TuningSpec
    state: State
    records: dict[str, RouteRecord]
    notes: list[str] = field(default_factory=list)
    expected: int = 0
    unfinished: str = ""
    _confirming: Confirmation | None = None

    @property
    def may_follow(self) -> bool:
        """Whether the search may propose routes after its first ones."""
        return self.spec.search not in _WHOLE and not self.spec.build_only

    def proposed(self) -> Iterator[LateRoute]:
        """One route after another; each has to be run before the next is asked for.

        Raises:
            GptuneError: backend or model cannot be used any more, or the search fails.
        """
        spec = self.spec
        space = self._space()
        self._note_engines()
        self.state.spend(spec.tuning, 0.0, at_least=sum(r.wall_s for r in self.records.values()))
        expression = _expression(spec, space)
        search = self.state.search(
            spec.search,
            expression,
            spec.tuning,
            max_routes=spec.max_routes,
            mixed_max_routes=spec.mixed_max_routes,
        )
        while routes := [r for r in self._propose(search, space) if _key(r, space) not in self.records]:
            vetoes = self.state.vetoes(spec.tuning, routes)
            self.expected = len(self.records) + len(routes)
            for route in routes:
                if len(self.records) >= spec.max_routes:
                    self.unfinished = f"the search ended at gptune_max_routes = {spec.max_routes}"
                    return
                key = _key(route, space)
                record = RouteRecord(
                    id=route.id_against(expression.default),
                    route=str(route),
                    key=key,
                    knobs=len(route_pairs(key)),
                    status="unchecked",
                )
                if key not in self.records:  # two proposals may be one route
                    yield LateRoute(record, vetoes.get(route, ""))
            if self.state.budget_is_spent(spec.tuning, spec.budget_s):
                self.unfinished = f"the budget of {spec.budget_s:g} s ended the search"
                break
        self.notes += self._asked(search, lambda: search.notes(self._results(space)))

    def run(self, late: LateRoute) -> RouteRecord:
        """Run one route; its record goes into the tuning cache, or comes from it.

        Raises:
            GptuneError: golden, backend or model cannot be used any more.
        """
        cache, spec, record = self.state.cache, self.spec, late.record
        restored = cache.restored(spec, record.key) if cache is not None else None
        if restored is not None:
            found = replace(restored, id=record.id, route=record.route, wall_s=0.0)
            self.state.known_engines(spec.tuning).add(found.engine_digest, found.key, found.id)
        elif late.veto:
            found = replace(record, status="pruned", error=f"vetoed: {late.veto}")
        elif self.state.budget_is_spent(spec.tuning, spec.budget_s):
            found = replace(record, status="skipped", error=f"the budget of {spec.budget_s:g} s is spent")
        else:
            found = self._measured(record)
            self.state.spend(spec.tuning, found.wall_s)
            self.state.writing_cache(lambda cache: cache.record(spec, found))
        self.records[record.key] = found
        return found

    def _note_engines(self) -> None:
        """Take note of engines that other processes built; the default's first: it stands for its twins."""
        known = self.state.known_engines(self.spec.tuning)
        for record in sorted(self.records.values(), key=lambda record: record.key != self.spec.default_key):
            if record.digest_proves and record.status != "inert":
                known.add(record.engine_digest, record.key, record.id)

    def _space(self) -> KnobSpace:
        backend, model = self.state.backend(self.spec.backend), self.state.model(Path(self.spec.model_path))
        return self.state.space(backend, model, self.spec.options)

    def _results(self, space: KnobSpace) -> list[RouteResult]:
        records = set_apart(tuple(self.records.values()), self.spec.default_key)
        return [_result(record, space) for record in records]

    def _propose(self, search: Search, space: KnobSpace) -> tuple[Route, ...]:
        results = self._results(space)
        if isinstance(search, MixedSearch):
            results = self._confirmation().confirmed(search, results, space)
        routes = self._asked(search, lambda: tuple(search.propose(results)))
        if strange := [route for route in routes if not isinstance(route, Route)]:
            raise GptuneError(
                f"the search '{search.name}' proposed {strange[0]!r}, which is no route",
                where=self.spec.tuning,
                mend="let propose() return pytest_gptune.routes.Route objects",
            )
        return routes

    def _confirmation(self) -> Confirmation:
        if self._confirming is None:
            self._confirming = Confirmation(self._contest)
        return self._confirming

    def _contest(self, keys: tuple[str, ...]) -> Contest:
        """A contest of routes that ran."""
        spec, golden = self.spec, self._golden()
        pairs = {key: route_pairs(key) for key in keys}
        return Contest(
            backend=self.state.backend(spec.backend),
            gate=self._gate(),
            golden=golden,
            case=self._case(golden),
            lock=self.state.device_lock,
            plan=FinalsPlan(builds=_CONFIRMING_BUILDS, most_builds=_CONFIRMING_BUILDS),
            requests={
                key: replace(self._request(golden), route=route, fresh=True) for key, route in pairs.items()
            },
            journal=FinalsJournal.of(spec, self.state),
            purpose="confirmation",
            graph_missing=any(self.records[key].graph_missing for key in keys),
        )

    def _golden(self) -> Golden:
        return load_golden(Path(self.spec.golden_path))

    def _gate(self) -> AccuracyGate:
        spec = self.spec
        assert spec.epsilon is not None  # a route was checked, so there was one
        return AccuracyGate(self.state.metric(spec.metric), spec.epsilon, spec.atol, spec.rtol)

    def _case(self, golden: Golden) -> Case:
        timed = next((r.timed_case for r in self.records.values() if r.timed_case), None)
        return find_case(golden, timed)

    def _asked(self, search: Search, ask: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """What a search answers; a search may be a third party's, and fail."""
        try:
            return tuple(ask())
        except GptuneError:
            raise
        except Exception as error:
            raise GptuneError(
                f"the search '{search.name}' failed: {type(error).__name__}: {error}", where=self.spec.tuning
            ) from error

    def _request(self, golden: Golden) -> BuildRequest:
        """What every engine of the tuning is built from, but for its route."""
        spec = self.spec
        return BuildRequest(
            spec.model_path,
            spec.model_sha256,
            (),
            self._shapes(golden),
            spec.options,
            golden=spec.golden_path,
        )

    def _measured(self, record: RouteRecord) -> RouteRecord:
        spec = self.spec
        golden = self._golden()
        case = self._case(golden)
        run = RouteRun(
            backend=self.state.backend(spec.backend),
            request=replace(self._request(golden), route=route_pairs(record.key)),
            record=record,
            gate=self._gate(),
            engines=self.state.known_engines(spec.tuning),
            default_key=spec.default_key,
            may_be_inert=True,
            lock=self.state.device_lock,
        )
        try:
            engine = run.build()
            self._check(run, engine, golden, case)
            run.measure(engine, case, self._best_s())
            if spec.save_all_engines and spec.save_engine:
                environment = self.state.environment(self.state.backend(spec.backend), spec.options)
                keep_route_engine(spec, run, environment)
        except RouteStopped:
            pass  # the record says how it ended
        except RouteFailureError as error:
            run.stop(error.status, str(error))
        finally:
            run.close()
        return run.record

    def _check(self, run: RouteRun, engine: Engine, golden: Golden, case: Case) -> None:
        """Check accuracy; time an inaccurate route for the tuning cache, as tests of routes do."""
        try:
            run.check(engine, golden)
        except RouteStopped as stopped:
            finite = all(map(math.isfinite, run.record.losses.values()))
            if stopped.status == "inaccurate" and self.state.cache is not None and finite:
                with contextlib.suppress(RouteStopped):
                    run.measure(engine, case, self._best_s())
                run.stop(stopped.status, stopped.message)
            raise

    def _shapes(self, golden: Golden) -> dict[str, ShapeRange]:
        declared = {name: ShapeRange.from_plain(plain) for name, plain in self.spec.shapes.items()}
        return declared or golden_shapes(golden, golden.cases[0])

    def _best_s(self) -> float | None:
        passed = [r.latency.value for r in self.records.values() if r.status == "passed" and r.latency]
        return min(passed, default=None)


def _expression(spec: TuningSpec, space: KnobSpace) -> RouteExpression:
    if not spec.expression:
        return space.expression()
    return RouteExpression.parse(spec.expression, space, where=spec.tuning)


def _key(route: Route, space: KnobSpace) -> str:
    return str(route.minimal(space))


def _result(record: RouteRecord, space: KnobSpace) -> RouteResult:
    latency = record.latency
    return RouteResult(
        route=Route.parse(record.route, space),
        status=record.status,
        latency_s=None if latency is None else latency.value,
        interval=None if latency is None else latency.interval,
        loss=record.loss,
        at_hosts_pace=latency is not None and latency.at_hosts_pace,
    )
