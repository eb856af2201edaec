"""The mixed search: one knob at a time, then the combinations of what helped."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pytest_gptune.routes import Route, RouteExpression, RouteSequence
from pytest_gptune.search.base import RouteResult
from pytest_gptune.search.significance import fastest_passing, significantly_faster

# A value of a knob and what it is expected to multiply the latency with.
_Choice = tuple[float, str]


@dataclass(frozen=True, slots=True)
class MixedSearch:
    """Fast, then the product of the values that were significantly faster and accurate.

    Combinations are tried best first, by the product of what each value did alone. All is decided from the
    results of the first phase, so that a search that is resumed goes on where it was.

    Where the default route is inaccurate, no value can be accurate alone unless it mends that. The best
    passing route is started from then, and every value that was faster than the default is combined with it.

    Attributes:
        max_routes: the most combinations that are tried.
    """

    expression: RouteExpression
    max_routes: int
    name: str = field(default="mixed", init=False)

    def initial(self) -> RouteSequence:
        """The routes of the first phase."""
        return self.expression.fast()

    def propose(self, results: Sequence[RouteResult]) -> tuple[Route, ...]:
        """The combinations that were not measured yet, best first."""
        known = {result.route for result in results}
        return tuple(route for route in self._combinations(results) if route not in known)

    def notes(self, results: Sequence[RouteResult]) -> tuple[str, ...]:
        """How many combinations there are, where not all are tried."""
        choices = self._choices(results)
        count = 0 if choices is None else _combined(choices)
        if count <= self.max_routes:
            return ()
        return (
            f"mixed: {count} combinations of what helped; the best {self.max_routes} by prediction were "
            "tried (ini gptune_mixed_max_routes)",
        )

    def _combinations(self, results: Sequence[RouteResult]) -> tuple[Route, ...]:
        choices = self._choices(results)
        if choices is None:
            return ()
        names = [term.knob.name for term in self.expression.terms]
        routes = self.initial()
        found: list[Route] = []
        for values in _best_first(choices):
            if len(found) == self.max_routes:
                break
            route = Route(tuple(zip(names, values, strict=True)))
            if route not in routes:
                found.append(route)
        return tuple(found)

    def _choices(self, results: Sequence[RouteResult]) -> list[list[_Choice]] | None:
        """For each knob the value started from and the values that helped; None where nothing passed."""
        known = {result.route: result for result in results}
        default = known.get(self.expression.default)
        if default is None or default.latency_s is None:
            return None
        singles = [known[route] for route in self.initial() if route in known and route != default.route]
        start = default if default.passed else fastest_passing(singles)
        if start is None:
            return None
        started, defaults = start.route.as_dict(), default.route.as_dict()
        choices: list[list[_Choice]] = [[(1.0, started[name])] for name in defaults]
        for single in singles:
            useful = single.passed or not default.passed
            if single.latency_s is None or not useful or not significantly_faster(single, default):
                continue
            changed = [(i, n, v) for i, (n, v) in enumerate(single.route.values) if v != defaults[n]]
            for slot, name, value in changed:
                # The knob that made the start accurate is held.
                if started[name] == defaults[name]:
                    choices[slot].append((single.latency_s / default.latency_s, value))
        return choices


def _combined(choices: list[list[_Choice]]) -> int:
    """How many combinations change two knobs or more."""
    return math.prod(map(len, choices)) - 1 - sum(len(choice) - 1 for choice in choices)


def _best_first(choices: list[list[_Choice]]) -> Iterator[tuple[str, ...]]:
    """The product of the choices, in the order of the product of their factors, made one at a time.

    A combination is followed by those that take the next best value of one knob, so that the heap holds no
    more than what was given out times the number of knobs.
    """
    ranked = [sorted(choice, key=lambda pair: pair[0]) for choice in choices]

    def factor(picks: tuple[int, ...]) -> float:
        return math.prod(choice[pick][0] for choice, pick in zip(ranked, picks, strict=True))

    first = (0,) * len(ranked)
    heap = [(factor(first), first)]
    seen = {first}
    while heap:
        _, picks = heapq.heappop(heap)
        yield tuple(choice[pick][1] for choice, pick in zip(ranked, picks, strict=True))
        for slot, pick in enumerate(picks):
            if pick + 1 < len(ranked[slot]):
                after = (*picks[:slot], pick + 1, *picks[slot + 1 :])
                if after not in seen:
                    seen.add(after)
                    heapq.heappush(heap, (factor(after), after))
