"""The mixed search: one knob at a time, then the combinations of what helped."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_gptune.routes import Route, RouteExpression, RouteSequence
from pytest_gptune.search.base import RouteResult
from pytest_gptune.search.significance import fastest_passing, significantly_faster

# The most steps whose gain is looked into; beyond these a value would have to help by less than all of them.
_MOST_PROMISING = 24

# A value of a knob and what it is expected to multiply the latency with.
_Choice = tuple[float, str]


@dataclass(frozen=True, slots=True)
class MixedSearch:
    """Fast, then the product of the values that were significantly faster and accurate.

    Combinations are tried best first, by the product of what each value did alone. All is decided from
    results, so that a search that is resumed goes on where it was.

    Where the default route is inaccurate, next to no value can be accurate alone: one knob at a time is tried
    once more from the best passing route, and what helped there is combined with it. The same where the
    default has the host's pace and another route the device's: no other gain can show on the default.

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
        """What was not measured yet: steps from where it starts, then combinations, best first."""
        known = {result.route: result for result in results}
        start = self._start(known)
        if start is None:
            return ()
        if missing := tuple(route for route in self._steps(start.route) if route not in known):
            return missing
        return tuple(route for route in self._combinations(start, known) if route not in known)

    def promising(self, results: Sequence[RouteResult]) -> tuple[Route | None, tuple[Route, ...]]:
        """Where it starts, and the steps from there that passed and looked faster, best first.

        What follows rests on these: whoever can should measure them again, in turns, before results are told.
        None, and no step, as long as a step was not measured.
        """
        known = {result.route: result for result in results}
        start = self._start(known)
        if start is None or any(route not in known for route in self._steps(start.route)):
            return None, ()
        steps = [known[route] for route in self._steps(start.route)]
        faster = [s for s in steps if s.passed and s.latency_s and s.latency_s < (start.latency_s or 0.0)]
        ranked = sorted(faster, key=lambda step: step.latency_s or 0.0)
        return start.route, tuple(step.route for step in ranked[:_MOST_PROMISING])

    def notes(self, results: Sequence[RouteResult]) -> tuple[str, ...]:
        """How many combinations there are, where not all are tried."""
        known = {result.route: result for result in results}
        start = self._start(known)
        count = 0 if start is None else _combined(self._choices(start, known))
        if count <= self.max_routes:
            return ()
        return (
            f"mixed: {count} combinations of what helped; the best {self.max_routes} by prediction were "
            "tried (ini gptune_mixed_max_routes)",
        )

    def _start(self, known: Mapping[Route, RouteResult]) -> RouteResult | None:
        """The default where it passed and tells of the device, else the fastest of the first phase."""
        default = known.get(self.expression.default)
        if default is None or (default.passed and default.latency_s is None):
            return None
        first = [known[route] for route in self.initial() if route in known]
        if not default.passed:
            return fastest_passing(first)
        if default.at_hosts_pace:
            found = fastest_passing(result for result in first if not result.at_hosts_pace)
            if found is not None and significantly_faster(found, default):
                return found
        return default

    def _steps(self, start: Route) -> Iterator[Route]:
        """The routes that differ from ``start`` in one knob."""
        values = start.as_dict()
        for term in reversed(self.expression.terms):
            for value in term.available:
                if value != values[term.knob.name]:
                    yield Route(((term.knob.name, value),)).over(start)

    def _combinations(self, start: RouteResult, known: Mapping[Route, RouteResult]) -> tuple[Route, ...]:
        names = [name for name, _ in start.route.values]
        started = [value for _, value in start.route.values]
        found: list[Route] = []
        for values in _best_first(self._choices(start, known)):
            if len(found) == self.max_routes:
                break
            if sum(value != was for value, was in zip(values, started, strict=True)) > 1:
                found.append(Route(tuple(zip(names, values, strict=True))))
        return tuple(found)

    def _choices(self, start: RouteResult, known: Mapping[Route, RouteResult]) -> list[list[_Choice]]:
        """For each knob of the start its value, and the values that were faster and accurate in its place."""
        choices: dict[str, list[_Choice]] = {name: [(1.0, value)] for name, value in start.route.values}
        for route in self._steps(start.route):
            step = known.get(route)
            if step is None or not step.passed or not significantly_faster(step, start):
                continue
            ((name, value),) = set(route.values) - set(start.route.values)
            choices[name].append(((step.latency_s or 0.0) / (start.latency_s or 1.0), value))
        return list(choices.values())


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
