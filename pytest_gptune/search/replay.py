"""The replay search: routes that are known already, so that an ordinary run gates cheaply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_gptune.routes import Route
from pytest_gptune.search.base import RouteResult


@dataclass(frozen=True, slots=True)
class ReplaySearch:
    """The given routes in the given order, each once: the default route and the baseline's winner."""

    routes: tuple[Route, ...]
    name: str = field(default="replay", init=False)

    def __post_init__(self) -> None:
        # The winner often is the default route.
        object.__setattr__(self, "routes", tuple(dict.fromkeys(self.routes)))

    def initial(self) -> tuple[Route, ...]:
        """All routes of the search."""
        return self.routes

    def propose(self, results: Sequence[RouteResult]) -> tuple[Route, ...]:
        """Nothing: all routes are known from the start."""
        return ()

    def notes(self, results: Sequence[RouteResult]) -> tuple[str, ...]:
        """Nothing to say."""
        return ()
