"""Which route would win at another epsilon: read off a cache, nothing is run.

A route is eligible at an epsilon when it has a latency and every loss of it is within. Latencies are those of
first measurements; they say which routes are worth a run of their own, and decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_gptune.records.cached_tuning import CachedRoute, CachedTuning, Epsilon
from pytest_gptune.records.tuning_cache import CacheError
from pytest_gptune.routes.knobs import nearest


@dataclass(frozen=True)
class Rung:
    """What holds at one epsilon.

    Attributes:
        epsilon: the most loss that passes.
        multiple: of the tuning's own epsilons, where it has one for each output and the ladder was derived.
        eligible: how many routes have a latency and are within.
        winner: the fastest of them; of equally fast ones that with the fewest changes, then by its text.
        speedup: the default's latency over the winner's.
    """

    epsilon: Epsilon
    multiple: float | None
    eligible: int
    winner: CachedRoute | None
    speedup: float | None


def ladder(tuning: CachedTuning) -> tuple[Rung, ...]:
    """A rung at each epsilon at which the eligible set changes, ascending.

    With an epsilon for each output these are multiples of all of them. Empty where no route is ever eligible.
    """
    by_step: dict[float, list[CachedRoute]] = {}
    for route in tuning.candidates:
        value = tuning.needed(route)
        if value is not None and math.isfinite(value):
            by_step.setdefault(value, []).append(route)
    rungs: list[Rung] = []
    for step in sorted(by_step):
        before = rungs[-1] if rungs else None
        # The winner so far stands for all it has beaten.
        standing = [before.winner] if before is not None and before.winner is not None else []
        rung = _rung(tuning, [*standing, *by_step[step]], *_epsilon_at(tuning, step))
        count = len(by_step[step]) + (before.eligible if before is not None else 0)
        rungs.append(replace(rung, eligible=count))
    return tuple(rungs)


def _epsilon_at(tuning: CachedTuning, step: float) -> tuple[Epsilon, float | None]:
    if not isinstance(tuning.epsilon, Mapping):
        return step, None
    scaled = {name: value * step for name, value in tuning.epsilon.items()}
    # Up by the last bit, so that rounding lets none of the eligible routes fall out.
    return {name: math.nextafter(value, math.inf) if value else value for name, value in scaled.items()}, step


def rungs_at(tuning: CachedTuning, epsilons: Sequence[Epsilon]) -> tuple[Rung, ...]:
    """A rung at each of ``epsilons``, in their order.

    Raises:
        CacheError: an epsilon for each output does not name exactly the outputs the losses are of.
    """
    return tuple(rung_at(tuning, epsilon) for epsilon in epsilons)


def rung_at(tuning: CachedTuning, epsilon: Epsilon) -> Rung:
    """What holds at ``epsilon``.

    Raises:
        CacheError: an epsilon for each output does not name exactly the outputs the losses are of.
    """
    if isinstance(epsilon, Mapping):
        _check_outputs(tuning, epsilon)
    eligible = [route for route in tuning.candidates if route.passes(epsilon)]
    return _rung(tuning, eligible, epsilon, None)


def _rung(
    tuning: CachedTuning, eligible: Sequence[CachedRoute], epsilon: Epsilon, multiple: float | None
) -> Rung:
    def rank(route: CachedRoute) -> tuple[float, bool, int, str]:
        # An inert route is as fast as the plainer one whose engine it has, and never wins over it. The text
        # decides at last: which of two equal routes wins must not depend on which is asked about first.
        return route.latency_s or math.inf, route.status == "inert", len(route.changes), route.route

    winner = min(eligible, key=rank, default=None)
    speedup = None if winner is None else tuning.speedup(winner)
    return Rung(epsilon, multiple, len(eligible), winner, speedup)


def _check_outputs(tuning: CachedTuning, epsilon: Mapping[str, float]) -> None:
    outputs = tuning.outputs
    if not outputs:
        return
    missing = [f"output {name!r} has no epsilon" for name in outputs if name not in epsilon]
    for name in epsilon:
        if name not in outputs:
            near = nearest(name, outputs)
            missing.append(f"there is no output {name!r}" + (f", nearest is {near!r}" if near else ""))
    if missing:
        raise CacheError(
            "epsilon does not name the outputs: " + "; ".join(missing),
            where=tuning.tuning,
            mend="write " + ",".join(f"{name}=X" for name in outputs) + ", or one number for all",
        )
