"""Searches: what turns an expression into routes. Pure: they propose routes and are told results."""

from __future__ import annotations

from pytest_gptune.routes import RouteError, RouteExpression, RouteSequence
from pytest_gptune.routes.knobs import nearest
from pytest_gptune.search.base import ROUTE_STATUSES, RouteResult, RouteStatus, Search
from pytest_gptune.search.coordinate import CoordinateSearch
from pytest_gptune.search.fast import FastSearch
from pytest_gptune.search.full import FullSearch
from pytest_gptune.search.mixed import MixedSearch
from pytest_gptune.search.replay import ReplaySearch

__all__ = [
    "ROUTE_STATUSES",
    "SEARCHES",
    "CoordinateSearch",
    "FastSearch",
    "FullSearch",
    "MixedSearch",
    "ReplaySearch",
    "RouteResult",
    "RouteStatus",
    "Search",
    "bounded",
    "create",
]

SEARCHES: tuple[str, ...] = ("replay", "fast", "mixed", "full", "coordinate")


def create(name: str, expression: RouteExpression, *, max_routes: int, mixed_max_routes: int = 256) -> Search:
    """The search ``name`` over ``expression``.

    A replay is not made here: its routes come from a baseline, so its caller makes a :class:`ReplaySearch`.

    Args:
        name: fast, mixed, full or coordinate.
        expression: what to search.
        max_routes: the most routes a search may begin with.
        mixed_max_routes: the most routes of the second phase of mixed.

    Raises:
        RouteError: there is no such search, or it would begin with more than ``max_routes`` routes.
    """
    if name == "fast":
        return bounded(FastSearch(expression), max_routes)
    if name == "mixed":
        return bounded(MixedSearch(expression, mixed_max_routes), max_routes)
    if name == "full":
        return bounded(FullSearch(expression), max_routes)
    if name == "coordinate":
        return CoordinateSearch(expression)
    raise _refusal(name)


def bounded(search: Search, max_routes: int) -> Search:
    """The search, unless it begins with more than ``max_routes`` routes.

    Raises:
        RouteError: it does.
    """
    routes = search.initial()
    count = routes.count if isinstance(routes, RouteSequence) else len(routes)
    if count > max_routes:
        raise RouteError(
            f"the {search.name} search has {_exact(count)} routes, "
            f"more than gptune_max_routes = {max_routes}",
            mend="list fewer knobs or values, choose --gptune-search fast, or raise gptune_max_routes",
        )
    return search


def _refusal(name: str) -> RouteError:
    if name == "replay":
        return RouteError(
            "the search 'replay' takes its routes from a baseline, not from an expression",
            mend="choose --gptune-search fast or --gptune-search full",
        )
    near = nearest(name, SEARCHES)
    hint = f"choose {near}, the nearest of" if near else "choose one of"
    return RouteError(f"unknown search {name!r}", mend=f"{hint} {', '.join(SEARCHES)}")


def _exact(count: int) -> str:
    try:
        return str(count)
    except ValueError:
        # Python refuses to print integers of thousands of digits; the power of two below is exact enough.
        return f"more than 2**{count.bit_length() - 1}"
