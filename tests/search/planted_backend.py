"""A backend whose routes are as fast and as accurate as a file says: exact tests of searches.

``planted.json`` stands beside this module:

``knobs``: values of each knob, the default first.
``factors``: what a choice of values multiplies 100 us with, keyed as ``-a=on`` or ``-a=on -b=on``.
``moved``: what a choice of values adds to the outputs.
``inert``: knobs that change nothing about the engine.
``known_before``: whether digests are known before engines are built; true by default.
``pause_s``: seconds that each build takes; ``pauses_s``: what a choice adds to them.
``slow_first``: factor of the first build of a route, by the route.
``wobbles``: factors of a choice's builds, one after the other.
``hosts_pace``: microseconds that the host needs to enqueue, but for routes with the choice ``ahead``.
``crashed``, ``interrupted``: choices whose build fails, and raises KeyboardInterrupt.

Each build, the engines that are there then, and each digest that was asked for are lines of ``builds.log``.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import onnxruntime

from pytest_gptune.engines.base import EngineFailedError, EngineInfo, Environment, SampleBlock

FOLDER = Path(__file__).parent

_alive: set[int] = set()


def settings() -> dict[str, Any]:
    return dict(json.loads((FOLDER / "planted.json").read_text()))


def log(text: str) -> None:
    descriptor = os.open(FOLDER / "builds.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


def builds_of(route: str) -> int:
    """How often the route was built, this time included."""
    lines = (FOLDER / "builds.log").read_text().splitlines()
    return sum(" ".join(line.split()[2:]) == route for line in lines if line.startswith("build "))


class PlantedBackend:
    name = "planted"

    def check_available(self, options: Any) -> None:
        pass

    def check_options(self, options: Any) -> None:
        pass

    def environment(self, options: Any) -> Environment:
        return Environment("planted:one", "1.0", {"backend": "planted 1.0"}, {"name": "one"}, {})

    def knob_space(self, model: Any, options: Any) -> str:
        options = [
            {
                "option": knob,
                "allowed_values": f"{knob}=[{'|'.join(values)}]",
                "default_value": values[0],
                "help": "a knob",
            }
            for knob, values in settings()["knobs"].items()
        ]
        return json.dumps({"tuner_version": "1.0", "tuner_options": options})

    def process_family(self, route: Any) -> str:
        return ""

    def engine_digest(self, request: Any) -> str | None:
        return _digest(request) if settings().get("known_before", True) else None

    def build(self, request: Any) -> PlantedEngine:
        log(f"build {request.model} {_text(request.route)}".strip())
        plain = settings()
        time.sleep(plain.get("pause_s", 0.0) + _sum(plain.get("pauses_s", {}), request.route))
        if _sum(plain.get("crashed", {}), request.route):
            raise EngineFailedError("planted to crash")
        if _sum(plain.get("interrupted", {}), request.route):
            raise KeyboardInterrupt
        return PlantedEngine(request, plain)

    def load(self, request: Any, data: bytes) -> PlantedEngine:
        log(f"load {_text(request.route)}")
        return PlantedEngine(request, settings())


class PlantedEngine:
    def __init__(self, request: Any, plain: dict[str, Any]) -> None:
        self._session = onnxruntime.InferenceSession(request.model, providers=["CPUExecutionProvider"])
        self._moved = _sum(plain.get("moved", {}), request.route)
        self._latency_s = 1e-4
        for choice, factor in plain.get("factors", {}).items():
            if _chosen(choice, request.route):
                self._latency_s *= factor
        route = _text(request.route)
        if builds_of(route) == 1:
            self._latency_s *= plain.get("slow_first", {}).get(route, 1.0)
        for choice, factors in plain.get("wobbles", {}).items():
            if _chosen(choice, request.route):
                self._latency_s *= factors[(builds_of(route) - 1) % len(factors)]
        self._enqueue_s = plain.get("hosts_pace", 0.0) * 1e-6
        if _chosen(plain.get("ahead", "-none=on"), request.route):
            self._enqueue_s = 1e-6
        self._data = _text(request.route).encode()
        self.info = EngineInfo(_digest(request), "host_wall", 0.001)
        _alive.add(id(self))
        log(f"alive {len(_alive)}")

    def run(self, inputs: Any) -> Any:
        names = [output.name for output in self._session.get_outputs()]
        values = self._session.run(names, dict(inputs))
        return {
            name: value + value.dtype.type(self._moved) for name, value in zip(names, values, strict=True)
        }

    def load(self, inputs: Any) -> None:
        pass

    def sample(self, seconds: float, at_most: int, batch: int = 1) -> SampleBlock:
        latency_s = max(self._latency_s, self._enqueue_s)
        share = self._enqueue_s / latency_s if self._enqueue_s else None
        return SampleBlock((latency_s * 0.999, latency_s, latency_s * 1.001), enqueue_share=share)

    def serialize(self) -> bytes | None:
        return self._data

    def close(self) -> None:
        _alive.discard(id(self))


def _digest(request: Any) -> str:
    inert = settings().get("inert", [])
    kept = [f"{knob}={value}" for knob, value in request.route if knob not in inert]
    return hashlib.sha256(" ".join([request.model_sha256, *kept]).encode()).hexdigest()


def _text(route: Any) -> str:
    return " ".join(f"{knob}={value}" for knob, value in route)


def _chosen(choice: str, route: Any) -> bool:
    defaults = {knob: values[0] for knob, values in settings()["knobs"].items()}
    values = {**defaults, **dict(route)}
    return all(values.get(knob) == value for knob, value in (pair.split("=") for pair in choice.split()))


def _sum(table: dict[str, float], route: Any) -> float:
    return sum(value for choice, value in table.items() if _chosen(choice, route))
