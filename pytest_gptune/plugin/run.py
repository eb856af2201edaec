"""One route from build to record: used by the fixtures of a test, and by the finals."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_gptune.accuracy import AccuracyGate, AccuracyResult, Case, Golden
from pytest_gptune.engines.base import (
    Backend,
    BuildRequest,
    Engine,
    RouteFailureError,
    RoutePairs,
)
from pytest_gptune.errors import GptuneError
from pytest_gptune.records.route_record import Latency, RouteRecord
from pytest_gptune.search.base import RouteStatus
from pytest_gptune.storage import cache_folder, locked
from pytest_gptune.timing.protocol import Measurement, SamplingPlan, measure

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

_DEVICE_LOCK_TIMEOUT_S = 6 * 3600.0


class RouteStopped(Exception):  # noqa: N818 - not an error of the user: the route ends here, with a status
    """The route ends with ``status``; the search goes on."""

    def __init__(self, status: RouteStatus, message: str) -> None:
        self.status = status
        self.message = message
        super().__init__(message)


class RouteRun:
    """What happens to one route in this process, and what is known of it so far.

    Attributes:
        engine: None until it is built.
        golden: None until it is asked for.
        record: brought up to date by every step.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        request: BuildRequest,
        record: RouteRecord,
        gate: AccuracyGate | None,
    ) -> None:
        self.backend = backend
        self.request = request
        self.gate = gate
        self.engine: Engine | None = None
        self.golden: Golden | None = None
        self.checked = False
        self.measurement: Measurement | None = None
        self._fields: dict[str, Any] = {}
        self._record = record
        self._start = time.perf_counter()

    @property
    def record(self) -> RouteRecord:
        """The record as of now."""
        from dataclasses import replace

        return replace(self._record, **self._fields, wall_s=time.perf_counter() - self._start)

    @property
    def status(self) -> str:
        """The status as of now."""
        return str(self._fields.get("status", self._record.status))

    def stop(self, status: RouteStatus, message: str) -> RouteStopped:
        """Record that the route ends here, and return what to raise."""
        self._fields.update(status=status, error=message)
        return RouteStopped(status, message)

    def note_test_failed(self, message: str) -> None:
        """Record that the user's own assertion failed."""
        self._fields.update(status="test_failed", error=message)

    def build(self) -> Engine:
        """Build the engine, with the device locked.

        Raises:
            RouteStopped: the route is rejected, crashed, or ran out of time or memory.
            ModelError: no route of the model can be built.
        """
        try:
            with device_locked(self.backend, self.request):
                self.engine = self.backend.build(self.request)
        except RouteFailureError as error:
            raise self.stop(error.status, str(error)) from error
        info = self.engine.info
        self._fields.update(
            status="unchecked",
            build_seconds=info.build_seconds,
            builds=1,
            engine_digest=info.digest,
            engine_bytes=info.engine_bytes,
            graph=info.graph,
        )
        return self.engine

    def check(self, engine: Engine, golden: Golden) -> AccuracyResult:
        """Run the cases and compare with the golden.

        Raises:
            RouteStopped: the route is inaccurate, or crashed while it ran.
        """
        assert self.gate is not None
        self.golden = golden
        try:
            with device_locked(self.backend, self.request):
                result = compare(engine, golden, self.gate)
        except RouteFailureError as error:
            raise self.stop(error.status, str(error)) from error
        self._fields.update(losses=result.losses, needed_epsilon=result.needed_epsilon)
        if not result.passed:
            raise self.stop("inaccurate", result.message)
        self.checked = True
        self._fields.update(status="passed")
        return result

    def measure(self, engine: Engine, case: Case, best_s: float | None) -> Measurement:
        """Measure the latency on one case, with the device locked.

        Raises:
            RouteStopped: the engine failed while it was timed.
        """
        try:
            with device_locked(self.backend, self.request):
                engine.load(case.inputs)
                self.measurement = measure(engine, SamplingPlan(), best_s)
        except RouteFailureError as error:
            raise self.stop(error.status, str(error)) from error
        self._fields.update(latency=Latency.of(self.measurement), timed_case=case.name)
        return self.measurement

    def close(self) -> None:
        """Release the engine: an idle session's threads would slow the next one."""
        if self.engine is not None:
            self.engine.close()
            self.engine = None


def compare(engine: Engine, golden: Golden, gate: AccuracyGate) -> AccuracyResult:
    """Run every case of the golden and compare all outputs with it."""
    outputs: list[Mapping[str, np.ndarray]] = [engine.run(case.inputs) for case in golden.cases]
    return gate.compare(golden, outputs)


def route_pairs(key: str) -> RoutePairs:
    """The pairs of a route's key."""
    pairs = []
    for token in key.split():
        name, _, value = token.partition("=")
        pairs.append((name, value))
    return tuple(pairs)


def find_case(golden: Golden, wanted: str | int | None) -> Case:
    """The case to time: the first unless a name or number says otherwise.

    Raises:
        GptuneError: there is no such case.
    """
    if wanted is None:
        return golden.cases[0]
    for number, case in enumerate(golden.cases):
        if wanted in (number, case.name):
            return case
    names = ", ".join(repr(case.name) for case in golden.cases)
    raise GptuneError(f"the golden has no case {wanted!r}", mend=f"name one of {names}")


@contextmanager
def device_locked(backend: Backend, request: BuildRequest) -> Iterator[None]:
    """Hold the device for building, checking or timing: engines that run at once measure each other."""
    device = str(request.options.get("device", "0"))
    with locked(cache_folder() / f"device-{backend.name}-{device}", _DEVICE_LOCK_TIMEOUT_S):
        yield
