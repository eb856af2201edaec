"""A backend in this very process, for debuggers: nothing is isolated, the rest is the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_gptune.engines.base import (
    Backend,
    BuildRejectedError,
    BuildRequest,
    Engine,
    EngineInfo,
    Environment,
    ModelInfo,
    RoutePairs,
    SampleBlock,
)
from pytest_gptune.engines.failures import failure_of
from pytest_gptune.engines.registry import check_buildable, layer_times
from pytest_gptune.errors import GptuneError

if TYPE_CHECKING:
    import numpy as np


class InProcessBackend:
    """Passes everything on, turns what the backend raises into failures of ours, and refuses what would
    change this process for good."""

    def __init__(self, backend: Backend) -> None:
        self.name = backend.name
        self._backend = backend

    def check_available(self, options: Mapping[str, Any]) -> None:
        """Raise BackendMissingError unless engines can be built and run here."""
        self._backend.check_available(options)

    def check_buildable(self, options: Mapping[str, Any]) -> None:
        """Raise BackendMissingError unless engines can be built here, if not run."""
        check_buildable(self._backend, options)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise SettingsError for an option the backend does not know or a value it cannot use."""
        self._backend.check_options(options)

    def environment(self, options: Mapping[str, Any]) -> Environment:
        """The machine and software as the backend sees them."""
        return self._backend.environment(options)

    def knob_space(self, model: ModelInfo | None, options: Mapping[str, Any]) -> str:
        """The knob space."""
        return self._backend.knob_space(model, options)

    def process_family(self, route: RoutePairs) -> str | None:
        """The process-wide settings of a route."""
        return self._backend.process_family(route)

    def build(self, request: BuildRequest) -> Engine:
        """Build an engine here.

        Raises:
            BuildRejectedError: the route has a setting of the whole process.
        """
        if family := self._backend.process_family(request.route):
            raise BuildRejectedError(
                f"the route sets {family} for the whole process",
                mend="leave --gptune-isolation at process: such routes get a process of their own",
            )
        try:
            return _InProcessEngine(self._backend.build(request))
        except GptuneError:
            raise
        except Exception as error:
            raise failure_of(error) from error

    def engine_digest(self, request: BuildRequest) -> str | None:
        """The digest of the engine before it is built."""
        try:
            return self._backend.engine_digest(request)
        except GptuneError:
            raise
        except Exception as error:
            raise failure_of(error) from error

    def load(self, request: BuildRequest, data: bytes) -> Engine:
        """Load a serialised engine here."""
        try:
            return _InProcessEngine(self._backend.load(request, data))
        except GptuneError:
            raise
        except Exception as error:
            raise failure_of(error) from error

    def close(self) -> None:
        """Nothing is held between routes."""


class _InProcessEngine:
    """Turns what an engine raises into failures of ours."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            return self._engine.run(inputs)
        except Exception as error:
            raise failure_of(error) from error

    def load(self, inputs: Mapping[str, np.ndarray]) -> None:
        try:
            self._engine.load(inputs)
        except Exception as error:
            raise failure_of(error) from error

    def sample(self, seconds: float, at_most: int, batch: int = 1) -> SampleBlock:
        try:
            return self._engine.sample(seconds, at_most, batch)
        except Exception as error:
            raise failure_of(error) from error

    def layer_times(self) -> dict[str, float]:
        try:
            return layer_times(self._engine)
        except Exception as error:
            raise failure_of(error) from error

    def serialize(self) -> bytes | None:
        try:
            return self._engine.serialize()
        except Exception as error:
            raise failure_of(error) from error

    def close(self) -> None:
        self._engine.close()
