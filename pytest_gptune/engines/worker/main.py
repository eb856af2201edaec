"""The worker's side: answers requests one after another until the pipe closes.

Run as ``python -m pytest_gptune.engines.worker.main FD``; standard input holds the settings as JSON.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pytest_gptune.engines.base import Backend, BuildRequest, Engine, ModelInfo, ShapeRange, TensorInfo
from pytest_gptune.engines.failures import failure_of, failure_to_plain
from pytest_gptune.engines.registry import (
    check_buildable,
    get_ready,
    layer_times,
    make_backend,
    process_spent,
)
from pytest_gptune.engines.worker import arena, messages

if TYPE_CHECKING:
    import numpy as np

_ORPHAN_CHECK_S = 1.0

Answer = tuple[Mapping[str, Any], "Mapping[str, np.ndarray] | None"]


class Server:
    """Holds backends and engines, and carries out requests."""

    def __init__(self) -> None:
        self._backends: dict[str, Backend] = {}
        self._engines: dict[int, Engine] = {}
        self._next = 1
        self._has_built = False
        self._operations: dict[str, Callable[..., Answer]] = {
            "check": self._check,
            "environment": self._environment,
            "knobs": self._knobs,
            "family": self._family,
            "spent": self._spent,
            "get_ready": self._get_ready,
            "build": self._build,
            "digest": self._digest,
            "load_engine": self._load_engine,
            "serialize": self._serialize,
            "run": self._run,
            "load": self._load,
            "sample": self._sample,
            "layer_times": self._layer_times,
            "close": self._close,
        }

    def answer(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Answer:
        """Carry out one request; a failure is an answer as well."""
        try:
            result, out = self._operations[header["op"]](header, arrays)
        except Exception as error:  # whatever a backend raises becomes the status of its route
            return {"error": failure_to_plain(failure_of(error))}, None
        return {"result": result}, out

    def _backend(self, header: Mapping[str, Any]) -> Backend:
        name = header["backend"]
        if name not in self._backends:
            self._backends[name] = make_backend(name, header["factory"])
        return self._backends[name]

    def _check(self, header: Mapping[str, Any], _: Any) -> Answer:
        backend = self._backend(header)
        backend.check_options(header["options"])
        if header["what"] == "buildable":
            check_buildable(backend, header["options"])
        elif header["what"] == "available":
            backend.check_available(header["options"])
        return {}, None

    def _environment(self, header: Mapping[str, Any], _: Any) -> Answer:
        environment = self._backend(header).environment(header["options"])
        return {
            "device_class": environment.device_class,
            "tuner_version": environment.tuner_version,
            "software": dict(environment.software),
            "device": dict(environment.device),
            "noted": dict(environment.noted),
        }, None

    def _knobs(self, header: Mapping[str, Any], _: Any) -> Answer:
        model = header["model"]
        info = None if model is None else model_from_plain(model)
        return {"json": self._backend(header).knob_space(info, header["options"])}, None

    def _family(self, header: Mapping[str, Any], _: Any) -> Answer:
        return {"family": self._backend(header).process_family(_pairs(header["route"]))}, None

    def _spent(self, header: Mapping[str, Any], _: Any) -> Answer:
        return {"reason": process_spent(self._backend(header), header["options"])}, None

    def _get_ready(self, header: Mapping[str, Any], _: Any) -> Answer:
        get_ready(self._backend(header), _request(header["request"]))
        return {}, None

    def _build(self, header: Mapping[str, Any], _: Any) -> Answer:
        backend, request = self._backend(header), _request(header["request"])
        return self._made(backend, request, lambda: backend.build(request))

    def _digest(self, header: Mapping[str, Any], _: Any) -> Answer:
        return {"digest": self._backend(header).engine_digest(_request(header["request"]))}, None

    def _load_engine(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Answer:
        backend, request = self._backend(header), _request(header["request"])
        return self._made(backend, request, lambda: backend.load(request, arrays["engine"].tobytes()))

    def _serialize(self, header: Mapping[str, Any], _: Any) -> Answer:
        import numpy as np

        data = self._engines[header["engine"]].serialize()
        return {"none": data is None}, {"engine": np.frombuffer(data or b"", np.uint8)}

    def _made(self, backend: Backend, request: BuildRequest, make: Callable[[], Engine]) -> Answer:
        """An engine that is kept until it is closed; or why it needs another process than this one."""
        if self._has_built and (reason := process_spent(backend, request.options)):
            return {"spent": reason}, None
        self._has_built = True
        engine = make()
        number, self._next = self._next, self._next + 1
        self._engines[number] = engine
        info = engine.info
        return {
            "engine": number,
            "info": {
                "digest": info.digest,
                "latency_kind": info.latency_kind,
                "build_seconds": info.build_seconds,
                "engine_bytes": info.engine_bytes,
                "graph": info.graph,
                "graph_missing": info.graph_missing,
                "warnings": list(info.warnings),
                "digest_proves": info.digest_proves,
                "layers": list(info.layers),
                "facts": dict(info.facts),
                "device_memory_bytes": dict(info.device_memory_bytes),
            },
        }, None

    def _run(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Answer:
        return {}, messages.sendable(self._engines[header["engine"]].run(arrays))

    def _load(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Answer:
        self._engines[header["engine"]].load(arrays)
        return {}, None

    def _sample(self, header: Mapping[str, Any], _: Any) -> Answer:
        engine = self._engines[header["engine"]]
        block = engine.sample(header["seconds"], header["at_most"], header["batch"])
        return {"block": asdict(block)}, None

    def _layer_times(self, header: Mapping[str, Any], _: Any) -> Answer:
        return {"seconds": layer_times(self._engines[header["engine"]])}, None

    def _close(self, header: Mapping[str, Any], _: Any) -> Answer:
        self._engines.pop(header["engine"]).close()
        return {}, None


def model_from_plain(plain: Mapping[str, Any]) -> ModelInfo:
    """The description of a model as it crosses the pipe."""

    def tensors(items: list[list[Any]]) -> tuple[TensorInfo, ...]:
        return tuple(
            TensorInfo(name, dtype, None if shape is None else tuple(shape)) for name, dtype, shape in items
        )

    return ModelInfo(
        plain["path"],
        plain["sha256"],
        tensors(plain["inputs"]),
        tensors(plain["outputs"]),
        frozenset(plain["operators"]),
        tuple(plain["data_files"]),
    )


def _request(plain: Mapping[str, Any]) -> BuildRequest:
    return BuildRequest(
        plain["model"],
        plain["model_sha256"],
        _pairs(plain["route"]),
        {name: ShapeRange.from_plain(dims) for name, dims in plain["shapes"].items()},
        plain["options"],
        plain["fresh"],
        plain["kept"],
        plain["golden"],
        plain["digest"],
    )


def _pairs(route: list[list[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((knob, value) for knob, value in route)


def _end_with_parent(parent: int) -> None:
    """Do not outlive the controlling process, even in the middle of a build that hangs."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig, sigkill = 1, 9
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, sigkill)
    if sys.platform != "win32":

        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(_ORPHAN_CHECK_S)
            os._exit(1)

        if sys.platform != "linux":
            threading.Thread(target=watch, daemon=True).start()
        if os.getppid() != parent:
            os._exit(1)


