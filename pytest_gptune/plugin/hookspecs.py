"""Hooks that a project's ``conftest.py`` or another plugin may implement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gptune.accuracy import Metric


@pytest.hookspec(firstresult=True)
def pytest_gptune_metric(name: str) -> Metric | None:
    """The metric of one's own called ``name``, or None where this hook knows no such metric.

    Called when a test names a metric that is not built in. Implement it in the ``conftest.py`` of the root
    folder: finals ask again after the tests have run. For example::

        from pytest_gptune.accuracy import Metric

        def pytest_gptune_metric(name):
            if name == "top1":
                return Metric("top1", lambda actual, golden: (actual.argmax(-1) != golden.argmax(-1)).mean())
    """
