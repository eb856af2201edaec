"""The worker process and its messages, without pytest around them."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import psutil
import pytest
from models import dynamic, mlp

from pytest_gptune.engines.base import (
    BuildRequest,
    EngineFailedError,
    EngineOutOfMemoryError,
    EngineTimeoutError,
)
from pytest_gptune.engines.in_process import _InProcessEngine
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.worker import WorkerBackend, arena, messages
from pytest_gptune.engines.worker.main import Server
from pytest_gptune.engines.worker.process import WorkerProcess, tail_of
from pytest_gptune.errors import ModelError, SettingsError


class Loopback:
    """Both ends of a pipe in one process."""

    def __init__(self):
        self.frames = []

    def send_bytes(self, buf):
        self.frames.append(bytes(buf))

    def recv_bytes(self):
        return self.frames.pop(0)


ARRAYS = {
    "scalar": np.float32(3.5).reshape(()),
    "empty": np.zeros((0, 3), np.int64),
    "flags": np.array([True, False]),
    "half": np.arange(6, dtype=np.float16).reshape(2, 3)[:, ::-1],
    "brain": np.arange(4).astype(ml_dtypes.bfloat16),
    "fp8": np.arange(4).astype(ml_dtypes.float8_e4m3fn),
    "a/../b é": np.arange(5, dtype=np.uint8),
}


@pytest.mark.parametrize("through", ["pipe", "block"])
def test_arrays_of_every_kind_arrive_as_they_left(through):
    pipe, owner = Loopback(), arena.Arena()
    shared = None
    if through == "block":
        shared = owner.reserve(arena.layout(ARRAYS)[1]), owner.buffer
    messages.send(pipe, {"op": "x", "n": 1}, ARRAYS, shared)
    attachment = arena.Attachment()
    header, got = messages.receive(pipe, attachment.buffer)
    assert header == {"op": "x", "n": 1}
    assert list(got) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        assert got[name].tobytes() == np.ascontiguousarray(array).tobytes()
        assert got[name].flags.writeable
    assert pipe.frames == []
    owner.close()


@pytest.fixture
def backend():
    backend = WorkerBackend("onnxruntime", route_timeout_s=60)
    yield backend
    backend.close()


def request_for(path, route=()):
    model = inspect_model(path)
    return BuildRequest(model.path, model.sha256, route)


def test_large_tensors_through_shared_memory_have_the_right_values(backend, tmp_path):
    engine = backend.build(request_for(dynamic(tmp_path / "m.onnx", width=8)))
    rng = np.random.default_rng(0)
    large = rng.standard_normal((64, 1024, 8)).astype(np.float32)
    assert large.nbytes > arena.SMALLEST
    whole = engine.run({"tokens": large})
    parts = [engine.run({"tokens": large[i : i + 1]}) for i in (0, 63)]
    np.testing.assert_allclose(whole["hidden"][0], parts[0]["hidden"][0], atol=1e-5)
    np.testing.assert_allclose(whole["hidden"][63], parts[1]["hidden"][0], atol=1e-5)
    assert np.shares_memory(whole["hidden"], engine.run({"tokens": large})["hidden"]) is False


def test_arrays_from_shared_memory_are_copies():
    """The block serves the next message, while ONNX Runtime still refers to inputs on the CPU."""
    pipe, owner, attachment = Loopback(), arena.Arena(), arena.Attachment()
    array = np.arange(10)
    messages.send(pipe, {}, {"x": array}, (owner.reserve(1000), owner.buffer))
    _, got = messages.receive(pipe, attachment.buffer)
    owner.buffer[:80] = bytes(80)
    np.testing.assert_array_equal(got["x"], array)
    owner.close()


def test_answers_are_those_of_a_backend_in_this_process(backend, tmp_path):
    path = mlp(tmp_path / "m.onnx")
    engine = backend.build(request_for(path))
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend

    inside = OnnxRuntimeBackend()
    own = inside.build(request_for(path))
    np.testing.assert_array_equal(engine.run({"x": x})["y"], own.run({"x": x})["y"])
    assert engine.info.digest == own.info.digest
    assert backend.knob_space(inspect_model(path), {}) == inside.knob_space(inspect_model(path), {})
    assert backend.environment({}).device_class == inside.environment({}).device_class


def test_errors_cross_with_their_type_and_words(backend, tmp_path):
    with pytest.raises(SettingsError, match="has no option 'povider'") as caught:
        backend.check_options({"povider": "cpu"})
    assert caught.value.mend == "write 'provider'"
    from models import future_ir

    path = future_ir(tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="IR version 99"):
        backend.build(BuildRequest(str(path), "0" * 64))


def test_each_family_of_process_wide_settings_has_its_own_process(backend, tmp_path):
    """The first session of a process decides whether denormals are flushed."""
    path = mlp(tmp_path / "m.onnx", layers=1, width=2, batch=1)
    tiny = {"x": np.full((1, 2), 1e-42, np.float32)}
    plain = backend.build(request_for(path))
    before = plain.run(tiny)
    flushed = backend.build(request_for(path, (("-ort:session.set_denormal_as_zero", "1"),)))
    flushed.run(tiny)
    again = backend.build(request_for(path))
    np.testing.assert_array_equal(before["y"], again.run(tiny)["y"])
    assert len({worker.pid for worker in backend._workers.values()}) == 2


def test_an_engine_need_not_tell_its_layers():
    """An error would cost the worker its good name; a user's backend may be older than the question."""
    server, engine = Server(), SimpleNamespace()
    server._engines[1] = engine
    assert server.answer({"op": "layer_times", "engine": 1}, {}) == ({"result": {"seconds": {}}}, None)
    assert _InProcessEngine(engine).layer_times() == {}
    engine.layer_times = lambda: {"conv": 1e-3}
    assert server.answer({"op": "layer_times", "engine": 1}, {})[0] == {"result": {"seconds": {"conv": 1e-3}}}
    assert _InProcessEngine(engine).layer_times() == {"conv": 1e-3}


