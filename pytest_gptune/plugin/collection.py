"""Parametrises tests over routes, and finds the mistakes that can be made with the marker."""

from __future__ import annotations

import unittest
from pathlib import Path

import pytest

from pytest_gptune.accuracy import AccuracyGate
from pytest_gptune.engines.base import BackendMissingError
from pytest_gptune.errors import GptuneError, SettingsError
from pytest_gptune.plugin.plan import (
    Plan,
    PlannedRoute,
    Unavailable,
    function_id,
    make_plan,
    planned,
    route_key,
)
from pytest_gptune.plugin.settings import MARKER_WHERE
from pytest_gptune.plugin.state import State, state_of
from pytest_gptune.records.baseline import BaselineError, load_baseline
from pytest_gptune.routes import Route, RouteError
from pytest_gptune.storage import record_path

ROUTE_FIXTURE = "gptune_route"

# Id of the one item that stands for a test which could not be planned.
_UNPLANNED_ID = "default"


def parametrise(metafunc: pytest.Metafunc) -> None:
    """Give ``gptune_route`` the routes of the test's plan, indirectly and as the last parameter."""
    state = state_of(metafunc.config)
    definition = metafunc.definition
    plan: Plan | GptuneError | Unavailable
    try:
        plan = make_plan(definition, state)
        if "gptune_golden" in metafunc.fixturenames:
            accuracy_gate(plan, state).check_outputs([item.name for item in plan.model.outputs], plan.where)
    except BackendMissingError as error:
        plan = error if backend_required(metafunc.config) else Unavailable(str(error))
    except GptuneError as error:
        plan = error
    state.plans[definition.nodeid] = plan
    if isinstance(plan, Plan):
        values = [str(route.route) for route in plan.routes]
        ids = [route.id for route in plan.routes]
    else:
        values, ids = [""], [_UNPLANNED_ID]
    metafunc.parametrize(ROUTE_FIXTURE, values, ids=ids, indirect=True, scope="function")


def accuracy_gate(plan: Plan, state: State) -> AccuracyGate:
    """Metric and epsilon of a test.

    Raises:
        SettingsError: there is no epsilon.
        MetricError: metric or epsilon cannot be used.
    """
    settings = plan.settings
    if settings.epsilon is None:
        raise SettingsError(
            "the test has no epsilon, so its accuracy cannot be judged",
            where=f"{plan.where}, {MARKER_WHERE}",
            mend="write epsilon=1e-3 in the marker, or give --gptune-epsilon; 0 asks for equality",
        )
    try:
        metric = state.metric(settings.metric)
    except GptuneError as error:
        raise error.located(settings.places["metric"]) from None
    return AccuracyGate(metric, settings.epsilon, settings.atol, settings.rtol)


def drop_foreign_baseline_routes(items: list[pytest.Item], state: State) -> None:
    """Keep a route that only a baseline has at the items whose own baseline has it."""
    own: dict[str, set[str | None]] = {}
    kept = []
    for item in items:
        plan = planned(state, item) if isinstance(item, pytest.Function) else None
        if isinstance(plan, Plan) and isinstance(item, pytest.Function):
            route = planned_route(item, plan)
            if not route.of_search:
                tuning = tuning_id(item, route)
                if tuning not in own:
                    own[tuning] = _readable_keys(item, plan, route)
                if route.key not in own[tuning]:
                    continue
        kept.append(item)
    items[:] = kept


def keep_one_without_golden(items: list[pytest.Item], state: State) -> None:
    """Where a golden cannot be used, keep one item of its tuning: one mistake is said once."""
    usable: dict[str, bool] = {}
    kept = []
    for item in items:
        plan = planned(state, item) if isinstance(item, pytest.Function) else None
        takes_golden = {"gptune_golden", "gptune_benchmark"} & set(getattr(item, "fixturenames", ()))
        if isinstance(plan, Plan) and isinstance(item, pytest.Function) and takes_golden:
            route = planned_route(item, plan)
            tuning = tuning_id(item, route)
            first = tuning not in usable
            if first:
                unread = plan.settings.update_goldens or plan.settings.build_only
                usable[tuning] = unread or _usable(golden_path(item, plan, route), plan, state)
            if not first and not usable[tuning]:
                continue
        kept.append(item)
    items[:] = kept


def _usable(path: Path, plan: Plan, state: State) -> bool:
    try:
        golden = state.golden(path)
        golden.check_signature(
            {item.name: item for item in plan.model.inputs}, {item.name: item for item in plan.model.outputs}
        )
    except GptuneError:
        return False
    return True


def planned_route(item: pytest.Function, plan: Plan) -> PlannedRoute:
    """The route of an item."""
    return plan.by_value[str(item.callspec.params[ROUTE_FIXTURE])]


def user_parameters(item: pytest.Function, route: PlannedRoute) -> str:
    """Id of the user's own parameters of an item, empty where there are none."""
    return str(item.callspec.id).removesuffix(route.id).removesuffix("-")


