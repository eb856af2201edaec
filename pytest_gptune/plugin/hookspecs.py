"""Hooks that a ``conftest.py`` or a plugin may implement; docs/extending.md has an example of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gptune.accuracy import Metric
    from pytest_gptune.reports.tuning_report import TuningReport
    from pytest_gptune.routes import Route, RouteExpression
    from pytest_gptune.search import Search
    from pytest_gptune.verdict import Verdict


@pytest.hookspec(firstresult=True)
def pytest_gptune_metric(name: str) -> Metric | None:
    """A metric of your own, for ``metric="NAME"`` and ``--gptune-metric NAME``.

    Args:
        name: a name that is not built in.

    Returns:
        A ``pytest_gptune.accuracy.Metric``, or None where the name is not yours.
    """


@pytest.hookspec(firstresult=True)
def pytest_gptune_search(name: str, expression: RouteExpression) -> Search | None:
    """A search of your own, for ``--gptune-search NAME``.

    Its first routes are asked for wherever tests are collected, so they must be the same each time it is
    made; results are told to one object alone, on the process that controls the run.

    Args:
        name: a name that is not built in.
        expression: the knobs and values to search.

    Returns:
        A ``pytest_gptune.search.Search``, or None where the name is not yours.
    """


def pytest_gptune_filter_routes(nodeid: str, routes: Sequence[Route]) -> Mapping[Route, str] | None:
    """Routes that must not be built, each with the reason; they are reported as skipped.

    The default route and the baseline's cannot be among them: every verdict needs them.

    Args:
        nodeid: the test, without the route.
        routes: routes that are about to be run.

    Returns:
        The routes that are vetoed, with a reason each; None for none.
    """


@pytest.hookspec(firstresult=True)
def pytest_gptune_verdict(report: TuningReport) -> Verdict | None:
    """A verdict of your own, on a tuning that has been judged.

    Args:
        report: the tuning with all routes, the winner, and the verdict of the gate.

    Returns:
        The ``pytest_gptune.verdict.Verdict`` that counts, or None to leave it as it is.
    """
