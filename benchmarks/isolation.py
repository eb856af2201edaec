"""What isolation costs: per route with a warm worker, and whether it changes the figures.

    python benchmarks/isolation.py

Prints JSON. ``overhead_ms`` is the wall time of a route (build, one check run, sampling) through the worker
less that in process, both less the time spent in the build and the sampling themselves. ``latency_ratio``
compares latencies of builds measured in pairs, in process and in the worker alternately, in several pairs of
fresh processes: where a process has its memory moves a latency, so ``interval`` is taken over processes.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from pytest_gptune.engines.base import Backend, BuildRequest
from pytest_gptune.engines.in_process import InProcessBackend
from pytest_gptune.engines.machine import cpu_model, usable_cores
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.registry import load_backend
from pytest_gptune.engines.worker import WorkerBackend
from pytest_gptune.timing.statistics import paired_ratio, quantile

MODELS = Path(__file__).resolve().parents[1] / "example_project" / "models"
INPUTS: dict[str, dict[str, tuple[int, ...]]] = {
    "mlp.onnx": {"features": (32, 48)},
    "convnet.onnx": {"image": (1, 3, 64, 64)},
    "encoder.onnx": {"tokens": (2, 64, 128)},
}


def route_cost(backend: Backend, request: BuildRequest, inputs: dict[str, Any]) -> tuple[float, float]:
    """Seconds of one route beyond build and sampling, and its latency in seconds."""
    start = time.perf_counter()
    engine = backend.build(request)
    engine.run(inputs)
    engine.load(inputs)
    engine.sample(0.03, 1_000_000)
    sampling_start = time.perf_counter()
    samples = engine.sample(0.1, 1_000_000).latencies_s
    sampled = time.perf_counter() - sampling_start
    engine.close()
    beyond = time.perf_counter() - start - engine.info.build_seconds - sampled - 0.03
    return beyond, quantile(sorted(samples), 0.25)


def compare(name: str, pairs: int) -> dict[str, Any]:
    """Both ways for one model, alternating."""
    model = inspect_model(MODELS / name)
    rng = np.random.default_rng(0)
    inputs = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in INPUTS[name].items()}
    request = BuildRequest(model.path, model.sha256, (("-ort:intra_op_num_threads", "1"),))
    inside = InProcessBackend(load_backend("onnxruntime"))
    worker = WorkerBackend("onnxruntime", route_timeout_s=600)
    costs: dict[str, list[float]] = {"in_process": [], "worker": []}
    latencies: dict[str, list[float]] = {"in_process": [], "worker": []}
    try:
        route_cost(worker, request, inputs)  # starts the process and imports the backend in it
        route_cost(inside, request, inputs)
        for number in range(pairs):
            order: list[tuple[str, Backend]] = [("in_process", inside), ("worker", worker)]
            for key, backend in order if number % 2 else reversed(order):
                cost, latency = route_cost(backend, request, inputs)
                costs[key].append(cost)
                latencies[key].append(latency)
    finally:
        worker.close()
    ratio = paired_ratio(latencies["worker"], latencies["in_process"])
    return {
        "model": name,
        "pairs": pairs,
        "in_process_ms": round(statistics.median(costs["in_process"]) * 1e3, 3),
        "worker_ms": round(statistics.median(costs["worker"]) * 1e3, 3),
        "overhead_ms": round(
            statistics.median(b - a for a, b in zip(costs["in_process"], costs["worker"], strict=True)) * 1e3,
            3,
        ),
        "latency_ratio": round(ratio.value, 4),
        "interval": [round(ratio.low, 4), round(ratio.high, 4)],
    }


def compare_processes(name: str, pairs: int, processes: int) -> dict[str, Any]:
    """The comparison in several fresh pairs of processes, and the interval over them."""
    runs = []
    for _ in range(processes):
        done = subprocess.run(
            [sys.executable, __file__, "--one", name, "--pairs", str(pairs)],
            capture_output=True,
            text=True,
            check=True,
        )
        runs.append(json.loads(done.stdout))
    ratio = paired_ratio([run["latency_ratio"] for run in runs], [1.0] * len(runs))
    return {
        **{key: runs[0][key] for key in ("model", "pairs")},
        "processes": processes,
        **{
            key: round(statistics.median(run[key] for run in runs), 3)
            for key in ("in_process_ms", "worker_ms", "overhead_ms")
        },
        "latency_ratio": round(ratio.value, 4),
        "interval": [round(ratio.low, 4), round(ratio.high, 4)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=12, help="builds of each kind and process, default 12")
    parser.add_argument("--processes", type=int, default=8, help="fresh processes of each model, default 8")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(compare(given.one, given.pairs)))
        return
    start = time.perf_counter()
    result: dict[str, Any] = {
        "benchmark": "isolation",
        "command": " ".join(["python", *sys.argv]),
        "machine": {"cpu": cpu_model(), "cores": usable_cores(), "system": platform.platform()},
        "python": platform.python_version(),
        "onnxruntime": load_backend("onnxruntime").environment({}).tuner_version,
        "goal": {"overhead_ms": 20, "latency_ratio": [0.99, 1.01]},
        "models": [compare_processes(name, given.pairs, given.processes) for name in INPUTS],
    }
    result["seconds"] = round(time.perf_counter() - start, 1)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
