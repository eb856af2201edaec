"""The coordinate search: steps along one knob, from the best passing route."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_gptune.routes import Route, RouteExpression
from pytest_gptune.search.base import RouteResult
from pytest_gptune.search.significance import fastest_passing, significantly_faster


@dataclass(frozen=True, slots=True)
class CoordinateSearch:
    """One knob after another: its values are tried on the best passing route, the best one is kept.

    It ends when a round over all knobs has changed nothing. The walk is made again from the results at every
    call, so that a search that is resumed goes on where it was.
    """

    expression: RouteExpression
    name: str = field(default="coordinate", init=False)

    def initial(self) -> tuple[Route, ...]:
        """The default route; what follows depends on results."""
        return (self.expression.default,)

    def propose(self, results: Sequence[RouteResult]) -> tuple[Route, ...]:
        """The values of the next knob that were not measured yet."""
        known = {result.route: result for result in results}
        default = known.get(self.expression.default)
        if default is None:
            return ()
        here = default
        if not default.passed:
            # Nothing to start from: one step from the default in every direction, for one that passes.
            steps = self.expression.fast()[1:]
            if missing := tuple(route for route in steps if route not in known):
                return missing
            found = fastest_passing(known[route] for route in steps)
            if found is None:
                return ()
            here = found
        moved = True
        while moved:
            moved = False
            for term in reversed(self.expression.terms):
                steps = tuple(
                    Route(((term.knob.name, value),)).over(here.route)
                    for value in term.available
                    if value != here.route.as_dict()[term.knob.name]
                )
                if missing := tuple(route for route in steps if route not in known):
                    return missing
                best = fastest_passing(known[route] for route in steps)
                if best is not None and significantly_faster(best, here):
                    here, moved = best, True
        return ()

    def notes(self, results: Sequence[RouteResult]) -> tuple[str, ...]:
        """Nothing to say."""
        return ()
