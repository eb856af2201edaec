"""A backend whose engines compute for real and take as long as a file says: exact tests of decisions.

``steady.json`` stands beside this module. An engine is looked up by its number of nodes and its route, as
``"18 -first=on"``, then by its route, then by its number of nodes; the default route is ``""``. All keys may
be left out:

``latency_us``: microseconds; ten for each node where nothing is given.
``builds``: factors of one build after the other, in turn; default plus and minus 0.1 %.
``tail``: factor of the slowest samples; ``tail_share``: how many those are, a tenth by default.
``moved``: what is added to the outputs; ``moved_from_build``: by the builds from this number on.
``enqueue_share``: the host's time to enqueue over the latency, None by default.
``rejected``, ``crashed``: engines that cannot be built, and that fail when they run.
``scale``: factor of everything, the calibration engine included: a slower machine.
``calibration_us``: of the calibration engine, 60 by default.
``values``: of both knobs, as ``"off|on"``; ``default_second``: the default of the second.
``tuner_version``, ``device_class``, ``latency_kind``: what they say.
``pause_s``: seconds that each build takes.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

from pytest_gptune.engines.base import BuildRejectedError, EngineFailedError, EngineInfo, Environment

CALIBRATION = "calibration"

_builds: Counter[str] = Counter()


class Settings:
    """What the file says, for the engine of one model and route."""

    def __init__(self, model: str = "", route: str = "") -> None:
        self._plain: dict[str, Any] = json.loads(Path(__file__).with_name("steady.json").read_text())
        self.nodes = len(onnx.load(model).graph.node) if model else 0
        self.number = 0
        self._engine = f"{model} {route}"
        if Path(model).name == "calibration.onnx":
            self._names = [CALIBRATION]
        else:
            self._names = [f"{self.nodes} {route}".strip(), route, str(self.nodes)]

    def get(self, key: str, otherwise: Any = None) -> Any:
        return self._plain.get(key, otherwise)

    def of_engine(self, key: str, otherwise: Any = None) -> Any:
        table = self._plain.get(key, {})
        return next((table[name] for name in self._names if name in table), otherwise)

    def lists_engine(self, key: str) -> bool:
        return any(name in self._plain.get(key, ()) for name in self._names)

    def count(self) -> None:
        """Count the build of the engine."""
        self.number = _builds[self._engine]
        _builds[self._engine] += 1

    @property
    def latency_s(self) -> float:
        """Of this build of the engine."""
        calibrates = CALIBRATION in self._names
        usual = self.get("calibration_us", 60.0) if calibrates else 10.0 * self.nodes
        factors = self.of_engine("builds", [0.999, 1.001])
        factor = factors[self.number % len(factors)] * self.get("scale", 1.0)
        return float(1e-6 * self.of_engine("latency_us", usual) * factor)


class SteadyBackend:
    name = "steady"

    def check_available(self, options: Any) -> None:
        pass

    def check_options(self, options: Any) -> None:
        pass

    def environment(self, options: Any) -> Environment:
        settings = Settings()
        version = settings.get("tuner_version", "1.0")
        device_class = settings.get("device_class", "steady:one")
        return Environment(
            device_class=device_class,
            tuner_version=version,
            software={"backend": f"steady {version}"},
            device={"name": device_class},
            noted={},
        )

    def knob_space(self, model: Any, options: Any) -> str:
        settings = Settings()
        knobs = [("-first", "off"), ("-second", settings.get("default_second", "off"))]
        return json.dumps(
            {
                "tuner_version": settings.get("tuner_version", "1.0"),
                "tuner_options": [
                    {
                        "option": knob,
                        "allowed_values": f"{knob}=[{settings.get('values', 'off|on')}]",
                        "default_value": default,
                        "help": "a knob",
                    }
                    for knob, default in knobs
                ],
            }
        )

    def process_family(self, route: Any) -> str:
        return ""

    def engine_digest(self, request: Any) -> str | None:
        return None

    def load(self, request: Any, data: bytes) -> SteadyEngine:
        return self.build(request)

    def build(self, request: Any) -> SteadyEngine:
        route = " ".join(f"{knob}={value}" for knob, value in request.route)
        settings = Settings(request.model, route)
        time.sleep(settings.get("pause_s", 0))
        if settings.lists_engine("rejected"):
            raise BuildRejectedError(f"steady refuses '{route}'")
        return SteadyEngine(request, route, settings)


class SteadyEngine:
    def __init__(self, request: Any, route: str, settings: Settings) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            request.model, options, providers=["CPUExecutionProvider"]
        )
        self._crashes = settings.lists_engine("crashed")
        settings.count()
        moves = settings.number >= settings.of_engine("moved_from_build", 0)
        self._moved = settings.of_engine("moved", 0) if moves else 0
        self._latency_s = settings.latency_s
        self._tail = settings.of_engine("tail", 1.0)
        self._enqueue_share = settings.of_engine("enqueue_share")
        self._tail_samples = round(100 * settings.of_engine("tail_share", 0.1))
        self.info = EngineInfo(
            digest=f"{request.model_sha256} {route}",
            latency_kind=settings.get("latency_kind", "host_wall"),
            build_seconds=0.001,
        )

    def run(self, inputs: Any) -> Any:
        if self._crashes:
            raise EngineFailedError("steady gave up")
        names = [output.name for output in self._session.get_outputs()]
        values = self._session.run(names, dict(inputs))
        return {
            name: value + value.dtype.type(self._moved) for name, value in zip(names, values, strict=True)
        }

    def load(self, inputs: Any) -> None:
        pass

    def sample(self, seconds: float, at_most: int, batch: int = 1) -> Any:
        usual, slow = [self._latency_s], [self._latency_s * self._tail]
        from pytest_gptune.engines.base import SampleBlock

        samples = tuple(usual * (100 - self._tail_samples) + slow * self._tail_samples)
        return SampleBlock(samples, enqueue_share=self._enqueue_share)

    def serialize(self) -> bytes | None:
        return None

    def close(self) -> None:
        pass
