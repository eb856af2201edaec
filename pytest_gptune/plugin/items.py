"""One item while it runs: binds a route's run to its test, and tells its end to the report."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gptune.accuracy import AccuracyResult, Golden, GoldenError
from pytest_gptune.accuracy.goldens import REMAKE
from pytest_gptune.engines.base import (
    BuildRequest,
    Engine,
    RouteFailureError,
    ShapeRange,
)
from pytest_gptune.errors import GptuneError
from pytest_gptune.plugin.benchmark import record_row
from pytest_gptune.plugin.collection import (
    accuracy_gate,
    baseline_engines,
    baseline_path,
    gate_id,
    golden_path,
    own_baseline_keys,
    owner_of,
    test_digest,
    tuning_id,
)
from pytest_gptune.plugin.golden_making import declared_shapes, golden_shapes, make_golden, replace_golden
from pytest_gptune.plugin.kept_engines import keep_route_engine
from pytest_gptune.plugin.plan import (
    Plan,
    PlannedRoute,
    check_sidecar,
    function_id,
    route_key,
)
from pytest_gptune.plugin.run import KeptFile, RouteRun, RouteStopped, find_case, route_pairs
from pytest_gptune.plugin.settings import MARKER_WHERE
from pytest_gptune.plugin.state import State
from pytest_gptune.records.baseline import BaselineError, BaselineSchemaError
from pytest_gptune.records.kept_engine import engine_path, read_sidecar
from pytest_gptune.records.route_record import RouteRecord, TuningSpec
from pytest_gptune.storage import locked

if TYPE_CHECKING:
    from pytest_gptune.plugin.fixtures import GptuneEngine


class ItemRun:
    """The run of one route within its test.

    Attributes:
        guarded: whether the route is a baseline's: its inaccuracy is a failure, not an expected one.
        has_row: whether pytest-benchmark has a row of it.
    """

    def __init__(self, item: pytest.Function, plan: Plan, route: PlannedRoute, state: State) -> None:
        self.item = item
        self.plan = plan
        self.planned = route
        self.state = state
        self.restored: RouteRecord | None = None
        self.has_row = False
        self.tuning = tuning_id(item, route)
        self.golden_path = golden_path(item, plan, route)
        self.baseline_path = baseline_path(item, plan, route)
        self.baseline_keys = self._baseline_keys()
        # Who replaces the baseline does not mind what became of its route.
        replacing = plan.settings.update_baseline
        self.guarded = route.key in self.baseline_keys.values() and not replacing
        default_key = route_key(plan.default, plan.space)
        self.kept, not_kept = self._kept()
        self.run = RouteRun(
            backend=plan.backend,
            request=BuildRequest(
                plan.model.path,
                plan.model.sha256,
                route_pairs(route.key),
                self._shapes(),
                plan.backend_options,
                golden=str(self.golden_path),
            ),
            record=RouteRecord(
                id=route.id,
                route=str(route.route),
                key=route.key,
                knobs=len(route_pairs(route.key)),
                status="unchecked",
                kept="" if self.kept is None else str(self.kept.path),
                not_kept=not_kept,
            ),
            gate=None,
            engines=state.known_engines(self.tuning),
            default_key=default_key,
            may_be_inert=not self.guarded and route.key != default_key,
            lock=state.device_lock,
            kept=self.kept,
        )

    @property
    def needed(self) -> bool:
        """Whether every verdict needs the route: it is the default, the baseline's, or the kept engine's."""
        is_default = self.planned.route == self.plan.default
        return is_default or self.guarded or not self.planned.of_search or self.kept is not None

    def skip_unless_wanted(self) -> None:
        """End the test before anything is built, where a hook vetoes its route or the budget is spent."""
        __tracebackhide__ = True
        budget_s = self.plan.settings.budget_s
        spent = self.state.budget_is_spent(self.tuning, budget_s)
        if self.planned.veto:
            pytest.skip(self.run.stop("pruned", f"vetoed: {self.planned.veto}").message)
        if spent and not self.needed:
            pytest.skip(self.run.stop("skipped", f"the budget of {budget_s:g} s is spent").message)

    def _kept(self) -> tuple[KeptFile | None, str]:
        """The kept engine that stands for the route, or why it is built although kept ones are given.

        A file is gated as it is. Of a folder, replay takes the engine that is the baseline's very own.

        Raises:
            KeptEngineError: it is not an engine that was kept, or not for this model and machine.
        """
        plan, settings = self.plan, self.plan.settings
        if plan.kept is not None:
            return (plan.kept, "") if plan.kept.sidecar.route == self.planned.key else (None, "")
        if settings.engine is None or not self.guarded:
            return None, ""
        owner = owner_of(self.item, plan, self.planned)
        path = engine_path(settings.engine, str(plan.test_file), owner, settings.backend)
        if not path.exists():
            return None, f"there is no {self._shown(path)}"
        sidecar = read_sidecar(path)
        if sidecar.engine_digest not in baseline_engines(self.item, plan, self.planned):
            return None, f"{self._shown(path)} is not the engine of the baseline (its digest is another)"
        check_sidecar(sidecar, plan, self.state, self.item.nodeid)
        return KeptFile(path, sidecar), ""

    def keep_engine(self) -> None:
        """Keep the engine of a route that passed, where that is asked for."""
        settings = self.plan.settings
        wanted = self.run.status == "passed" or settings.build_only
        if settings.save_all_engines and settings.save_engine and wanted:
            environment = self.state.environment(self.plan.backend, self.plan.backend_options)
            keep_route_engine(self.spec(), self.run, environment)

    def _baseline_only(self) -> int:
        """How many routes only the test's own baseline has."""
        own = set(self.baseline_keys.values())
        return sum(route.key in own and not route.of_search for route in self.plan.routes)

    def _shapes(self) -> dict[str, ShapeRange]:
        """The marker's shapes; without them those of the golden, where the model has dynamic dimensions."""
        where = f"{self.plan.where}, {MARKER_WHERE}, shapes="
        shapes = declared_shapes(self.plan.settings.shapes, where)
        dynamic = any(item.dynamic for item in self.plan.model.inputs)
        if shapes or not dynamic or not self.golden_path.exists():
            return shapes
        try:
            golden = self.state.golden(self.golden_path)
        except GoldenError:
            return {}  # said where the golden is loaded
        return golden_shapes(golden, golden.cases[0])

    def _baseline_keys(self) -> dict[str, str | None]:
        """The key of each route of the test's own baseline; None for one that is not available here."""
        try:
            keys = own_baseline_keys(self.item, self.plan, self.planned)
        except BaselineSchemaError:
            return {}  # the verdict says so
        except BaselineError as error:
            raise error.located(self.tuning) from None
        if self.plan.settings.route is not None:
            return keys
        planned_keys = {route.key for route in self.plan.routes}
        return {route: key if key in planned_keys else None for route, key in keys.items()}

    @property
    def record(self) -> RouteRecord:
        """What is known of the route: of this run, or of the earlier one it was taken up from."""
        return self.restored or self.run.record

    def take_up(self, restored: RouteRecord) -> None:
        """End the test with the outcome that the route had in an earlier run; nothing is measured twice."""
        __tracebackhide__ = True
        # What it took then is not spent now.
        self.restored = replace(restored, id=self.planned.id, route=str(self.planned.route), wall_s=0.0)
        known = self.state.known_engines(self.tuning)
        known.add(restored.engine_digest, restored.key, self.planned.id)
        if restored.status != "passed":
            self._end(restored.status, restored.error)
        pytest.skip(f"passed in an earlier run, by the tuning cache: {self.planned.id}")

    def build(self) -> Engine:
        """Build the engine of the route."""
        return self.run.build()

    def golden_to_check(self) -> Golden | None:
        """The golden of the test; None where nothing is run, so that none has to be there."""
        return None if self.plan.settings.build_only else self.load_golden()

    def load_golden(self) -> Golden:
        """The golden of the test, made first where that is asked for."""
        if self.plan.settings.update_goldens:
            self._update_golden()
        where = f"{self.tuning}: {self._shown(self.golden_path)}"
        command = f"python -m pytest '{self._command_id()}' --gptune-update-goldens"
        if not self.golden_path.exists():
            raise GoldenError("the golden is missing", where=where, mend=f"{command}, then commit it")
        try:
            golden = self.state.golden(self.golden_path)
            golden.check_signature(
                {item.name: item for item in self.plan.model.inputs},
                {item.name: item for item in self.plan.model.outputs},
            )
        except GoldenError as error:
            # What reads goldens knows neither the test nor the command that makes its golden.
            mend = error.mend.replace(REMAKE, f"run {command}")
            raise GoldenError(error.what, where=where, mend=mend) from None
        return golden

    def _command_id(self) -> str:
        """The test function as it is named on a command line in the current folder.

        Without the user's own parameters: pytest takes a whole id or a function, and nothing between.
        """
        # The path of the item: the node id of a file outside the root folder has none.
        file = os.path.relpath(self.item.path, self.item.config.invocation_params.dir)
        return f"{file}::{function_id(self.item).partition('::')[2]}"

    def _shown(self, path: Path) -> str:
        root = self.item.config.rootpath
        return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)

    def _update_golden(self) -> None:
        """Make the golden once in a run, however many processes run it."""
        if self.golden_path in self.state.updated_goldens:
            return
        marker = self._update_marker()
        with locked(self.golden_path.with_suffix(".update")):
            if marker is None or not marker.exists():
                replace_golden(self.golden_path, make_golden(self.plan, self.state))
                if marker is not None:
                    marker.touch()
        self.state.updated_goldens.add(self.golden_path)

    def _update_marker(self) -> Path | None:
        """A file that the workers of one xdist run share, so that the first of them makes the golden."""
        if not hasattr(self.item.config, "workerinput"):
            return None
        import hashlib

        shared: Path = self.item._request.getfixturevalue("tmp_path_factory").getbasetemp().parent
        digest = hashlib.sha256(str(self.golden_path).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return shared / f"gptune-golden-{digest}"

    def check(self, golden: Golden, case: str | int | None = None) -> AccuracyResult:
        """Check the engine against all cases of the golden.

        Args:
            golden: the golden.
            case: the case that will be timed, where it is known already.
        """
        assert self.run.engine is not None
        self.run.gate = accuracy_gate(self.plan, self.state)
        try:
            return self.run.check(self.run.engine, golden)
        except RouteStopped as stopped:
            if stopped.status == "inaccurate":
                self._time_inaccurate(stopped, golden, case)
            raise

    def _time_inaccurate(self, stopped: RouteStopped, golden: Golden, case: str | int | None) -> None:
        """Time an inaccurate route for the tuning cache: at a larger epsilon it might be the winner.

        Its status stays, so it cannot win here. Nothing is timed where no route of the test is, or where no
        epsilon would do.
        """
        losses = self.run.record.losses.values()
        measures = "gptune_benchmark" in self.item.fixturenames and not self._benchmark_disabled()
        if self.state.cache is None or not measures or not all(map(math.isfinite, losses)):
            return
        if case is None:
            # Routes of one tuning compare only on one case; the test names it after the check.
            case = self.state.timed_cases.get(self.tuning)
        timed = find_case(golden, case)
        assert self.run.engine is not None
        try:
            self.run.measure(self.run.engine, timed, self.state.best_s.get(self.tuning))
        except RouteStopped:
            # What is said of the route is that it is inaccurate, as without a cache.
            self.run.stop(stopped.status, stopped.message)

    def _benchmark_disabled(self) -> bool:
        option = self.item.config.getoption
        return bool(option("benchmark_disable", False) and not option("benchmark_enable", False))

    def measure(self, case: str | int | None, benchmark: Any) -> float | None:
        """Measure the engine and record a row."""
        assert self.run.engine is not None
        if self.run.measurement is not None:
            raise GptuneError(
                "the engine of this test was measured already, and a route has one latency",
                where=self.item.nodeid,
                mend="measure once; for another shape write a test of its own",
            )
        golden = self.run.golden or self.load_golden()
        timed = find_case(golden, case)
        if self._benchmark_disabled():
            return None
        best = self.state.best_s.get(self.tuning)
        measurement = self.run.measure(self.run.engine, timed, best)
        self.state.timed_cases[self.tuning] = timed.name
        if self.run.checked and (best is None or measurement.latency_s < best):
            self.state.best_s[self.tuning] = measurement.latency_s
        if benchmark is not None:
            record_row(benchmark, measurement, self.run.record, self.plan.settings.backend)
            self.has_row = True
        return measurement.latency_s

    def refuse_foreign(self, engine: GptuneEngine) -> None:
        """Raise GptuneError unless ``engine`` is this test's."""
        from pytest_gptune.plugin.fixtures import GptuneEngine

        if not isinstance(engine, GptuneEngine) or engine._item_run is not self:
            raise GptuneError(
                f"expected the engine of this test, not {engine!r}",
                where=self.item.nodeid,
                mend="give the fixture gptune_engine",
            )

    @contextmanager
    def outcomes(self) -> Iterator[None]:
        """Turn the end of the route into the outcome of its test."""
        __tracebackhide__ = True
        stopped: RouteStopped | None = None
        try:
            yield
        except RouteFailureError as error:
            stopped = self.run.stop(error.status, str(error))
        except RouteStopped as error:
            stopped = error
        except GptuneError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        # Outside of the handlers: a chained exception would be shown with its traceback.
        if stopped is not None:
            self._end(stopped.status, stopped.message)

    def _end(self, status: str, message: str) -> None:
        __tracebackhide__ = True
        text = f"{status}: {message}"
        if self.guarded:
            raise pytest.fail.Exception(f"{text}\nThis is the baseline's route.", pytrace=False) from None
        if self.plan.settings.build_only and self.needed:
            raise pytest.fail.Exception(f"{text}\nThis is the default route.", pytrace=False) from None
        if status == "inert":
            raise pytest.skip.Exception(text) from None
        # Raised rather than called: with --runxfail pytest.xfail() returns, and the route would go on.
        raise pytest.xfail.Exception(text, pytrace=False) from None

    def _search_name(self) -> str:
        settings = self.plan.settings
        if self.plan.kept is not None:
            return "engine"
        return settings.search if settings.route is None else "route"

    def spec(self) -> TuningSpec:
        """The tuning this item belongs to, as plain data."""
        plan, settings = self.plan, self.plan.settings
        return TuningSpec(
            tuning=self.tuning,
            command_id=self._command_id(),
            gate_id=gate_id(self.item, self.planned),
            owner=owner_of(self.item, plan, self.planned),
            file=self.item.nodeid.split("::")[0],
            root=str(self.item.config.rootpath),
            golden_path=str(self.golden_path),
            baseline_path=str(self.baseline_path),
            model_path=plan.model.path,
            model_sha256=plan.model.sha256,
            backend=settings.backend,
            options=plan.backend_options,
            search=self._search_name(),
            metric=settings.metric,
            epsilon=dict(settings.epsilon) if isinstance(settings.epsilon, dict) else settings.epsilon,
            atol=settings.atol,
            rtol=settings.rtol,
            expression="" if settings.routes is None else str(plan.expression),
            default_key=route_key(plan.default, plan.space),
            default_route=str(plan.default),
            defaults_digest=plan.space.defaults_digest,
            planned=plan.search_count + self._baseline_only(),
            baseline_keys=self.baseline_keys,
            pruned=plan.pruned,
            max_regression=settings.max_regression,
            gate=settings.gate,
            against=settings.against,
            update_baseline=settings.update_baseline,
            require_baseline=settings.require_baseline,
            ambiguous_fails=settings.ambiguous_fails,
            final_builds=settings.final_builds,
            test_sha256=test_digest(self.item),
            max_routes=settings.max_routes,
            mixed_max_routes=settings.mixed_max_routes,
            budget_s=settings.budget_s,
            save_engine=str(settings.save_engine or ""),
            save_all_engines=settings.save_all_engines,
            build_only=settings.build_only,
            shapes={name: shapes.as_plain() for name, shapes in self.run.request.shapes.items()},
        )
