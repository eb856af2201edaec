"""The fast search: which knob, changed alone, helps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_gptune.routes import Route, RouteExpression, RouteSequence
from pytest_gptune.search.base import RouteResult


@dataclass(frozen=True, slots=True)
class FastSearch:
    """The default route, then one knob at a time."""

    expression: RouteExpression
    name: str = field(default="fast", init=False)

    def initial(self) -> RouteSequence:
        """All routes of the search."""
        return self.expression.fast()

    def propose(self, results: Sequence[RouteResult]) -> tuple[Route, ...]:
        """Nothing: all routes are known from the start."""
        return ()

    def notes(self, results: Sequence[RouteResult]) -> tuple[str, ...]:
        """Nothing to say."""
        return ()