def tuning_id(item: pytest.Function, route: PlannedRoute) -> str:
    """Node id of an item without its route."""
    parameters = user_parameters(item, route)
    return function_id(item) + (f"[{parameters}]" if parameters else "")


def gate_id(item: pytest.Function, route: PlannedRoute) -> str:
    """Node id of the report that carries the verdict."""
    parameters = user_parameters(item, route)
    return f"{function_id(item)}::gptune-gate" + (f"[{parameters}]" if parameters else "")


def owner_of(item: pytest.Function, plan: Plan, route: PlannedRoute) -> str:
    """``Class.test[user parameters]``: what the records of a tuning are named after."""
    parameters = user_parameters(item, route)
    return plan.owner + (f"[{parameters}]" if parameters else "")


def baseline_path(item: pytest.Function, plan: Plan, route: PlannedRoute) -> Path:
    """Where the baseline of an item's tuning stands."""
    return record_path(plan.test_file, owner_of(item, plan, route), "baseline.json")


def golden_path(item: pytest.Function, plan: Plan, route: PlannedRoute) -> Path:
    """Where the golden of an item's tuning stands."""
    return record_path(plan.test_file, owner_of(item, plan, route), "golden.npz")


def own_baseline_keys(item: pytest.Function, plan: Plan, route: PlannedRoute) -> dict[str, str | None]:
    """The key of each route that the item's own baseline has for this device; None for one it cannot build.

    Raises:
        BaselineError: the baseline cannot be read.
    """
    baseline = load_baseline(baseline_path(item, plan, route))
    if baseline is None:
        return {}
    environment = state_of(item.config).environment(plan.backend, plan.backend_options)
    keys: dict[str, str | None] = {}
    for entry in baseline.concerning(plan.settings.backend, environment.device_class):
        try:
            keys[entry.route] = route_key(Route.parse(entry.route, plan.space), plan.space)
        except RouteError:
            keys[entry.route] = None
    return keys


def test_digest(item: pytest.Function) -> str:
    """A digest of the test's own code: a route that passed another test is not one that passed this."""
    import hashlib
    import inspect

    try:
        source = inspect.getsource(item.function)
    except (OSError, TypeError):
        source = repr(item.function.__code__.co_code)
    return hashlib.sha256(source.encode()).hexdigest()


def baseline_engines(item: pytest.Function, plan: Plan, route: PlannedRoute) -> set[str]:
    """The digests of the engines that the item's own baseline records for the route, one for each shapes.

    Raises:
        BaselineError: the baseline cannot be read.
    """
    baseline = load_baseline(baseline_path(item, plan, route))
    environment = state_of(item.config).environment(plan.backend, plan.backend_options)
    entries = baseline.concerning(plan.settings.backend, environment.device_class) if baseline else ()
    return {entry.engine_sha256 for entry in entries if entry.route == route.key}


def _readable_keys(item: pytest.Function, plan: Plan, route: PlannedRoute) -> set[str | None]:
    try:
        return set(own_baseline_keys(item, plan, route).values())
    except BaselineError:
        return set()  # said where the test is set up


def check_marker_use(item: pytest.Item) -> None:
    """Refuse a gptune marker where it has no effect.

    Raises:
        SettingsError: it is on a unittest class, in ``pytest.param(marks=)``, or on a test function that
            takes no gptune fixture.
    """
    # A module's marks reach its doctests too, which could not take a fixture as an argument.
    if not isinstance(item, pytest.Function) or not any(item.iter_markers("gptune")):
        return
    cls = getattr(item, "cls", None)
    if cls is not None and issubclass(cls, unittest.TestCase):
        raise SettingsError(
            "the gptune marker is on a unittest class, whose tests take no fixtures",
            where=f"{item.nodeid}, {MARKER_WHERE}",
            mend="write the test as a function, or as a class that does not derive from unittest.TestCase",
        )
    # A mark on a module or class is for those of its tests that take a fixture of ours.
    own = any(mark.name == "gptune" for mark in item.own_markers)
    fixtures = getattr(item, "fixturenames", ())
    if own and not any(name.startswith("gptune") for name in fixtures):
        raise SettingsError(
            "the test has the gptune marker and no gptune fixture, so nothing would be tuned",
            where=f"{item.nodeid}, {MARKER_WHERE}",
            mend="take the fixture gptune (or gptune_engine, gptune_golden, gptune_benchmark) as an argument",
        )
    callspec = getattr(item, "callspec", None)
    if callspec is not None and any(mark.name == "gptune" for mark in callspec.marks):
        raise SettingsError(
            "the gptune marker is in pytest.param(marks=), where it comes too late to choose the routes",
            where=item.nodeid,
            mend="put the marker on the test function; for a model of its own write a test of its own",
        )


def backend_required(config: pytest.Config) -> bool:
    """Whether a backend that is not there is an error rather than a skip."""
    return config.getoption("gptune_search") is not None or bool(config.getini("gptune_require_backend"))
