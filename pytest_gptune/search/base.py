"""The seam between a search and what runs its routes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

from pytest_gptune.routes import Route, RouteSequence

RouteStatus = Literal[
    "passed",
    "inaccurate",
    "rejected",
    "crashed",
    "timeout",
    "out_of_memory",
    "inert",
    "pruned",
    "skipped",
    "unchecked",
    "test_failed",
]
"""What became of a route."""

ROUTE_STATUSES: tuple[RouteStatus, ...] = get_args(RouteStatus)


@dataclass(frozen=True, slots=True)
class RouteResult:
    """What a search is told about a route.

    Attributes:
        route: the route.
        status: one of ``ROUTE_STATUSES``.
        latency_s: the statistic of its samples, in seconds; None when it was not timed.
        interval: the confidence interval of ``latency_s``, in seconds; None when there is none.
        loss: the worst loss over outputs and cases; None when none was computed.
        at_hosts_pace: the host could not enqueue as fast as the device computed, so that ``latency_s`` is the
            host's, and what a knob does for the device does not show in it.
    """

    route: Route
    status: str
    latency_s: float | None
    interval: tuple[float, float] | None
    loss: float | None = None
    at_hosts_pace: bool = False

    @property
    def passed(self) -> bool:
        """Whether it may win."""
        return self.status == "passed"


@runtime_checkable
class Search(Protocol):
    """Proposes routes, and is told results."""

    @property
    def name(self) -> str:
        """What ``--gptune-search`` calls it."""

    def initial(self) -> RouteSequence | tuple[Route, ...]:
        """The distinct routes known at collection, which become test items."""

    def propose(self, results: Sequence[RouteResult]) -> tuple[Route, ...]:
        """Further routes, given the results of all routes so far. An empty tuple ends the search."""

    def notes(self, results: Sequence[RouteResult]) -> tuple[str, ...]:
        """Sentences for the report, when the search has ended."""
