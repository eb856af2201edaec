"""The fixtures a test takes, and how a route's end becomes the outcome of its test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import numpy as np

    from pytest_gptune.accuracy import AccuracyResult, Case, Golden
    from pytest_gptune.engines.base import Engine, EngineInfo
    from pytest_gptune.plugin.items import ItemRun
    from pytest_gptune.routes import KnobSpace, Route


class GptuneEngine:
    """The engine of this test's route; call it with inputs by name to get its outputs by name."""

    def __init__(self, item_run: ItemRun, engine: Engine) -> None:
        self._item_run = item_run
        self._engine = engine

    def __call__(
        self, inputs: Mapping[str, np.ndarray] | None = None, **named: np.ndarray
    ) -> dict[str, np.ndarray]:
        """One inference on ``inputs``, or on arrays given by name; every output by its name."""
        from pytest_gptune.accuracy import InputsError, fit_inputs

        __tracebackhide__ = True
        plan = self._item_run.plan
        with self._item_run.outcomes():
            if not isinstance(inputs, Mapping | None):
                first = next((item.name for item in plan.model.inputs), "name")
                raise InputsError(
                    f"the engine was called with a {type(inputs).__name__} instead of arrays by input name",
                    where=plan.where,
                    mend=f"call it with a mapping, as gptune_engine({{{first!r}: array}})",
                )
            return self._engine.run(fit_inputs({**(inputs or {}), **named}, plan.model.inputs, plan.where))

    @property
    def info(self) -> EngineInfo:
        """Build time, size and digest of the engine."""
        return self._engine.info

    @property
    def route(self) -> Route:
        """The route it was built from."""
        return self._item_run.planned.route


class GptuneGolden:
    """The golden of this test: its cases, and the check of an engine against all of them."""

    def __init__(self, item_run: ItemRun, golden: Golden | None) -> None:
        self._item_run = item_run
        self._golden = golden

    @property
    def cases(self) -> tuple[Case, ...]:
        """Inputs and reference outputs of every case; none where engines are only built."""
        return self._golden.cases if self._golden is not None else ()

    def check(self, engine: GptuneEngine) -> AccuracyResult:
        """Compare the engine's outputs with the golden's, for all cases.

        Where the loss is above epsilon the test ends here, as xfailed: an inaccurate route cannot win. On the
        baseline's route it is a failure. Where a tuning cache is written, the route is timed before that.
        """
        __tracebackhide__ = True
        return self._check(engine, None)

    def _check(self, engine: GptuneEngine, case: str | int | None) -> AccuracyResult:
        __tracebackhide__ = True
        with self._item_run.outcomes():
            self._item_run.refuse_foreign(engine)
            return self._item_run.check(self._golden or self._item_run.load_golden(), case)


class GptuneBenchmark:
    """Measures the latency of an engine and records it as a row of pytest-benchmark."""

    def __init__(self, item_run: ItemRun, benchmark: Any) -> None:
        self._item_run = item_run
        self._benchmark = benchmark

    def finish(self) -> None:
        """Keep pytest-benchmark from warning of a row that a route which ended early does not have."""
        if self._benchmark is not None and not self._item_run.has_row:
            self._benchmark.skipped = True

    def __call__(self, engine: GptuneEngine, *, case: str | int | None = None) -> float | None:
        """Measure the engine on a case of the golden, the first unless ``case`` names another.

        Returns:
            The latency in seconds; None where benchmarks are disabled.
        """
        __tracebackhide__ = True
        with self._item_run.outcomes():
            self._item_run.refuse_foreign(engine)
            return self._item_run.measure(case, self._benchmark)


class Gptune:
    """All fixtures in one: ``gptune.check()`` checks accuracy first, then measures latency."""

    def __init__(self, engine: GptuneEngine, golden: GptuneGolden, benchmark: GptuneBenchmark) -> None:
        self.engine = engine
        self.golden = golden
        self.benchmark = benchmark

    @property
    def route(self) -> Route:
        """The route of this test."""
        return self.engine.route

    def check(self, *, case: str | int | None = None) -> float | None:
        """Check the engine against the golden, then measure its latency, in seconds."""
        __tracebackhide__ = True
        self.golden._check(self.engine, case)
        return self.benchmark(self.engine, case=case)


@pytest.fixture
def gptune_route(request: pytest.FixtureRequest) -> Route:
    """The build route of this test; ``str()`` gives it as it is written."""
    from pytest_gptune.plugin.item_hooks import begin

    __tracebackhide__ = True
    with setup_errors():
        return begin(request).planned.route


@pytest.fixture
def gptune_engine(
    request: pytest.FixtureRequest,
    gptune_route: Route,  # noqa: ARG001 - the route comes first
) -> Iterator[GptuneEngine]:
    """The engine of this test's route, built for it."""
    from pytest_gptune.plugin.item_hooks import item_run_of

    __tracebackhide__ = True
    item_run = item_run_of(request.node)
    with setup_errors(), item_run.outcomes():
        engine = item_run.build()
    yield GptuneEngine(item_run, engine)
    try:
        with setup_errors():
            item_run.keep_engine()
    finally:
        item_run.run.close()


@pytest.fixture
def gptune_golden(
    request: pytest.FixtureRequest,
    gptune_route: Route,  # noqa: ARG001 - the route comes first
) -> GptuneGolden:
    """The golden of this test."""
    from pytest_gptune.plugin.item_hooks import item_run_of

    __tracebackhide__ = True
    item_run = item_run_of(request.node)
    with setup_errors():
        return GptuneGolden(item_run, item_run.golden_to_check())


@pytest.fixture
def gptune(
    gptune_engine: GptuneEngine, gptune_golden: GptuneGolden, gptune_benchmark: GptuneBenchmark
) -> Gptune:
    """Engine, golden and benchmark of this test in one."""
    return Gptune(gptune_engine, gptune_golden, gptune_benchmark)


@pytest.fixture
def gptune_knobs(request: pytest.FixtureRequest) -> KnobSpace:
    """The knob space of the backend, for the test's model where it has one; not parametrised."""
    from pytest_gptune.plugin.item_hooks import knobs_for

    __tracebackhide__ = True
    with setup_errors():
        return knobs_for(request.node)


class WithBenchmark:
    """Registered where pytest-benchmark is there, so that its own options see our tests."""

    @pytest.fixture
    def gptune_benchmark(
        self, request: pytest.FixtureRequest, gptune_route: Route, benchmark: Any
    ) -> Iterator[GptuneBenchmark]:
        """Measures an engine that passed a check."""
        from pytest_gptune.plugin.item_hooks import item_run_of

        fixture = GptuneBenchmark(item_run_of(request.node), benchmark)
        yield fixture
        fixture.finish()


class WithoutBenchmark:
    """Registered under ``-p no:benchmark``: latency is measured, and no row is recorded."""

    @pytest.fixture
    def gptune_benchmark(self, request: pytest.FixtureRequest, gptune_route: Route) -> GptuneBenchmark:
        """Measures an engine that passed a check."""
        from pytest_gptune.plugin.item_hooks import item_run_of

        return GptuneBenchmark(item_run_of(request.node), None)


@contextmanager
def setup_errors() -> Iterator[None]:
    """Turn an error of ours into a failure with one message and no traceback."""
    from pytest_gptune.errors import GptuneError

    __tracebackhide__ = True
    message = ""
    try:
        yield
    except GptuneError as error:
        message = str(error)
    if message:
        # The with statement that ends here is still handling the error: without "from None" both are shown.
        raise pytest.fail.Exception(message, pytrace=False) from None
