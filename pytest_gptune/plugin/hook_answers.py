"""What hooks of others answer: a ``conftest.py`` that fails, or gives something else, is one message."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from pytest_gptune.accuracy import Metric
from pytest_gptune.errors import GptuneError
from pytest_gptune.routes import Route, RouteSequence
from pytest_gptune.search import Search, bounded

FILTER = "pytest_gptune_filter_routes"


def ask_hook(config: pytest.Config, hook: str, where: str, **arguments: Any) -> Any:
    """What a hook answers.

    Raises:
        GptuneError: it failed.
    """
    try:
        return getattr(config.hook, hook)(**arguments)
    except Exception as error:  # whatever a conftest.py raises
        raise hook_failure(hook, error, where) from error


def hook_failure(hook: str, error: Exception, where: str) -> GptuneError:
    """The failure of a hook, with the line in it, or else the innermost one, that failed."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((frame for frame in frames if frame.name == hook), frames[-1])
    places = (where, f"{frame.filename}:{frame.lineno}")
    return GptuneError(
        f"the hook {hook} failed: {type(error).__name__}: {error}",
        where=", ".join(filter(None, places)),
        mend="mend the hook",
    )


def checked_search(own: object, name: str, where: str, max_routes: int) -> Search:
    """The search that a hook gave, once it can begin.

    Raises:
        RouteError: it begins with too many routes.
        GptuneError: it is no search, fails, or begins with what is no route.
    """
    if isinstance(own, type) or not isinstance(own, Search):
        raise GptuneError(
            f"the hook pytest_gptune_search returned {own!r}, which is no search",
            where=where,
            mend="return an object with name, initial(), propose() and notes(), or None for names of others",
        )
    try:
        search = bounded(own, max_routes)
        routes = search.initial()
        strange = [] if isinstance(routes, RouteSequence) else [r for r in routes if not isinstance(r, Route)]
    except GptuneError:
        raise
    except Exception as error:  # a search may be a third party's, and fail
        raise GptuneError(
            f"the search '{name}' failed: {type(error).__name__}: {error}",
            where=where,
            mend="let initial() return a tuple of pytest_gptune.routes.Route objects",
        ) from error
    if strange:
        raise GptuneError(
            f"the search '{name}' began with {strange[0]!r}, which is no route",
            where=where,
            mend="let initial() return a tuple of pytest_gptune.routes.Route objects",
        )
    return search


def checked_metric(own: object) -> Metric:
    """The metric that a hook gave.

    Raises:
        GptuneError: it is none.
    """
    if not isinstance(own, Metric):
        raise GptuneError(
            f"the hook pytest_gptune_metric returned {own!r}, which is no Metric",
            mend="return a pytest_gptune.accuracy.Metric, or None for names of others",
        )
    return own
