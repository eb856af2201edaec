"""Knob values that helped before, from caches of earlier runs or of other tools: hints of what to try first.

What helped one model on one machine need not help another. A hint changes the order in which routes are
tried, never what is believed of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_gptune.records.cached_tuning import CachedRoute, CachedTuning, cached_tunings
from pytest_gptune.records.effects import Effect, effects
from pytest_gptune.records.tuning_cache import CacheContent


@dataclass(frozen=True)
class KnobHint:
    """A knob value that made engines faster and kept them accurate.

    Attributes:
        knob: name with its leading dash.
        value: the value.
        ratio: latency with the value over latency with the default's; below 1. The geometric mean over
            tunings, in each by itself where it helped so, else over all pairs.
        significant: in at least one tuning the whole interval of the ratio is below 1, and in none above.
        checked: losses were compared with an epsilon; False where the caches have no losses.
        helped: tunings in which it was faster, significantly where it has an interval there.
        seen: tunings in which it was timed.
    """

    knob: str
    value: str
    ratio: float
    significant: bool
    checked: bool
    helped: int
    seen: int


def helpful_values(contents: Iterable[CacheContent]) -> tuple[KnobHint, ...]:
    """The knob values that helped, the most helpful first.

    A value helped in a tuning if it made the default route faster, or, taken over all pairs of routes that
    differ in it alone, those that have it were: with the whole interval where there is one, by the ratio
    where there is none, as in trtexec's and Torch-TensorRT's caches. Only routes that passed count; where a
    tuning compared no outputs, those that ran. Significant values come first, then those of checked routes,
    then by ratio.

    Raises:
        CacheError: a row has something else where a route or a number belongs.
    """
    found: dict[tuple[str, str], list[tuple[Effect, bool]]] = {}
    for content in contents:
        for tuning in cached_tunings(content):
            checked = bool(tuning.outputs)
            for effect in _telling(tuning):
                found.setdefault((effect.knob, effect.value), []).append((effect, checked))
    hints = (_hint(knob, value, seen) for (knob, value), seen in found.items())
    return tuple(
        sorted(
            (hint for hint in hints if hint is not None),
            key=lambda hint: (not hint.significant, not hint.checked, hint.ratio, hint.knob, hint.value),
        )
    )


def _telling(tuning: CachedTuning) -> list[Effect]:
    """For each value the effect that says most: on the default route, where it helped, or over all pairs.

    A value that does nothing beside some others, as a fusion turned off where there is none, has a wide
    interval over all pairs however much it gains by itself.
    """
    status = "passed" if tuning.outputs else "unchecked"

    def accepted(route: CachedRoute) -> bool:
        return route.status == status

    def alone(route: CachedRoute) -> bool:
        return accepted(route) and len(route.changes) == 1

    pairs = zip(effects(tuning, alone), effects(tuning, accepted), strict=True)
    chosen = (by_itself if _helped(by_itself) else overall for by_itself, overall in pairs)
    return [effect for effect in chosen if effect.ratio is not None]


def _hint(knob: str, value: str, seen: list[tuple[Effect, bool]]) -> KnobHint | None:
    ratio = math.exp(statistics.fmean(math.log(e.ratio) for e, _ in seen if e.ratio is not None))
    helped = [(e, checked) for e, checked in seen if _helped(e)]
    if not helped or ratio >= 1:
        return None
    return KnobHint(
        knob=knob,
        value=value,
        ratio=ratio,
        significant=any(e.faster for e, _ in seen) and not any(e.slower for e, _ in seen),
        checked=any(checked for _, checked in helped),
        helped=len(helped),
        seen=len(seen),
    )


def _helped(effect: Effect) -> bool:
    if effect.inert == effect.pairs:
        return False  # one engine measured twice
    if effect.interval is not None:
        return effect.faster
    return effect.ratio is not None and effect.ratio < 1
