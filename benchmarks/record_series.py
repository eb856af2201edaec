"""Records latency series of pairs of identical engines, for ``simulate_timing.py``.

    python benchmarks/record_series.py --seconds 300 --output benchmarks/data/cpu-series.npz

For each condition (one and two threads; alone, and with another process that takes a core at random) pairs of
engines are built from one model again and again, and measured in turns, a block each, in random order. Kept
are the quantiles p25, p50, p75, p95, the mean and the minimum of each block, in microseconds: key
``THREADS-LOAD``, shape [pairs, 2 engines, blocks, 6].
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pytest_gptune.engines.base import BuildRequest
from pytest_gptune.engines.machine import cpu_model, usable_cores
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.worker import WorkerBackend

MODEL = Path(__file__).resolve().parents[1] / "example_project" / "models" / "mlp.onnx"


# Alternates between computing and sleeping, 50 to 500 ms each.
_TAKE_A_CORE_AT_RANDOM = """
import random, sys, time
rng = random.Random(int(sys.argv[1]))
while True:
    end = time.perf_counter() + rng.uniform(0.05, 0.5)
    while time.perf_counter() < end:
        pass
    time.sleep(rng.uniform(0.05, 0.5))
"""


@contextlib.contextmanager
def load(wanted: bool, seed: int = 0) -> Iterator[None]:
    """Another process that takes a core at random, where ``wanted``."""
    if not wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-S", "-c", _TAKE_A_CORE_AT_RANDOM, str(seed)])
    time.sleep(0.1)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def summary(samples: Sequence[float]) -> list[float]:
    """p25, p50, p75, p95, mean and minimum of a block, in microseconds."""
    array = np.asarray(samples) * 1e6
    return [*np.percentile(array, [25, 50, 75, 95]), array.mean(), array.min()]


def record(backend: WorkerBackend, threads: int, seconds: float, blocks: int, block_s: float) -> np.ndarray:
    """Series of pairs under the present conditions."""
    model = inspect_model(MODEL)
    route = (("-ort:intra_op_num_threads", str(threads)),)
    request = BuildRequest(model.path, model.sha256, route)
    rng = np.random.default_rng(0)
    inputs = {"features": rng.standard_normal((32, 48)).astype(np.float32)}
    order = random.Random(1)
    pairs = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        engines = [backend.build(request) for _ in range(2)]
        for engine in engines:
            engine.load(inputs)
            engine.sample(0.02, 1_000_000)
        rows: list[list[list[float]]] = [[], []]
        for _ in range(blocks):
            for which in order.sample([0, 1], 2):
                engines[which].sample(0.01, 1_000_000)
                rows[which].append(summary(engines[which].sample(block_s, 1_000_000).latencies_s))
        pairs.append(rows)
        for engine in engines:
            engine.close()
    return np.asarray(pairs, np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300, help="in all, default 300")
    parser.add_argument("--blocks", type=int, default=4, help="blocks of each engine of a pair, default 4")
    parser.add_argument("--block-s", type=float, default=0.05, help="length of a block, default 0.05")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    conditions = [(threads, loaded) for threads in (1, 2) for loaded in (False, True)]
    backend = WorkerBackend("onnxruntime", route_timeout_s=600)
    series: dict[str, list[np.ndarray]] = {}
    try:
        # Conditions take turns, so that each is spread over the time of the recording.
        turns = max(1, round(given.seconds / len(conditions) / 15))
        for turn in range(turns):
            for threads, loaded in conditions:
                with load(loaded, seed=turn):
                    got = record(
                        backend, threads, given.seconds / turns / len(conditions), given.blocks, given.block_s
                    )
                series.setdefault(f"{threads}-{'loaded' if loaded else 'alone'}", []).append(got)
    finally:
        backend.close()
    about = {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "model": MODEL.name,
        "block_s": given.block_s,
        "columns": ["p25", "p50", "p75", "p95", "mean", "min"],
        "unit": "us",
    }
    arrays: dict[str, Any] = {key: np.concatenate(parts) for key, parts in series.items()}
    given.output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(given.output, about=np.array(json.dumps(about)), **arrays)
    print(json.dumps({key: list(value.shape) for key, value in arrays.items()}))


if __name__ == "__main__":
    main()
