"""The pytest plugin: hooks only. What they do is imported when a test uses it, so that others pay nothing."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from pytest_gptune.plugin.options import INI_KEYS, add_options

if TYPE_CHECKING:
    from pytest_gptune.plugin.controller import Controller

__all__: list[str] = []

_MARKER = (
    "gptune(model, epsilon, metric, atol, rtol, routes, reference, inputs, shapes, backend, search, "
    "max_regression, options): tune this test's engine (pytest-gptune)"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options and ini keys."""
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare our hooks."""
    from pytest_gptune.plugin import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Print the knob space and exit; keep xdist out where something is printed instead of run."""
    if not _uses_options(config):
        return None
    from pytest_gptune.errors import GptuneError
    from pytest_gptune.plugin.cache_use import check_cache
    from pytest_gptune.plugin.command_line import check_command_line

    try:
        check_command_line(config)
        check_cache(config)
    except GptuneError as error:
        raise pytest.UsageError(str(error)) from None
    wants_knobs = config.getoption("gptune_knobs") is not None
    if wants_knobs or config.getoption("gptune_dry_run"):
        for name, value in (("numprocesses", None), ("dist", "no"), ("tx", [])):
            if hasattr(config.option, name):
                setattr(config.option, name, value)
    if wants_knobs:
        from pytest_gptune.plugin.printing import print_knobs

        return print_knobs(config)
    return None


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, the fixtures, and on the controlling process what concludes a run."""
    from pytest_gptune.plugin import fixtures

    config.addinivalue_line("markers", _MARKER)
    manager = config.pluginmanager
    manager.register(fixtures, "gptune-fixtures")
    bridge = fixtures.WithBenchmark if manager.hasplugin("benchmark") else fixtures.WithoutBenchmark
    manager.register(bridge(), "gptune-benchmark")
    if not hasattr(config, "workerinput"):
        manager.register(Relay(config), "gptune-relay")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the workers."""
    import sys

    # Only where a test used the plugin was the module that keeps them imported.
    if module := sys.modules.get("pytest_gptune.plugin.state"):
        module.close_state(config)


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise a test over its routes, after all other parameters."""
    if "gptune_route" in metafunc.fixturenames:
        from pytest_gptune.plugin.collection import parametrise

        parametrise(metafunc)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop what only another test's baseline asked for, and all but one item of a test that cannot run."""
    if any("gptune_route" in getattr(item, "fixturenames", ()) for item in items):
        from pytest_gptune.plugin.collection import drop_foreign_baseline_routes, keep_one_without_golden
        from pytest_gptune.plugin.state import state_of

        state = state_of(config)
        drop_foreign_baseline_routes(items, state)
        if not config.getoption("gptune_dry_run"):
            keep_one_without_golden(items, state)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marker without effect; prepare the row of pytest-benchmark."""
    if item.get_closest_marker("gptune") is not None:
        from pytest_gptune.plugin.collection import check_marker_use
        from pytest_gptune.plugin.fixtures import setup_errors

        __tracebackhide__ = True
        with setup_errors():
            check_marker_use(item)
    # "benchmark" is among them unless its plugin is blocked; then there is no such marker either.
    if {"gptune_benchmark", "benchmark"} <= set(getattr(item, "fixturenames", ())):
        from pytest_gptune.plugin.benchmark import prepare_item

        prepare_item(item)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """With --gptune-build-only the fixtures build the engine; the body, which would run it, is left out."""
    if "gptune_route" in pyfuncitem.fixturenames and pyfuncitem.config.getoption("gptune_build_only"):
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the route's record to the last report of its item."""
    report = yield
    if "gptune_route" in getattr(item, "fixturenames", ()):
        from pytest_gptune.plugin.item_hooks import attach_record, note_failure

        note_failure(item, report)
        if call.when == "teardown":
            attach_record(item, report)
    return report


class Relay:
    """Hands what concerns us to the controller, which is imported with the first record that arrives."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._controller: Controller | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the records of routes, whichever process ran them."""
        if (plain := getattr(report, "gptune", None)) is not None:
            self._started().receive(plain)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """When the tests have run: conclude, however the loop ended."""
        if self._config.getoption("gptune_dry_run"):
            from pytest_gptune.plugin.printing import print_routes

            result = yield from _unrun(session)
            print_routes(session)
            return result
        try:
            return (yield)
        finally:
            if self._wants_report():
                self._started()  # an empty report rather than the one of an earlier run
            if self._controller is not None:
                self._controller.finish(session)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show every tuning."""
        if self._controller is not None:
            self._controller.summarise(terminalreporter)

    def _wants_report(self) -> bool:
        config = self._config
        wanted = config.getoption("gptune_report") or config.getini("gptune_report")
        return bool(wanted) and not config.option.collectonly

    def _started(self) -> Controller:
        if self._controller is None:
            from pytest_gptune.plugin.controller import Controller

            self._controller = Controller(self._config)
        return self._controller


def _unrun(session: pytest.Session) -> Generator[None, object, object]:
    """Let the loop pass without running anything."""
    items, session.items = session.items, []
    try:
        return (yield)
    finally:
        session.items = items


def _uses_options(config: pytest.Config) -> bool:
    return any(
        value not in (None, False)
        for name, value in vars(config.option).items()
        if name.startswith("gptune_")
    ) or any(_ini_is_set(config, key) for key in INI_KEYS)


def _ini_is_set(config: pytest.Config, key: str) -> bool:
    try:
        return config.getini(key) is not None
    except (TypeError, ValueError, pytest.UsageError):
        return True  # its value cannot be used, which is said when the command line is checked
