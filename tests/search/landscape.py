"""Landscapes of latency and loss over routes, and what a search finds on them: no engine, no clock."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_gptune.routes import Knob, KnobSpace, Route, RouteExpression, RouteSequence
from pytest_gptune.search import RouteResult, Search


@dataclass(frozen=True)
class Landscape:
    """What every route of a space is like.

    Attributes:
        knobs: values of each knob, the default first.
        factors: what a choice of values multiplies the latency with, keyed as ``-a=on`` or ``-a=on -b=on``.
        losses: the loss that a choice of values adds; a route passes up to 1.
        noise: half the width of an interval, as a share of the latency.
        hosts_pace: no route is faster than that, but those with ``ahead``.
        ahead: the choice that takes the host out.
    """

    knobs: Mapping[str, tuple[str, ...]]
    factors: Mapping[str, float] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)
    noise: float = 0.002
    hosts_pace: float = 0.0
    ahead: str = ""

    @property
    def expression(self) -> RouteExpression:
        """All values of all knobs."""
        space = KnobSpace("1", tuple(Knob(n, values, values[0], "") for n, values in self.knobs.items()))
        return RouteExpression.parse(" ".join(f"{n}=[{'|'.join(v)}]" for n, v in self.knobs.items()), space)

    def result(self, route: Route) -> RouteResult:
        """What a run of the route would have found."""
        latency = math.prod(factor for choice, factor in self.factors.items() if _chosen(choice, route))
        loss = sum(loss for choice, loss in self.losses.items() if _chosen(choice, route))
        waits = latency < self.hosts_pace and not _chosen(self.ahead, route)
        latency = self.hosts_pace if waits else latency
        interval = (latency * (1 - self.noise), latency * (1 + self.noise))
        return RouteResult(route, "passed" if loss <= 1 else "inaccurate", latency, interval, loss, waits)

    def best(self) -> RouteResult:
        """The fastest route that passes, of all."""
        names = list(self.knobs)
        routes = (Route(tuple(zip(names, v, strict=True))) for v in itertools.product(*self.knobs.values()))
        return min(
            (r for r in map(self.result, routes) if r.passed), key=lambda result: result.latency_s or 0.0
        )


@dataclass
class Found:
    """What a search found, and what it took.

    Attributes:
        rounds: routes of each proposal.
    """

    results: list[RouteResult]
    rounds: list[tuple[Route, ...]]

    @property
    def best(self) -> RouteResult:
        """The fastest route that passed."""
        return min((r for r in self.results if r.passed), key=lambda result: result.latency_s or 0.0)


def run(search: Search, landscape: Landscape, *, most: int = 100_000) -> Found:
    """Run a search to its end, as the plugin does."""
    first = search.initial()
    routes = first[:] if isinstance(first, RouteSequence) else first
    results = [landscape.result(route) for route in routes]
    rounds: list[tuple[Route, ...]] = []
    while proposed := search.propose(results):
        known = {result.route for result in results}
        assert len(set(proposed)) == len(proposed), "a route was proposed twice at once"
        assert not known & set(proposed), "a measured route was proposed again"
        rounds.append(proposed)
        results += [landscape.result(route) for route in proposed]
        assert len(results) <= most
    return Found(results, rounds)


def _chosen(choice: str, route: Route) -> bool:
    values = route.as_dict()
    return all(values.get(name) == value for name, value in (pair.split("=") for pair in choice.split()))


SWITCHES: dict[str, tuple[str, ...]] = {f"-{name}": ("off", "on") for name in "abcdefgh"}

PLANTED = Landscape(
    knobs={**SWITCHES, "-mode": ("plain", "quick", "wrong")},
    factors={
        "-a=on": 0.90,
        "-b=on": 0.95,
        "-g=on": 1.2,
        # Each slightly bad, together best.
        "-c=on": 1.03,
        "-d=on": 1.03,
        "-c=on -d=on": 0.5,
        # The fastest of all, and not accurate.
        "-mode=quick": 0.97,
        "-mode=wrong": 0.3,
        "-e=on": 0.99,
        "-f=on": 0.99,
        "-e=on -f=on": 0.7,
    },
    losses={"-mode=wrong": 5.0, "-e=on -f=on": 2.0},
)
"""Two values that help, a pair that helps only together, an inaccurate pair and an inaccurate value."""
