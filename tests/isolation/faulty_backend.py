"""A backend that misbehaves as its route says, over real ONNX Runtime sessions. Lives in the tests alone.

``-faulty:do`` says what goes wrong, ``-faulty:when`` at which step: ``build``, ``run``, ``sample``, or
``rebuild``, which is the second build of the route, that is in the finals. ``-faulty:spin`` is real work of
so many times 100 us beside each inference, so that routes differ in speed. Once an engine that ``spoil``s its
process has run, all engines there take twenty times as long.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from pytest_gptune.engines.base import BuildRejectedError, EngineInfo, Environment, SampleBlock
from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend

DEEDS = (
    "fine",
    "raise",
    "abort",
    "segfault",
    "exit",
    "hang",
    "hang_child",
    "memory_error",
    "allocate",
    "kill",
    "device_oom",
    "reject",
    "ignored",
    "wrong",
    "nan",
    "missing",
    "chatter",
    "spoil",
)
WHENS = ("build", "run", "sample", "rebuild")


def misbehave(deed: str) -> None:
    """Do what cannot be undone; returns only for ``fine`` and for deeds that are done to the outputs."""
    if deed == "raise":
        raise ValueError("a backend's own exception")
    if deed == "abort":
        os.abort()
    if deed == "segfault":
        ctypes.string_at(0)
    if deed == "exit":
        os._exit(3)
    if deed == "hang":
        while True:
            time.sleep(60)
    if deed == "hang_child":
        subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], check=False)
    if deed == "memory_error":
        raise MemoryError
    if deed == "allocate":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
        np.ones(1 << 30)
    if deed == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == "device_oom":
        raise RuntimeError("CUDA error: out of memory (cudaErrorMemoryAllocation)")
    if deed == "reject":
        raise BuildRejectedError("the builder has no implementation for this route")
    if deed == "ignored":
        raise BuildRejectedError("the route was ignored: asked for '-faulty:do=ignored', read back ''")
    if deed == "chatter":
        for line in range(50):
            print(f"\x1b[1;31mbuilder: line {line}\x1b[m", file=sys.stderr)
        sys.stderr.flush()
        os.abort()


class FaultyBackend:
    name = "faulty"

    def __init__(self) -> None:
        self._real = OnnxRuntimeBackend()
        self.spoiled = False
        atexit.register(time.sleep, float(os.environ.get("FAULTY_EXIT_S", "0")))

    def check_available(self, options):
        self._real.check_available({})

    def check_options(self, options):
        pass

    def environment(self, options):
        return Environment("faulty", "1.0", {"backend": "faulty 1.0"}, {"device": "faulty"}, {})

    def knob_space(self, model, options):
        default = os.environ.get("FAULTY_DEFAULT", "fine")
        when = os.environ.get("FAULTY_WHEN", "build")

        def knob(name, values, value):
            return {
                "option": f"-faulty:{name}",
                "allowed_values": f"-faulty:{name}=[{'|'.join(values)}]",
                "default_value": value,
                "help": "",
            }

        knobs = [
            knob("do", DEEDS, default),
            knob("when", WHENS, when),
            knob("spin", [str(n) for n in range(1, 9)], "4"),
        ]
        return json.dumps({"tuner_version": "1.0", "tuner_options": knobs})

    def process_family(self, route):
        return "family" if dict(route).get("-faulty:spin") == "8" else ""

    def process_spent(self, options):
        if "FAULTY_SPOILS" not in os.environ:
            return None
        if os.environ["FAULTY_SPOILS"] == "raise":
            raise AttributeError("nothing known of that")
        return "an engine has spoiled it" if self.spoiled else ""

    def engine_digest(self, request):
        wanted = os.environ.get("FAULTY_DIGEST")
        if wanted == "segfault":
            misbehave(wanted)
        if wanted:
            time.sleep(float(wanted))
        how = "fresh" if request.fresh else "shared"
        return f"{how}, of process {os.getpid()}" if wanted else None

    def get_ready(self, request):
        if os.environ.get("FAULTY_READY") == "raise":
            raise AttributeError("nothing known of that")
        hangs = os.environ.get("FAULTY_READY") == "hang"
        if log := os.environ.get("FAULTY_READY_LOG"):
            start = time.monotonic()
            time.sleep(0.0 if hangs else 0.5)
            with Path(log).open("a") as lines:
                lines.write(f"{os.getpid()} {start} {time.monotonic()} {request.route_text}\n")
        if hangs:
            time.sleep(600)

    def load(self, request, data):
        raise BuildRejectedError("it keeps no engines")

    def build(self, request):
        route = {
            "-faulty:do": os.environ.get("FAULTY_DEFAULT", "fine"),
            "-faulty:when": os.environ.get("FAULTY_WHEN", "build"),
            "-faulty:spin": "4",
            **dict(request.route),
        }
        deed, when, spin = route["-faulty:do"], route["-faulty:when"], int(route["-faulty:spin"])
        time.sleep(float(os.environ.get("FAULTY_BUILD_S", "0")))
        if when == "build" or (when == "rebuild" and self._built_before(request)):
            misbehave(deed)
        engine = self._real.build(
            type(request)(request.model, request.model_sha256, (("-ort:intra_op_num_threads", "1"),))
        )
        digest = request.digest or request.route_text
        return FaultyEngine(engine, deed, when, spin * 100e-6, digest, self)

    def _built_before(self, request):
        """Whether the route was built before, by any process of the run."""
        log = Path(os.environ["FAULTY_LOG"])
        seen = log.read_text().splitlines() if log.exists() else []
        with log.open("a") as stream:
            stream.write(request.route_text + "\n")
        return request.route_text in seen


if os.environ.get("FAULTY_READY") == "cannot":
    del FaultyBackend.get_ready


class FaultyEngine:
    def __init__(self, engine, deed, when, spin_s, digest, backend):
        self._engine, self._deed, self._when, self._spin_s = engine, deed, when, spin_s
        self._backend = backend
        self.info = EngineInfo(digest, "host_wall", engine.info.build_seconds)

    def run(self, inputs):
        outputs = self._engine.run(inputs)
        if self._when == "run":
            misbehave(self._deed)
        if self._deed == "spoil":
            self._backend.spoiled = True
        if self._deed == "wrong":
            return {name: array * 1.5 for name, array in outputs.items()}
        if self._deed == "nan":
            return {name: np.full_like(array, np.nan) for name, array in outputs.items()}
        if self._deed == "missing":
            return {}
        return outputs

    def load(self, inputs):
        self._engine.load(inputs)

    def sample(self, seconds, at_most, batch=1):
        if self._when == "sample":
            misbehave(self._deed)
        samples, end = [], time.perf_counter() + seconds
        while not samples or (time.perf_counter() < end and len(samples) < at_most):
            start = time.perf_counter()
            for _ in range(batch):
                self._engine.sample(0.0, 1)
                until = time.perf_counter() + self._spin_s * (20 if self._backend.spoiled else 1)
                while time.perf_counter() < until:
                    pass
            samples.append((time.perf_counter() - start) / batch)
        return SampleBlock(tuple(samples))

    def serialize(self):
        return None

    def close(self):
        self._engine.close()
