"""Whether a first measurement shows a route to be faster than another."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_gptune.search.base import RouteResult

# Two builds of one route differ by as much, and no interval of a single build knows it.
_EFFECT = 1.01


def significantly_faster(one: RouteResult, other: RouteResult) -> bool:
    """Whether ``one`` is faster by more than builds differ, with intervals that do not touch."""
    if one.latency_s is None or other.latency_s is None or one.interval is None or other.interval is None:
        return False
    return one.interval[1] < other.interval[0] and one.latency_s * _EFFECT < other.latency_s


def fastest_passing(results: Iterable[RouteResult]) -> RouteResult | None:
    """The fastest route that passed; the first of several as fast. None where none passed and was timed."""
    passing = [result for result in results if result.passed and result.latency_s is not None]
    return min(passing, key=lambda result: result.latency_s or 0.0, default=None)
