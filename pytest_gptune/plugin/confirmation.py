"""Measures again, in turns, what a mixed search builds on.

First measurements are of different minutes, and the first of all is the default's: where the machine became
faster since, every value looks like a gain, and their combinations are many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pytest_gptune.plugin.contest import Contest
from pytest_gptune.routes import KnobSpace, Route
from pytest_gptune.search import MixedSearch, RouteResult
from pytest_gptune.timing.finals import FinalsResult

# Routes that are measured in turns, beside the start: their engines are all there at once, on a GPU each in a
# process and with a context of its own.
_AT_ONCE = 7

# Of the interval that has to lie below 1. A value that is combined by luck costs some routes, and is found
# out by these; one that is left out by bad luck costs what it gains. At 95 % three builds whose ratios differ
# by 3 % leave out gains of 7 %.
_CONFIDENCE = 0.8


@dataclass
class Confirmation:
    """The second measurement of promising routes, once for each place a search starts from.

    Attributes:
        contest: makes a contest of the routes with these keys.
    """

    contest: Callable[[tuple[str, ...]], Contest]
    _measured: dict[tuple[str, ...], FinalsResult] = field(default_factory=dict)

    def confirmed(
        self, search: MixedSearch, results: Sequence[RouteResult], space: KnobSpace
    ) -> list[RouteResult]:
        """The results, with the latencies of promising routes relative to where the search starts.

        Args:
            search: says which are promising.
            results: of all routes so far.
            space: what routes are keyed by.
        """
        start, promising = search.promising(results)
        if start is None or not promising:
            return list(results)
        base = str(start.minimal(space))
        contests: dict[Route, tuple[str, FinalsResult]] = {}
        for first in range(0, len(promising), _AT_ONCE):
            keys = {route: str(route.minimal(space)) for route in promising[first : first + _AT_ONCE]}
            measured = self._contested((base, *keys.values()))
            if not measured.builds(base):
                return list(results)
            contests |= {route: (key, measured) for route, key in keys.items()}
        base_s = contests[promising[0]][1].latency(base)
        before_s = next(result.latency_s for result in results if result.route == start)
        drift = base_s / before_s if before_s else 1.0
        again: list[RouteResult] = []
        for result in results:
            if result.route == start:
                # All ratios are to it: what is not known of it is in theirs.
                again.append(replace(result, latency_s=base_s, interval=(base_s, base_s)))
            elif result.route in contests:
                again.append(_beside(result, *contests[result.route], base, base_s))
            else:
                # Not measured again: the machine moved it as it moved the start.
                again.append(result if result.latency_s is None else _scaled(result, drift))
        return again

    def _contested(self, keys: tuple[str, ...]) -> FinalsResult:
        if keys not in self._measured:
            contest = self.contest(keys)
            contest.run()
            self._measured[keys] = contest.result
        return self._measured[keys]


def _beside(result: RouteResult, key: str, measured: FinalsResult, base: str, base_s: float) -> RouteResult:
    """The result of the route with key ``key``, by its ratio to ``base``, which took ``base_s`` seconds."""
    if not measured.builds(key):
        return replace(result, status="crashed", latency_s=None, interval=None)
    ratio = measured.ratio(key, base, confidence=_CONFIDENCE)
    return replace(result, latency_s=ratio.value * base_s, interval=(ratio.low * base_s, ratio.high * base_s))


def _scaled(result: RouteResult, factor: float) -> RouteResult:
    interval = None if result.interval is None else (result.interval[0] * factor, result.interval[1] * factor)
    return replace(result, latency_s=(result.latency_s or 0.0) * factor, interval=interval)
