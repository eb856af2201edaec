"""The full search: every combination of the listed values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_gptune.routes import Route, RouteExpression, RouteSequence
from pytest_gptune.search.base import RouteResult


@dataclass(frozen=True, slots=True)
class FullSearch:
    """The product of the listed values, led by the default route when the lists omit it.

    The default route is the yardstick of every speedup and of the baseline, so it is always measured.
    """

    expression: RouteExpression
    name: str = field(default="full", init=False)

    def initial(self) -> RouteSequence:
        """All routes of the search."""
        routes = self.expression.full()
        default = self.expression.default
        return routes if default in routes else _LedBy(default, routes)

    def propose(self, results: Sequence[RouteResult]) -> tuple[Route, ...]:
        """Nothing: all routes are known from the start."""
        return ()

    def notes(self, results: Sequence[RouteResult]) -> tuple[str, ...]:
        """Nothing to say."""
        return ()


class _LedBy(RouteSequence):
    """A route, then a sequence that lacks it."""

    __slots__ = ("_first", "_rest")

    def __init__(self, first: Route, rest: RouteSequence) -> None:
        self._first = first
        self._rest = rest

    @property
    def count(self) -> int:
        """One more than the sequence has."""
        return 1 + self._rest.count

    def _at(self, index: int) -> Route:
        return self._rest[index - 1] if index else self._first

    def _position(self, route: Route) -> int | None:
        if route == self._first:
            return 0
        return 1 + self._rest.index(route) if route in self._rest else None
