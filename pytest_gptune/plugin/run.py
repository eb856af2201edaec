"""One route from build to record: used by the fixtures of a test, and by the finals."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
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
from pytest_gptune.plugin.device_lock import DeviceLock
from pytest_gptune.plugin.known_engines import KnownEngine, KnownEngines, outputs_digest
from pytest_gptune.records.kept_engine import KeptEngineError, Sidecar, read_engine
from pytest_gptune.records.route_record import Latency, RouteRecord
from pytest_gptune.search.base import RouteStatus
from pytest_gptune.timing.protocol import (
    Measurement,
    SamplingPlan,
    batch_for,
    block_statistic,
    measure,
    warm_up,
)
from pytest_gptune.timing.statistics import statistic_for

if TYPE_CHECKING:
    import numpy as np

# Two builds of one route differ by about one percent; a probe that is further off is of another engine.
_SAME_LATENCY = 0.03

DEFAULT_ID = "default"


class RouteStopped(Exception):  # noqa: N818 - not an error of the user: the route ends here, with a status
    """The route ends with ``status``; the search goes on."""

    def __init__(self, status: RouteStatus, message: str) -> None:
        self.status = status
        self.message = message
        super().__init__(message)


@dataclass(frozen=True)
class KeptFile:
    """An engine that is loaded instead of built."""

    path: Path
    sidecar: Sidecar


class RouteRun:
    """What happens to one route in this process, and what is known of it so far.

    Attributes:
        kept: loaded instead of built; None builds.
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
        engines: KnownEngines,
        default_key: str,
        may_be_inert: bool,
        lock: DeviceLock,
        kept: KeptFile | None = None,
    ) -> None:
        self.backend = backend
        self.request = request
        self.gate = gate
        self.kept = kept
        self._engines = engines
        self._default_key = default_key
        self._may_be_inert = may_be_inert and kept is None
        self._likely_twin: KnownEngine | None = None
        self._mine: KnownEngine | None = None
        self._outputs = ""
        self.engine: Engine | None = None
        self.golden: Golden | None = None
        self.checked = False
        self.measurement: Measurement | None = None
        self._fields: dict[str, Any] = {}
        self._record = record
        self._lock = lock
        self._start, self._waited_s = time.perf_counter(), lock.waited_s

    @property
    def record(self) -> RouteRecord:
        """The record as of now; what was waited for the device is not the route's time."""
        waited_s = self._lock.waited_s - self._waited_s
        wall_s = max(time.perf_counter() - self._start - waited_s, 0.0)
        return replace(self._record, **self._fields, wall_s=wall_s)

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
        """Build the engine, or load the one that is kept, with the device locked.

        Raises:
            RouteStopped: the route is rejected, crashed, ran out of time or memory, or its engine is that of
                a route that ran before.
            ModelError: no route of the model can be built.
            KeptEngineError: the kept engine is not the one that was recorded.
        """
        try:
            with self._lock.held(self.backend, self.request):
                if self.kept is not None:
                    self.engine = load_kept(self.backend, self.request, self.kept)
                else:
                    self._stop_if_known()
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
            device_memory_bytes=dict(info.device_memory_bytes),
            graph=info.graph,
            graph_missing=info.graph_missing,
            digest_proves=info.digest_proves,
            warnings=tuple(info.warnings),
        )
        twin = self._engines.twin(info.digest, self._record.key) if self._may_be_inert else None
        if twin is not None and info.digest_proves:
            self.close()
            raise self._inert(twin)
        self._likely_twin = twin
        self._mine = self._engines.add(info.digest, self._record.key, self._record.id)
        return self.engine

    def _stop_if_known(self) -> None:
        """End the route before it is built, where its digest is known before and another route has it."""
        if not self._may_be_inert:
            return
        digest = self.backend.engine_digest(self.request)
        if digest is None:
            return
        if self._engines.missing(self._default_key):
            # The default may run in another process.
            plain = replace(self.request, route=route_pairs(self._default_key))
            default = self.backend.engine_digest(plain)
            self._engines.add(default or "", self._default_key, DEFAULT_ID)
        if (twin := self._engines.twin(digest, self._record.key)) is not None:
            self._fields.update(engine_digest=digest)
            raise self._inert(twin)

    def _inert(self, twin: KnownEngine) -> RouteStopped:
        self._fields.update(same_as=twin.id)
        return self.stop("inert", f"the same engine as {twin.id}")

    def check(self, engine: Engine, golden: Golden) -> AccuracyResult:
        """Run the cases and compare with the golden.

        Raises:
            RouteStopped: the route is inaccurate, or crashed while it ran.
        """
        assert self.gate is not None
        self.golden = golden
        try:
            with self._lock.held(self.backend, self.request):
                outputs = run_cases(engine, golden)
        except RouteFailureError as error:
            raise self.stop(error.status, str(error)) from error
        result = self.gate.compare(golden, outputs)
        if not self.engine_proves and self._mine is not None:
            self._outputs = outputs_digest(outputs)
            self._mine.outputs = self._mine.outputs or self._outputs
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
            with self._lock.held(self.backend, self.request):
                engine.load(case.inputs)
                self._stop_if_like_its_twin(engine)
                self.measurement = measure(engine, SamplingPlan(), best_s)
        except RouteFailureError as error:
            raise self.stop(error.status, str(error)) from error
        if self._mine is not None and self._mine.latency_s is None:
            self._mine.latency_s = self.measurement.latency_s
        self._fields.update(latency=Latency.of(self.measurement), timed_case=case.name)
        return self.measurement

    @property
    def engine_proves(self) -> bool:
        """Whether the engine's digest alone says which engine it is."""
        return bool(self._fields.get("digest_proves", True))

    def _stop_if_like_its_twin(self, engine: Engine) -> None:
        """Complete a digest that does not prove identity: by outputs equal to the bit, and a short probe."""
        twin = self._likely_twin
        if twin is None or not self._outputs or self._outputs != twin.outputs or twin.latency_s is None:
            return
        plan = SamplingPlan()
        batch = batch_for(warm_up(engine, plan.warmup_s, plan.most_warmup_s))
        block = engine.sample(plan.block_s, at_most=1_000_000, batch=batch)
        probe_s = block_statistic(block.latencies_s, statistic_for(engine.info.latency_kind))
        if abs(probe_s / twin.latency_s - 1) <= _SAME_LATENCY:
            raise self._inert(twin)

    def close(self) -> None:
        """Release the engine: an idle session's threads would slow the next one."""
        if self.engine is not None:
            self.engine.close()
            self.engine = None


def run_cases(engine: Engine, golden: Golden) -> list[Mapping[str, np.ndarray]]:
    """The outputs of every case of the golden."""
    return [engine.run(case.inputs) for case in golden.cases]


def load_kept(backend: Backend, request: BuildRequest, kept: KeptFile) -> Engine:
    """Load a kept engine that is the one its sidecar records.

    Raises:
        KeptEngineError: it is not.
        RouteFailureError: the backend cannot load it.
    """
    data = read_engine(kept.path, kept.sidecar)
    engine = backend.load(replace(request, kept=dict(kept.sidecar.facts)), data)
    if engine.info.digest != kept.sidecar.engine_digest:
        engine.close()
        raise KeptEngineError(
            f"the kept engine loads as another one: digest {engine.info.digest[:12]}, "
            f"its sidecar says {kept.sidecar.engine_digest[:12]}",
            where=str(kept.path),
            mend="build it again: --gptune-save-engine",
        )
    return engine


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
