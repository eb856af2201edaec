"""What a tuning cache says of each tuning, whoever wrote it: read from rows, checked, in one form.

Rows of ours, of trtexec and of Torch-TensorRT have common fields (``build_route``, ``crash``,
``error_message``, ``accuracy_loss``, ``gpu_time`` in milliseconds). What is not there is None or empty, never
guessed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from pytest_gptune.records.tuning_cache import CacheContent, CacheError
from pytest_gptune.routes import Route, RouteError
from pytest_gptune.timing.stability import told_enqueue_bound

Epsilon = float | Mapping[str, float]
"""The most loss that passes: one number for every output, or one for each by name."""

Writer = Literal["pytest-gptune", "trtexec", "torch-tensorrt"]

# Their losses were computed on an engine that ran, of inert routes on their twin's; others have none.
COMPARED = frozenset({"passed", "inaccurate", "inert"})

# What lies outside is no latency; the ratio of any two within is a number.
_SHORTEST_S, _LONGEST_S = 1e-12, 1e9


@dataclass(frozen=True)
class CachedRoute:
    """One route of a tuning, as its cache has it.

    Attributes:
        route: as ``--gptune-route`` takes it; ``default`` is the default route.
        id: what differs from the default route, as test ids show it.
        changes: value by knob, where it differs from the default route's.
        status: one of the route statuses.
        losses: worst loss over cases, by output; infinity where none could be computed.
        needed_epsilon: the smallest single epsilon at which it passes, None where the cache has none.
        latency_s: of the first measurement, in seconds; None where it was not timed.
        interval: of the latency, in seconds; over blocks of one build: no variance between builds is in it.
        timed: latency kind, whether a graph was captured, and the case: unequal ones do not compare.
        at_hosts_pace: the latency is the pace of a host that keeps the device waiting, and moves with it.
    """

    route: str
    id: str
    changes: Mapping[str, str]
    status: str
    losses: Mapping[str, float] = field(default_factory=dict)
    needed_epsilon: float | None = None
    latency_s: float | None = None
    interval: tuple[float, float] | None = None
    timed: tuple[str, bool, str] = ("", False, "")
    at_hosts_pace: bool = False
    engine_digest: str = ""
    error: str = ""

    @property
    def loss(self) -> float | None:
        """The worst loss over outputs and cases, None where none was computed."""
        return max(self.losses.values()) if self.losses else None

    def passes(self, epsilon: Epsilon) -> bool:
        """Whether every loss is at most ``epsilon``; False where there is none.

        A loss of 0 is no equality under every metric, and epsilon 0 asks for it: there the status decides.
        """
        if not self.losses:
            return False
        if not isinstance(epsilon, Mapping):
            return self.needed <= epsilon
        return self.multiple(epsilon) <= 1

    @property
    def needed(self) -> float:
        """The smallest single epsilon at which it passes; infinity without a loss."""
        if self.needed_epsilon is not None:
            return self.needed_epsilon
        if self._unequal:
            return math.ulp(0.0)
        return math.inf if self.loss is None else self.loss

    def multiple(self, epsilon: Mapping[str, float]) -> float:
        """The smallest multiple of the epsilons of the outputs at which it passes; infinity if none does."""
        if not self.losses:
            return math.inf
        # An extra output has no epsilon of its own; none would let it pass.
        epsilons = {name: epsilon.get(name, 0.0) for name in self.losses}
        if self._unequal and 0 in epsilons.values():
            return math.inf
        return max(_share(value, epsilons[name]) for name, value in self.losses.items())

    @property
    def _unequal(self) -> bool:
        """No loss above 0, and yet not equal: (0.5, 0.5) and (1, 1) have the same direction."""
        if self.loss != 0:
            return False
        if self.needed_epsilon is not None:
            return self.needed_epsilon > 0
        return self.status == "inaccurate"


@dataclass(frozen=True)
class CachedTuning:
    """One tuning of a cache.

    Attributes:
        tuning: node id of the test without the route; of foreign caches empty.
        writer: what wrote the cache.
        epsilon: None where the cache has none.
        default_route: in full.
        routes: in the order they ran, the last row of each.
    """

    tuning: str
    writer: Writer
    backend: str
    tuner_version: str
    search: str
    metric: str
    epsilon: Epsilon | None
    default_route: str
    routes: tuple[CachedRoute, ...]

    @cached_property
    def default(self) -> CachedRoute | None:
        """The default route, None if it did not run."""
        return next((route for route in self.routes if not route.changes), None)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The names losses are kept by."""
        return tuple(dict.fromkeys(name for route in self.routes for name in route.losses))

    @cached_property
    def comparable(self) -> tuple[CachedRoute, ...]:
        """The timed routes that compare: of the default's kind, graph and case, or of the most common."""
        timed = [route for route in self.routes if route.latency_s is not None]
        if not timed:
            return ()
        if self.default is not None and self.default.latency_s is not None:
            kind = self.default.timed
        else:
            kinds = [route.timed for route in timed]
            kind = max(kinds, key=kinds.count)
        return tuple(route for route in timed if route.timed == kind)

    @cached_property
    def candidates(self) -> tuple[CachedRoute, ...]:
        """The comparable routes with a loss: those that are eligible at some epsilon, if it is finite."""
        return tuple(route for route in self.comparable if route.status in COMPARED and route.losses)

    def needed(self, route: CachedRoute) -> float | None:
        """The smallest epsilon at which a route passes, None where it has no loss.

        Where the tuning has an epsilon for each output: the smallest multiple of all of them.
        """
        if not route.losses:
            return None
        if isinstance(self.epsilon, Mapping):
            return route.multiple(self.epsilon)
        return route.needed

    def speedup(self, route: CachedRoute) -> float | None:
        """The default's latency over the route's, None where one was not timed or the two do not compare."""
        default = self.default
        if default is None or default.latency_s is None or route.latency_s is None:
            return None
        return default.latency_s / route.latency_s if route.timed == default.timed else None


