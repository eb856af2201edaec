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
        keys = {route: str(route.minimal(space)) for route in (start, *promising)}
        measured = self._contested(tuple(keys.values()))
        if not measured.builds(keys[start]):
            return list(results)
        before = next(result.latency_s for result in results if result.route == start)
        drift = measured.latency(keys[start]) / before if before else 1.0
        return [self._again(result, keys, start, measured, drift) for result in results]

    def _contested(self, keys: tuple[str, ...]) -> FinalsResult:
        if keys not in self._measured:
            contest = self.contest(keys)
            contest.run()
            self._measured[keys] = contest.result
        return self._measured[keys]

    def _again(
        self,
        result: RouteResult,
        keys: dict[Route, str],
        start: Route,
        measured: FinalsResult,
        drift: float,
    ) -> RouteResult:
        key, base = keys.get(result.route), keys[start]
        if key is None:
            # Not measured again: the machine moved it as it moved the start.
            return result if result.latency_s is None else _scaled(result, drift)
        if not measured.builds(key):
            return replace(result, status="crashed", latency_s=None, interval=None)
        base_s = measured.latency(base)
        if key == base:
            # All ratios are to it: what is not known of it is in theirs.
            return replace(result, latency_s=base_s, interval=(base_s, base_s))
        ratio = measured.ratio(key, base)
        interval = (ratio.low * base_s, ratio.high * base_s)
        return replace(result, latency_s=ratio.value * base_s, interval=interval)


def _scaled(result: RouteResult, factor: float) -> RouteResult:
    interval = None if result.interval is None else (result.interval[0] * factor, result.interval[1] * factor)
    return replace(result, latency_s=(result.latency_s or 0.0) * factor, interval=interval)
