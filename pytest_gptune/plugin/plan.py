"""The plan of one test function: its settings, its knob space, and the routes it is parametrised over."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from pytest_gptune.engines.base import Backend, BackendMissingError, Environment, ModelInfo
from pytest_gptune.engines.registry import check_buildable
from pytest_gptune.errors import GptuneError, SettingsError
from pytest_gptune.plugin.run import KeptFile
from pytest_gptune.plugin.settings import MARKER_WHERE, Settings, merge_markers, resolve
from pytest_gptune.plugin.state import State
from pytest_gptune.records.baseline import BaselineError, load_baseline
from pytest_gptune.records.kept_engine import KeptEngineError, Sidecar, read_sidecar
from pytest_gptune.routes import KnobSpace, Route, RouteError, RouteExpression
from pytest_gptune.storage import FOLDER, safe_name

# Options of ours within the marker's options={...}; all others are the backend's.
SEED, ALLOW_NONFINITE = "seed", "allow_nonfinite"


@dataclass(frozen=True)
class Unavailable:
    """The backend or its device is not there: the test is skipped for this reason."""

    reason: str


@dataclass(frozen=True)
class PlannedRoute:
    """A route a test is parametrised over.

    Attributes:
        of_search: False for a baseline's route that the search does not have; it runs where the baseline is.
        veto: why it must not be built, empty where it may be.
    """

    route: Route
    id: str
    key: str
    of_search: bool
    veto: str = ""


@dataclass(frozen=True)
class Plan:
    """Everything known of a test function when it is collected.

    Attributes:
        owner: ``Class.test``.
        default: the default route, in the form of the expression.
        pruned: knob, value and reason of values that this machine lacks.
        kept: the kept engine that is gated, None where engines are built.
    """

    where: str
    owner: str
    test_file: Path
    settings: Settings
    backend: Backend
    backend_options: dict[str, Any]
    seed: int
    allow_nonfinite: bool
    model: ModelInfo
    space: KnobSpace
    expression: RouteExpression
    default: Route
    routes: tuple[PlannedRoute, ...]
    pruned: tuple[tuple[str, str, str], ...]
    kept: KeptFile | None = None

    @cached_property
    def by_value(self) -> dict[str, PlannedRoute]:
        """Routes by the parameter value they are given to the test as."""
        return {str(planned.route): planned for planned in self.routes}

    @property
    def search_count(self) -> int:
        """How many routes the search itself has."""
        return sum(planned.of_search for planned in self.routes)


def make_plan(definition: pytest.Function, state: State) -> Plan:
    """Plan the tuning of a test function.

    Raises:
        BackendMissingError: the backend is not there.
        GptuneError: any mistake of the user.
    """
    where = definition.nodeid
    arguments = merge_markers(definition.iter_markers("gptune"), where)
    settings = resolve(state.config, arguments, where)
    options, seed, allow_nonfinite = _split_options(settings, where)
    backend = _backend(settings, options, state, where)
    test_file = Path(definition.path)
    model = state.model(_find_model(settings, test_file, state.config.rootpath, where))
    if state.config.getoption("gptune_dry_run") or settings.build_only:
        check_buildable(backend, options)  # nothing will run
    else:
        backend.check_available(options)
    space = state.space(backend, model, options)
    expression = _expression(settings, space)
    if not expression.runnable:
        values = "; ".join(f"{p.knob}={p.value}: {p.reason}" for p in expression.pruned)
        raise BackendMissingError(f"the fixed routes are pruned on this machine: {values}")
    kept = _kept(settings, model, backend, options, state, where)
    default = expression.default
    return Plan(
        where=where,
        owner=_owner(where),
        test_file=test_file,
        settings=settings,
        backend=backend,
        backend_options=options,
        seed=seed,
        allow_nonfinite=allow_nonfinite,
        model=model,
        space=space,
        expression=expression,
        default=default,
        routes=_filtered(
            tuple(_routes(settings, expression, space, test_file, where, state, kept)), default, where, state
        ),
        kept=kept,
        pruned=tuple((p.knob, p.value, p.reason) for p in expression.pruned),
    )


def find_space(item: pytest.Item, state: State) -> KnobSpace:
    """The knob space for a test without routes: for its model where a marker names one.

    Raises:
        BackendMissingError: the backend is not there.
        GptuneError: any mistake of the user.
    """
    where = item.nodeid
    settings = resolve(state.config, merge_markers(item.iter_markers("gptune"), where), where)
    options, _, _ = _split_options(settings, where)
    backend = _backend(settings, options, state, where)
    model = None
    if settings.model is not None:
        model = state.model(_find_model(settings, Path(item.path), state.config.rootpath, where))
    backend.check_available(options)
    return state.space(backend, model, options)


def _backend(settings: Settings, options: dict[str, Any], state: State, where: str) -> Backend:
    try:
        backend = state.backend(settings.backend)
    except SettingsError as error:
        raise error.located(settings.places["backend"]) from None
    try:
        backend.check_options(options)
    except SettingsError as error:
        raise error.located(where) from None
    return backend


def route_key(route: Route, space: KnobSpace) -> str:
    """What identifies a route: the knobs that differ from their defaults, in the order of the space."""
    return str(route.minimal(space))


def _expression(settings: Settings, space: KnobSpace) -> RouteExpression:
    if settings.routes is None:
        return space.expression()
    return RouteExpression.parse(
        settings.routes, space, where=settings.routes_where, comments=settings.route_file
    )


def _kept(
    settings: Settings,
    model: ModelInfo,
    backend: Backend,
    options: dict[str, Any],
    state: State,
    where: str,
) -> KeptFile | None:
    """The kept engine that ``--gptune-engine FILE`` asks to gate; a folder is looked into at each test.

    Raises:
        KeptEngineError: it is not one, or is not for this model and machine.
    """
    if settings.engine is None or settings.engine.is_dir():
        return None
    sidecar = read_sidecar(settings.engine)
    check_kept(sidecar, settings.backend, model, state.environment(backend, options), options, where)
    return KeptFile(settings.engine, sidecar)


def check_sidecar(sidecar: Sidecar, plan: Plan, state: State, where: str) -> None:
    """Raise KeptEngineError unless a kept engine is for the model and machine of a plan."""
    environment = state.environment(plan.backend, plan.backend_options)
    check_kept(sidecar, plan.settings.backend, plan.model, environment, plan.backend_options, where)


def check_kept(
    sidecar: Sidecar,
    backend: str,
    model: ModelInfo,
    environment: Environment,
    options: Mapping[str, Any],
    where: str,
) -> None:
    """Raise KeptEngineError unless a kept engine is for this backend, model, machine and options."""
    try:
        sidecar.check(
            backend=backend,
            tuner_version=environment.tuner_version,
            device_class=environment.device_class,
            model_sha256=model.sha256,
            options=options,
        )
    except KeptEngineError as error:
        mend = "name the test it is of on the command line, or build it again: --gptune-save-engine"
        raise KeptEngineError(error.what, where=f"{where}, --gptune-engine", mend=mend) from None


def _owner(where: str) -> str:
    return ".".join(part for part in where.split("::")[1:])


def _filtered(
    routes: tuple[PlannedRoute, ...], default: Route, where: str, state: State
) -> tuple[PlannedRoute, ...]:
    """The routes, with what a hook has against them.

    Raises:
        SettingsError: a hook vetoes the default route or the baseline's, which every verdict needs.
    """
    vetoes = state.vetoes(where, [planned.route for planned in routes])
    found = []
    for planned_route in routes:
        veto = vetoes.get(planned_route.route, "")
        if veto and (planned_route.route == default or not planned_route.of_search):
            raise SettingsError(
                f"the route {planned_route.id} is vetoed ({veto}), and every verdict needs it",
                where=f"{where}, hook pytest_gptune_filter_routes",
                mend="leave the default route and the baseline's out of what the hook returns",
            )
        found.append(replace(planned_route, veto=veto))
    return tuple(found)


def _routes(
    settings: Settings,
    expression: RouteExpression,
    space: KnobSpace,
    test_file: Path,
    where: str,
    state: State,
    kept: KeptFile | None,
) -> Iterator[PlannedRoute]:
    default = expression.default
    if settings.route is not None:
        route = Route.parse(settings.route, space, where="--gptune-route").over(default)
        if not all(_available(space, name, value) for name, value in route.values):
            raise BackendMissingError(f"route '{settings.route}' is pruned: this machine lacks a value of it")
        yield PlannedRoute(route, route.id_against(default), route_key(route, space), of_search=True)
        return
    if kept is not None:
        try:
            route = Route.parse(kept.sidecar.route, space).over(_unset(default, space))
        except RouteError as error:
            raise error.located(f"{kept.path}, its sidecar") from None
        routes: Any = dict.fromkeys((default, route))
    elif settings.search == "replay":
        routes = (default,)
    else:
        try:
            routes = state.search(
                settings.search,
                expression,
                where,
                max_routes=settings.max_routes,
                mixed_max_routes=settings.mixed_max_routes,
            ).initial()
        except RouteError as error:
            raise error.located(settings.places["search"]) from None
    if settings.budget_s is not None:
        routes = _most_promising_first(routes, default, settings, state)
    seen: set[str] = set()
    for route in routes:
        key = route_key(route, space)
        seen.add(key)
        yield PlannedRoute(route, route.id_against(default), key, of_search=True)
    for route in _baseline_routes(test_file, _owner(where), settings.backend, space, default):
        key = route_key(route, space)
        if key not in seen:
            seen.add(key)
            yield PlannedRoute(route, route.id_against(default), key, of_search=False)


def _most_promising_first(
    routes: Iterable[Route], default: Route, settings: Settings, state: State
) -> Iterable[Route]:
    """The routes in the order in which a search that may run out of time should try them.

    The default first, then by what earlier caches say of their values; all else as the search has it. A hint
    changes the order alone: every route is measured as any other.
    """
    hints = state.hints(settings.priors)
    if not hints:
        return routes
    usual = default.as_dict()

    def promise(route: Route) -> float:
        if route == default:
            return 0.0
        changed = (pair for pair in route.values if usual.get(pair[0]) != pair[1])
        return math.prod(hints.get(pair, 1.0) for pair in changed)

    return sorted(routes, key=promise)


def _available(space: KnobSpace, name: str, value: str) -> bool:
    knob = space.get(name)
    return knob is not None and not knob.prunes(value)


def _baseline_routes(
    test_file: Path, owner: str, backend: str, space: KnobSpace, default: Route
) -> Iterator[Route]:
    """Routes of all baselines that may belong to the function, whatever its user parameters.

    Parameters are not known when a function is parametrised; what is too much is dropped at the items.
    """
    folder = test_file.parent / FOLDER / safe_name(test_file.stem)
    prefix = safe_name(owner).split("~")[0]
    for path in sorted(folder.glob("*.baseline.json")):
        if not path.name.startswith(prefix):
            continue
        try:
            baseline = load_baseline(path)
        except BaselineError:
            continue  # said where the test it belongs to is set up
        for entry in baseline.of_backend(backend).entries if baseline else ():
            try:
                route = Route.parse(entry.route, space)
            except RouteError:
                continue  # the verdict says that the route is not available any more
            if all(_available(space, name, value) for name, value in route.values):
                # A baseline names what differs from the knobs' own defaults: fixed knobs are in it too.
                yield route.over(_unset(default, space))


def _unset(default: Route, space: KnobSpace) -> Route:
    """The default route's knobs, each at its own default."""
    values = []
    for name, value in default.values:
        knob = space.get(name)
        values.append((name, value if knob is None else knob.default))
    return Route(tuple(values))