def cached_tunings(content: CacheContent) -> tuple[CachedTuning, ...]:
    """Every tuning of a cache that has a route.

    Raises:
        CacheError: a row or header has something else where a route, a number or a name belongs.
    """
    return tuple(
        _tuning(name, content.headers.get(name, {}), rows.values()) for name, rows in content.rows.items()
    )


def writer_of(header: Mapping[str, Any]) -> Writer:
    """What wrote a cache, by its header; a converted one names it."""
    converted = header.get("converted_from")
    if isinstance(converted, Mapping) and converted.get("writer") in ("trtexec", "torch-tensorrt"):
        return "torch-tensorrt" if converted["writer"] == "torch-tensorrt" else "trtexec"
    if header.get("kind") == "header":
        return "pytest-gptune"
    return "torch-tensorrt" if "partition_key" in header or "user_tuning_cache_file" in header else "trtexec"


def _tuning(name: str, header: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> CachedTuning:
    where = f"tuning {printable(name)!r}" if name else "the header"
    epsilon = _epsilon(header, where)
    default_text = header.get("default_build_route") or ""
    default = route_pairs_of(default_text, f"{where}, default_build_route")
    by_changes: dict[frozenset[tuple[str, str]], CachedRoute] = {}
    for row in rows:
        route = _route(row, default, epsilon)
        by_changes.pop(frozenset(route.changes.items()), None)
        by_changes[frozenset(route.changes.items())] = route
    routes = _with_twins(tuple(by_changes.values()))
    return CachedTuning(
        tuning=printable(name),
        writer=writer_of(header),
        backend=_word(header, "backend"),
        tuner_version=_word(header, "tuner_version"),
        search=_word(header, "searching_algorithm"),
        metric=_word(header, "accuracy_algorithm"),
        epsilon=epsilon,
        default_route=printable(str(default_text)),
        routes=routes,
    )


def _with_twins(routes: tuple[CachedRoute, ...]) -> tuple[CachedRoute, ...]:
    """The routes, with those that are inert given the figures of the route whose engine is theirs."""
    twins = {r.engine_digest: r for r in reversed(routes) if r.status != "inert" and r.engine_digest}
    found = []
    for route in routes:
        twin = twins.get(route.engine_digest) if route.status == "inert" else None
        if twin is not None:
            route = replace(
                route,
                losses=twin.losses,
                needed_epsilon=twin.needed,
                latency_s=twin.latency_s,
                interval=twin.interval,
                timed=twin.timed,
                at_hosts_pace=twin.at_hosts_pace,
            )
        found.append(route)
    return tuple(found)


def _route(row: Mapping[str, Any], default: Mapping[str, str], epsilon: Epsilon | None) -> CachedRoute:
    where = f"the row with iter {row.get('iter')!r}"
    own = route_pairs_of(row.get("build_route"), where)
    values = {**default, **own}
    changes = {knob: value for knob, value in values.items() if default.get(knob) != value}
    record = row.get("record")
    record = record if isinstance(record, Mapping) else {}
    losses = _losses(row, where)
    latency_s = _latency_s(row)
    error = printable(_word(row, "error_message"))
    timed, interval = _timing(record)
    needed = record.get("needed_epsilon")
    status = _word(row, "status") if "status" in row else foreign_status(row, losses, error, epsilon)
    key = record.get("key")
    mine = Route(tuple(values.items()))
    shown = key if isinstance(key, str) else " ".join(f"{knob}={value}" for knob, value in changes.items())
    return CachedRoute(
        route=printable(shown) or "default",
        id=mine.id_against(Route(tuple(default.items()))),
        changes=changes,
        status=status,
        losses=losses,
        needed_epsilon=None if needed is None else _loss(needed, where),
        latency_s=latency_s,
        interval=interval if latency_s is not None else None,
        timed=timed,
        at_hosts_pace=latency_s is not None and _at_hosts_pace(record),
        engine_digest=printable(_word(row, "engine_digest")),
        error=error,
    )


def foreign_status(
    row: Mapping[str, Any], losses: Mapping[str, float], error: str, epsilon: Epsilon | None
) -> str:
    """The status of a row that has none, from what trtexec and Torch-TensorRT write.

    Without an epsilon, or without losses, nothing was compared: the route is ``unchecked``.
    """
    if row.get("crash"):
        return "crashed"
    if losses and epsilon is not None:
        return "passed" if CachedRoute("", "", {}, "", losses).passes(epsilon) else "inaccurate"
    return "rejected" if error else "unchecked"


def route_pairs_of(text: object, where: str) -> dict[str, str]:
    """Value by knob of a route as caches have it.

    Raises:
        CacheError: it is none.
    """
    if not isinstance(text, str):
        raise CacheError(f"{text!r:.80} is not a build route", where=where)
    pairs = [token.partition("=")[::2] for token in text.split()]
    try:
        return Route(tuple(pairs)).as_dict()
    except RouteError as error:
        raise CacheError(error.what, where=where, mend=error.mend) from None


def printable(text: str) -> str:
    """The text with ``?`` for what a terminal would obey or cannot show: a cache may come from a stranger."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def _word(plain: Mapping[str, Any], key: str) -> str:
    value = plain.get(key)
    return printable(value) if isinstance(value, str) else ""


def _epsilon(header: Mapping[str, Any], where: str) -> Epsilon | None:
    parameter = header.get("accuracy_parameter")
    value = parameter.get("epsilon") if isinstance(parameter, Mapping) else None
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {printable(name): _loss(item, where) for name, item in value.items()}
    return _loss(value, where)


def _losses(row: Mapping[str, Any], where: str) -> dict[str, float]:
    losses = row.get("accuracy_loss")
    if losses is None:
        return {}
    if not isinstance(losses, Mapping):
        raise CacheError("accuracy_loss is not a loss by output", where=where)
    return {printable(name): _loss(value, where) for name, value in losses.items()}


def _loss(value: object, where: str) -> float:
    """A loss; null is what trtexec's writer makes of NaN and infinity, ours spells them."""
    if value is None:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise CacheError(f"{value!r:.80} is not a loss", where=where)
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise CacheError(f"{value!r:.80} is not a loss", where=where) from None
    if number < 0:
        raise CacheError(f"the loss {value!r:.80} is negative", where=where)
    return math.inf if math.isnan(number) else number


def _latency_s(row: Mapping[str, Any]) -> float | None:
    """Seconds; trtexec writes 0 for an engine that it did not time."""
    if row.get("crash"):
        return None
    if "latency_s" in row:
        return _seconds(row["latency_s"])
    return _seconds(row.get("gpu_time"), 1e-3)


def _seconds(value: object, unit_s: float = 1.0) -> float | None:
    """A latency in seconds, None for what cannot be one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        seconds = float(value) * unit_s
    except OverflowError:
        return None
    return seconds if _SHORTEST_S <= seconds <= _LONGEST_S else None


def _timing(record: Mapping[str, Any]) -> tuple[tuple[str, bool, str], tuple[float, float] | None]:
    latency = record.get("latency")
    latency = latency if isinstance(latency, Mapping) else {}
    given = latency.get("interval")
    interval: tuple[float, float] | None = None
    if isinstance(given, (list, tuple)) and len(given) == 2:
        low, high = _seconds(given[0]), _seconds(given[1])
        # An interval from 0 bounds no ratio.
        interval = (low, high) if low is not None and high is not None and low <= high else None
    return (
        _word(latency, "latency_kind"),
        record.get("graph") is True,
        _word(record, "timed_case"),
    ), interval


def _at_hosts_pace(record: Mapping[str, Any]) -> bool:
    latency = record.get("latency")
    warnings = latency.get("warnings") if isinstance(latency, Mapping) else None
    return isinstance(warnings, (list, tuple)) and told_enqueue_bound(warnings)


def _share(loss: float, epsilon: float) -> float:
    if loss == 0:
        return 0.0
    return loss / epsilon if epsilon else math.inf