def _no_core_files() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Serve until the pipe closes."""
    parent = os.getppid() if sys.platform != "win32" else 0
    _end_with_parent(parent)
    _no_core_files()
    faulthandler.enable()
    settings = json.load(sys.stdin)
    sys.path[:] = [*settings["sys_path"], *(p for p in sys.path if p not in settings["sys_path"])]
    if settings["cores"] is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, settings["cores"])
    handle = int(sys.argv[1])
    if sys.platform == "win32":
        from multiprocessing.connection import PipeConnection

        connection: Any = PipeConnection(handle)
    else:
        from multiprocessing.connection import Connection

        connection = Connection(handle)
    with contextlib.suppress(EOFError, OSError):  # the controlling process is gone
        _serve(connection, Server())


def _serve(connection: messages.Connection, server: Server) -> None:
    """Answer requests; an answer too large for the pipe waits until it is given shared memory."""
    attachment = arena.Attachment()
    pending: tuple[Mapping[str, Any], messages.Arrays] | None = None
    while True:
        header, arrays = messages.receive(connection, attachment.buffer)
        if header["op"] == "fetch":
            assert pending is not None
            block = header["block"]
            messages.send(connection, *pending, (block, attachment.buffer(block)))
            pending = None
            continue
        answer, out = server.answer(header, arrays)
        sys.stdout.flush()
        _, size = arena.layout(out or {})
        if out is not None and size >= arena.SMALLEST:
            pending = answer, out
            messages.send(connection, {"pending": size})
        else:
            messages.send(connection, answer, out)


if __name__ == "__main__":
    main()
