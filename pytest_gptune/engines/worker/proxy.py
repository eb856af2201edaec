"""A backend and its engines that live in worker processes, behind the same protocol as those that do not."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_gptune.engines.base import (
    BuildRequest,
    EngineFailedError,
    EngineInfo,
    EngineOutOfMemoryError,
    Environment,
    ModelInfo,
    RouteFailureError,
    RoutePairs,
    SampleBlock,
)
from pytest_gptune.engines.failures import failure_from_plain
from pytest_gptune.engines.registry import factory_of
from pytest_gptune.engines.worker.ahead import WorkersAhead
from pytest_gptune.engines.worker.messages import sendable
from pytest_gptune.engines.worker.process import WorkerProcess

if TYPE_CHECKING:
    import numpy as np

# Questions about versions and knobs: the backend is imported, nothing is built.
_QUESTION_TIMEOUT_S = 300.0


class WorkerBackend:
    """Builds engines in worker processes: one for each family of process-wide settings.

    A worker in which later engines would be slower than earlier ones is replaced. Where engines may do that
    to their process, those that are measured in turns have one each, so that none slows another.

    Args:
        name: the backend in the worker.
        route_timeout_s: the most one route may take from build to the last check, and a block of samples.
        python: another interpreter for the workers; it needs the backend's package and numpy alone.
    """

    def __init__(self, name: str, *, route_timeout_s: float, python: str | None = None) -> None:
        self.name = name
        self._factory = factory_of(name)
        self.python = python
        self._timeout_s = route_timeout_s
        self._workers: dict[str, WorkerProcess] = {}
        self._live: dict[int, int] = {}
        self._families: dict[RoutePairs, str | None] = {}
        self._leaving: set[WorkerProcess] = set()
        self._wearing: dict[str, bool] = {}
        self._digests: dict[str, str | None] = {}
        self._ahead: WorkersAhead | None = None
        self._gets_ready = True

    def check_available(self, options: Mapping[str, Any]) -> None:
        """Raise BackendMissingError unless engines can be built and run."""
        self._ask("", {"op": "check", "options": dict(options), "what": "available"})

    def check_buildable(self, options: Mapping[str, Any]) -> None:
        """Raise BackendMissingError unless engines can be built, if not run."""
        self._ask("", {"op": "check", "options": dict(options), "what": "buildable"})

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise SettingsError for an option the backend does not know or a value it cannot use."""
        self._ask("", {"op": "check", "options": dict(options), "what": "options"})

    def environment(self, options: Mapping[str, Any]) -> Environment:
        """The machine and software as the backend sees them."""
        return Environment(**self._ask("", {"op": "environment", "options": dict(options)}))

    def knob_space(self, model: ModelInfo | None, options: Mapping[str, Any]) -> str:
        """The knob space, discovered in a worker."""
        plain = None if model is None else _model_to_plain(model)
        return str(self._ask("", {"op": "knobs", "model": plain, "options": dict(options)})["json"])

    def process_family(self, route: RoutePairs) -> str | None:
        """The process-wide settings of a route, None where each build has a process of its own."""
        if route not in self._families:
            header = {"op": "family", "route": [list(pair) for pair in route]}
            self._families[route] = self._ask("", header)["family"]
        return self._families[route]

    def build(self, request: BuildRequest) -> WorkerEngine:
        """Build an engine in the worker of its family."""
        return self._made("build", request, None)

    def engine_digest(self, request: BuildRequest) -> str | None:
        """The digest of the engine before it is built, from the worker of its family."""
        return self._engine_digest(request, self._timeout_s)

    @contextmanager
    def expecting(self, requests: Sequence[BuildRequest]) -> Iterator[None]:
        """Have workers ready for those of the builds that get one each.

        Each loads the libraries that a build needs. Where one fails, as by the route's time limit, nothing is
        got ready any more: builds take their time.
        """
        alone = [request for request in requests if request.fresh and self._wears(request.options)]
        self._ahead = WorkersAhead(self._start, self._get_ready)
        try:
            if self._gets_ready:
                self._gets_ready = self._ahead.start(alone)
            yield
        finally:
            ahead, self._ahead = self._ahead, None
            if ahead is not None:
                ahead.close()

    def load(self, request: BuildRequest, data: bytes) -> WorkerEngine:
        """Load a serialised engine in the worker of its family."""
        import numpy as np

        return self._made("load_engine", request, {"engine": np.frombuffer(data, np.uint8)})

    def _made(
        self, operation: str, request: BuildRequest, arrays: Mapping[str, np.ndarray] | None
    ) -> WorkerEngine:
        if self._ahead is not None:
            # Of a round that starts anew: they hold memory of the device, and their end takes its time.
            self._ahead.wait_for_ended()
        family = self.process_family(request.route)
        alone = request.fresh and self._wears(request.options)
        if alone:
            family = None
        deadline = time.monotonic() + self._timeout_s
        while True:
            worker = self._worker_alone(request) if family is None else self._worker(family)
            try:
                told = self._identified(request, deadline) if alone and operation == "build" else request
                header = {"op": operation, "request": _request_to_plain(told)}
                worker.mark_log()
                left_s = max(deadline - time.monotonic(), 0.0)
                result, _ = self.call(worker, header, arrays, timeout_s=left_s, of_s=self._timeout_s)
            except BaseException:
                self._end_if_leaving(worker)
                raise
            if "spent" not in result:
                break
            # Never said by a worker that has built nothing before.
            logging.getLogger(__name__).info("worker %d is replaced: %s", worker.pid, result["spent"])
            self._replace(family or "")
        plain = result["info"]
        lists = {name: tuple(plain[name]) for name in ("warnings", "layers")}
        info = EngineInfo(**{**plain, **lists})
        self._live[worker.pid] = self._live.get(worker.pid, 0) + 1
        return WorkerEngine(self, worker, result["engine"], info, deadline, self._timeout_s)

    def close(self) -> None:
        """End all workers."""
        if self._ahead is not None:
            self._ahead.close()
        for worker in (*self._workers.values(), *self._leaving):
            worker.close()
        self._workers.clear()
        self._leaving.clear()
        self._live.clear()

    def call(
        self,
        worker: WorkerProcess,
        header: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray] | None = None,
        *,
        timeout_s: float,
        of_s: float | None = None,
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Ask a worker, and raise what it answers with."""
        whose = {"backend": self.name, "factory": self._factory}
        answer, out = worker.call({**header, **whose}, arrays, timeout_s=timeout_s, of_s=of_s)
        if "error" in answer:
            error = failure_from_plain(answer["error"], worker.log_tail())
            # A process in which memory ran out or a device failed is not trusted with a further route.
            worker.tainted |= isinstance(error, (EngineFailedError, EngineOutOfMemoryError))
            raise error
        return answer["result"], out

    def release(self, worker: WorkerProcess) -> None:
        """Note that one engine of the worker was closed; a worker that gets no other engine ends."""
        self._live[worker.pid] = self._live.get(worker.pid, 1) - 1
        self._end_if_leaving(worker)

    def _ask(self, family: str, header: Mapping[str, Any]) -> dict[str, Any]:
        return self.call(self._worker(family), header, timeout_s=_QUESTION_TIMEOUT_S)[0]

    def _wears(self, options: Mapping[str, Any]) -> bool:
        """Whether engines with these options may slow down their process."""
        key = repr(dict(options))
        if key not in self._wearing:
            answer = self._ask("", {"op": "spent", "options": dict(options)})
            self._wearing[key] = answer["reason"] is not None
        return self._wearing[key]

    def _worker(self, family: str) -> WorkerProcess:
        """The worker of a family, a new one where it died or is not to be trusted."""
        worker = self._workers.get(family)
        if worker is not None and (not worker.alive or (worker.tainted and not self._live.get(worker.pid))):
            worker.close()
        if worker is None or not worker.alive:
            worker = self._workers[family] = self._start()
        return worker

    def _engine_digest(self, request: BuildRequest, left_s: float) -> str | None:
        plain = _request_to_plain(request)
        key = json.dumps(plain, sort_keys=True, default=str)
        if key not in self._digests:
            worker = self._worker(self.process_family(request.route) or "")
            worker.mark_log()
            header = {"op": "digest", "request": plain}
            found = self.call(worker, header, timeout_s=left_s, of_s=self._timeout_s)[0]["digest"]
            self._digests[key] = None if found is None else str(found)
        return self._digests[key]

    def _identified(self, request: BuildRequest, deadline: float) -> BuildRequest:
        """The request with the digest of its engine, from the worker that others share.

        To find it out ONNX Runtime makes a session, and lets it go. The next one of that process takes the
        host longer to run than an application's, which is the first (``benchmarks/earlier_session.py``).
        """
        left_s = max(deadline - time.monotonic(), 0.0)
        return replace(request, digest=self._engine_digest(replace(request, fresh=False), left_s))

    def _get_ready(self, worker: WorkerProcess, request: BuildRequest) -> None:
        worker.mark_log()
        header = {"op": "get_ready", "request": _request_to_plain(request)}
        self.call(worker, header, timeout_s=self._timeout_s)

    def _worker_alone(self, request: BuildRequest) -> WorkerProcess:
        """A worker that builds one engine: the one that is ready for it, or a new one."""
        worker = (self._ahead.take(request) if self._ahead is not None else None) or self._start()
        self._leaving.add(worker)
        return worker

    def _replace(self, family: str) -> None:
        """Have the next engine of a family in a new worker; the old one stays until it is empty."""
        worker = self._workers.pop(family)
        self._leaving.add(worker)
        self._end_if_leaving(worker)

    def _end_if_leaving(self, worker: WorkerProcess) -> None:
        if worker in self._leaving and not self._live.get(worker.pid):
            self._leaving.remove(worker)
            if self._ahead is None:
                worker.close()
            else:
                self._ahead.end(worker)

    def _start(self) -> WorkerProcess:
        worker = WorkerProcess(sys.path if self.python is None else [], self.python)
        self._live[worker.pid] = 0
        return worker


class WorkerEngine:
    """An engine in a worker."""

    def __init__(
        self,
        backend: WorkerBackend,
        worker: WorkerProcess,
        number: int,
        info: EngineInfo,
        deadline: float,
        timeout_s: float,
    ) -> None:
        self._backend = backend
        self._worker = worker
        self._number = number
        self._info = info
        self._deadline = deadline
        self._timeout_s = timeout_s

    @property
    def info(self) -> EngineInfo:
        """Facts about it."""
        return self._info

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One inference in the worker, within what is left of the route's time."""
        left = max(self._deadline - time.monotonic(), 0.0)
        return self._call({"op": "run"}, inputs, left, of_s=self._timeout_s)[1]

    def load(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Put the inputs into the worker."""
        self._call({"op": "load"}, inputs, self._timeout_s)

    def sample(self, seconds: float, at_most: int, batch: int = 1) -> SampleBlock:
        """Sample in the worker while this process sleeps."""
        header = {"op": "sample", "seconds": seconds, "at_most": at_most, "batch": batch}
        plain = self._call(header, None, seconds + self._timeout_s)[0]["block"]
        latencies = tuple(float(sample) for sample in plain["latencies_s"])
        return SampleBlock(**{**plain, "latencies_s": latencies, "conditions": tuple(plain["conditions"])})

    def layer_times(self) -> dict[str, float]:
        """Seconds by layer, from runs in the worker."""
        seconds = self._call({"op": "layer_times"}, None, self._timeout_s)[0]["seconds"]
        return {str(name): float(value) for name, value in seconds.items()}

    def serialize(self) -> bytes | None:
        """The engine's bytes, out of the worker."""
        result, arrays = self._call({"op": "serialize"}, None, self._timeout_s)
        return None if result["none"] else arrays["engine"].tobytes()

    def close(self) -> None:
        """Release it."""
        try:
            if self._worker.alive:
                self._call({"op": "close"}, None, self._timeout_s)
        except RouteFailureError:
            self._worker.tainted = True
        finally:
            self._backend.release(self._worker)

    def _call(
        self,
        header: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray] | None,
        timeout_s: float,
        of_s: float | None = None,
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        if self._worker.ended:  # one that died by itself says of what
            raise EngineFailedError("the worker that held the engine has died")
        ready = None if arrays is None else sendable(arrays)
        return self._backend.call(
            self._worker, {**header, "engine": self._number}, ready, timeout_s=timeout_s, of_s=of_s
        )


def _request_to_plain(request: BuildRequest) -> dict[str, Any]:
    return {
        "model": request.model,
        "model_sha256": request.model_sha256,
        "route": [list(pair) for pair in request.route],
        "shapes": {name: shapes.as_plain() for name, shapes in request.shapes.items()},
        "options": dict(request.options),
        "fresh": request.fresh,
        "kept": dict(request.kept),
        "golden": request.golden,
        "digest": request.digest,
    }


def _model_to_plain(model: ModelInfo) -> dict[str, Any]:
    def tensors(items: Any) -> list[list[Any]]:
        return [[item.name, item.dtype, None if item.shape is None else list(item.shape)] for item in items]

    return {
        "path": model.path,
        "sha256": model.sha256,
        "inputs": tensors(model.inputs),
        "outputs": tensors(model.outputs),
        "operators": sorted(model.operators),
        "data_files": list(model.data_files),
    }