def test_a_dead_worker_is_replaced_and_its_engines_say_so(backend, tmp_path):
    path = mlp(tmp_path / "m.onnx")
    engine = backend.build(request_for(path))
    pid = backend._workers[""].pid
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)  # it has died before it is asked
    with pytest.raises(EngineOutOfMemoryError, match=r"killed \(SIGKILL\) while it was asked to run"):
        engine.run({"x": np.zeros((4, 64), np.float32)})
    with pytest.raises(EngineFailedError, match="has died"):
        engine.run({"x": np.zeros((4, 64), np.float32)})
    engine.close()
    assert backend.build(request_for(path)).run({"x": np.zeros((4, 64), np.float32)})
    assert backend._workers[""].pid != pid


def test_a_request_that_times_out_kills_the_worker(tmp_path):
    worker = WorkerProcess(sys.path)
    pid = worker.pid
    with pytest.raises(EngineTimeoutError, match="no answer within 0 s"):
        worker.call(
            {"op": "environment", "backend": "onnxruntime", "options": {}},
            timeout_s=0,
        )
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    ("left_s", "of_s", "limit"),
    [(0, 6.0, "6 s, of which 0 s were left,"), (0.01, 0.0101, "0.0101 s"), (0.01, None, "0.01 s")],
)
def test_a_timeout_names_the_limit_and_what_was_left_of_it(left_s, of_s, limit):
    """What a build took of a route's time is not there for its first run."""
    worker = WorkerProcess(sys.path)
    header = {"op": "environment", "backend": "onnxruntime", "options": {}}
    with pytest.raises(EngineTimeoutError, match=f"no answer within {re.escape(limit)} while the engine was"):
        worker.call(header, timeout_s=left_s, of_s=of_s)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_worker_does_not_outlive_its_parent(tmp_path):
    import subprocess

    script = (
        "import sys, os, signal\n"
        "from pytest_gptune.engines.worker.process import WorkerProcess\n"
        "worker = WorkerProcess(sys.path)\n"
        "request = {'op': 'check', 'backend': 'onnxruntime', 'options': {}, 'available': False}\n"
        "worker.call(request, timeout_s=60)\n"
        "print(worker.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the worker is an orphan"
        time.sleep(0.05)


def test_the_worker_is_not_traced_and_has_our_cores(monkeypatch):
    monkeypatch.setenv("COVERAGE_PROCESS_START", "/nonexistent/.coveragerc")
    monkeypatch.setenv("COV_CORE_SOURCE", "x")
    worker = WorkerProcess(sys.path)
    try:
        worker.call({"op": "check", "backend": "onnxruntime", "options": {}, "what": "options"}, timeout_s=60)
        child = psutil.Process(worker.pid)
        assert not [name for name in child.environ() if name.startswith(("COVERAGE_", "COV_CORE_"))]
        if hasattr(child, "cpu_affinity"):
            assert child.cpu_affinity() == psutil.Process().cpu_affinity()
    finally:
        worker.close()


def test_tail_keeps_the_backends_last_words_before_pythons_own():
    log = [f"builder: {n}" for n in range(20)]
    fatal = ["Fatal Python error: Aborted", "Current thread:", '  File "x.py", line 3 in build', "more"]
    assert tail_of(log + fatal) == (*log[-6:], fatal[0], 'File "x.py", line 3 in build')
    assert tail_of(log) == tuple(log[-6:])