def _split_options(settings: Settings, where: str) -> tuple[dict[str, Any], int, bool]:
    options = dict(settings.options)
    seed, allow = options.pop(SEED, 0), options.pop(ALLOW_NONFINITE, False)
    place = f"{where}, {MARKER_WHERE}, options="
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise SettingsError(f"option '{SEED}' is {seed!r}", where=place, mend="write a whole number >= 0")
    if not isinstance(allow, bool):
        raise SettingsError(
            f"option '{ALLOW_NONFINITE}' is {allow!r}", where=place, mend="write True or False"
        )
    try:
        json.dumps(options)
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"an option is not plain data: {error}", where=place, mend="give texts, numbers, lists and dicts"
        ) from None
    return options, seed, allow


def _find_model(settings: Settings, test_file: Path, root: Path, where: str) -> Path:
    if settings.model is None:
        raise SettingsError(
            "the test names no model",
            where=f"{where}, {MARKER_WHERE}",
            mend="write @pytest.mark.gptune(model='models/encoder.onnx', ...)",
        )
    if not isinstance(settings.model, (str, Path)):
        raise SettingsError(
            f"model is {settings.model!r}, not a path",
            where=f"{where}, {MARKER_WHERE}, model=",
            mend="write model='models/encoder.onnx'",
        )
    return find_file(Path(settings.model), test_file, root, f"{where}, {MARKER_WHERE}, model=", "model")


def find_file(path: Path, test_file: Path, root: Path, where: str, what: str) -> Path:
    """A path of a marker: absolute, beside the test file, or in the root folder.

    Raises:
        SettingsError: it is in none of these places.
    """
    tried = [path] if path.is_absolute() else [test_file.parent / path, root / path]
    for candidate in tried:
        if candidate.exists():
            return candidate
    places = " and for ".join(str(candidate) for candidate in dict.fromkeys(tried))
    raise SettingsError(
        f"{what} '{path}' does not exist" + ("" if path.is_absolute() else f"; looked for {places}"),
        where=where,
        mend="correct the path: it is looked up beside the test file, then in the root folder",
    )


def planned(state: State, item: pytest.Function) -> Plan | GptuneError | Unavailable | None:
    """The plan of an item's function, None for a test without gptune fixtures."""
    return state.plans.get(function_id(item))


def function_id(item: pytest.Function) -> str:
    """Node id of the item's function, without any parameters."""
    callspec = getattr(item, "callspec", None)
    return item.nodeid.removesuffix(f"[{callspec.id}]") if callspec is not None else item.nodeid
