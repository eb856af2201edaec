"""What a knob's value does to latency and loss, from pairs of routes that differ in that knob alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_gptune.records.cached_tuning import COMPARED, CachedRoute, CachedTuning
from pytest_gptune.timing.statistics import mean_interval, paired_ratio

Basis = Literal["pairs", "measurements", "none"]

# The interval costs the third power of the number of pairs, and a hundred make it narrow.
MOST_PAIRS = 100

# Their engine died or was refused; what becomes of a test or a check says nothing of the knob.
_FAILED = frozenset({"rejected", "crashed", "timeout", "out_of_memory"})


@dataclass(frozen=True)
class Effect:
    """One value of one knob against the default route's value of it.

    Attributes:
        knob: name with its leading dash.
        value: the value; ``against`` is the default route's, empty where the cache does not name it.
        routes: how many routes have the value.
        failed: how many of them gave no engine that runs.
        pairs: routes that differ in this knob alone and were both timed; pairs of the same two engines are
            one pair.
        inert: of those pairs, how many are one and the same engine.
        ratio: latency with the value over latency without; None without a pair.
        interval: of ``ratio``, 95 %; None where there is none.
        basis: what ``interval`` is taken over: the pairs (of more than 100, 100 evenly spread), or, of the
            only pair, the intervals of its two measurements, which know nothing of the variance between
            builds.
        loss_pairs: pairs that both have a finite loss, counted in the same way.
        loss_change: mean over them of the loss with the value less the loss without, in the unit of
            ``CachedTuning.needed``; None without one.
        loss_interval: Student's interval of ``loss_change``, 95 %, over pairs; None below two.
        loss_infinite: pairs in which the value alone has an infinite loss.
    """

    knob: str
    value: str
    against: str
    routes: int
    failed: int
    pairs: int
    inert: int
    ratio: float | None
    interval: tuple[float, float] | None
    basis: Basis
    loss_pairs: int
    loss_change: float | None
    loss_interval: tuple[float, float] | None
    loss_infinite: int

    @property
    def faster(self) -> bool:
        """Whether the whole interval is below 1."""
        return self.interval is not None and self.interval[1] < 1

    @property
    def slower(self) -> bool:
        """Whether the whole interval is above 1."""
        return self.interval is not None and self.interval[0] > 1


Pair = tuple[CachedRoute, CachedRoute]


def effects(tuning: CachedTuning, accept: Callable[[CachedRoute], bool] | None = None) -> tuple[Effect, ...]:
    """The effect of every value that a route of the tuning has and the default route has not.

    In the order the values were first met.

    Args:
        tuning: the tuning.
        accept: which routes with the value may stand in a pair; None: all.
    """
    by_changes = {frozenset(route.changes.items()): route for route in tuning.routes}
    with_value: dict[tuple[str, str], list[CachedRoute]] = {}
    for route in tuning.routes:
        for change in route.changes.items():
            with_value.setdefault(change, []).append(route)
    default = dict(token.partition("=")[::2] for token in tuning.default_route.split())
    found = []
    for (knob, value), routes in with_value.items():
        pairs = []
        for route in routes:
            without = by_changes.get(frozenset(route.changes.items()) - {(knob, value)})
            if without is not None and (accept is None or accept(route)):
                pairs.append((route, without))
        found.append(_effect(tuning, knob, value, default.get(knob, ""), routes, pairs))
    return tuple(found)


def _effect(
    tuning: CachedTuning,
    knob: str,
    value: str,
    against: str,
    routes: Sequence[CachedRoute],
    pairs: Sequence[Pair],
) -> Effect:
    timed = _of_distinct_engines(
        (first, second)
        for first, second in pairs
        if first.latency_s is not None and second.latency_s is not None and first.timed == second.timed
    )
    # A pair of one engine is no measurement of an effect: where all are, there is none.
    differing = [(a, b) for a, b in timed if not _same_engine(a, b)]
    ratio, interval, basis = _ratio(differing)
    if timed and not differing:
        ratio, interval = 1.0, (1.0, 1.0)
    changes, infinite = _loss_changes(tuning, pairs)
    return Effect(
        knob=knob,
        value=value,
        against=against,
        routes=len(routes),
        failed=sum(route.status in _FAILED for route in routes),
        pairs=len(timed),
        inert=sum(_same_engine(a, b) for a, b in timed),
        ratio=ratio,
        interval=interval,
        basis=basis,
        loss_pairs=len(changes),
        loss_change=statistics.fmean(changes) if changes else None,
        loss_interval=mean_interval(changes) if len(changes) > 1 else None,
        loss_infinite=infinite,
    )


def _of_distinct_engines(pairs: Iterable[Pair]) -> list[Pair]:
    """The pairs, of those with the same two engines the first: an inert route repeats a measurement."""
    found: dict[object, Pair] = {}
    for first, second in pairs:
        # Without a digest nothing says that engines are the same: each route stands for itself.
        found.setdefault(
            (first.engine_digest or first.id, second.engine_digest or second.id), (first, second)
        )
    return list(found.values())


def _same_engine(first: CachedRoute, second: CachedRoute) -> bool:
    return first.engine_digest == second.engine_digest != ""


def _ratio(timed: Sequence[Pair]) -> tuple[float | None, tuple[float, float] | None, Basis]:
    if not timed:
        return None, None, "none"
    count = len(timed)
    if count > MOST_PAIRS:
        timed = [timed[position * count // MOST_PAIRS] for position in range(MOST_PAIRS)]
    first = [a.latency_s for a, _ in timed if a.latency_s is not None]
    second = [b.latency_s for _, b in timed if b.latency_s is not None]
    if len(timed) > 1:
        ratio = paired_ratio(first, second)
        return ratio.value, (ratio.low, ratio.high), "pairs"
    value = first[0] / second[0]
    mine, theirs = timed[0][0].interval, timed[0][1].interval
    if mine is None or theirs is None:
        return value, None, "none"
    return value, (mine[0] / theirs[1], mine[1] / theirs[0]), "measurements"


def _loss_changes(tuning: CachedTuning, pairs: Sequence[Pair]) -> tuple[list[float], int]:
    changes, infinite = [], 0
    compared = (pair for pair in pairs if all(_loss(tuning, route) is not None for route in pair))
    for first, second in _of_distinct_engines(compared):
        mine, theirs = _loss(tuning, first), _loss(tuning, second)
        if mine is None or theirs is None or math.isinf(theirs):
            continue
        if math.isinf(mine):
            infinite += 1
        else:
            changes.append(mine - theirs)
    return changes, infinite


def _loss(tuning: CachedTuning, route: CachedRoute) -> float | None:
    """The worst loss; with an epsilon for each output in epsilons, for each output has its own scale."""
    if route.status not in COMPARED or not route.losses:
        return None
    if isinstance(tuning.epsilon, Mapping):
        return tuning.needed(route)
    return route.loss
