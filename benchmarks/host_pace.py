"""How fast one host enqueues one engine, block by block, in one process after another.

    python benchmarks/host_pace.py squeezenet
    python benchmarks/host_pace.py captcha_detection --packages build/workloads --processes 10

Where a GPU waits for the host, latency is the host's pace. Each process builds the default engine of a
workload and times blocks of 50 ms in a row, then blocks after a pause, as engines that are measured in turns
have them. Prints JSON: the median of every block, in ms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent

# What another engine takes in the finals before this one has its turn again.
_PAUSE_S = 0.12


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="a workload's")
    parser.add_argument("--provider", default="cuda", help="ONNX Runtime's, default cuda")
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=20, help="of either kind in each process")
    parser.add_argument("--packages", type=Path, default=HERE.parent / "build" / "workloads")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    sys.path[:0] = [str(HERE), str(given.packages)]
    if given.one:
        print(json.dumps(one_process(given.name, given.provider, given.blocks)))
        return
    import onnxruntime
    from device_name import gpu_of_this_machine

    from pytest_gptune.engines.machine import cpu_model, usable_cores

    processes = []
    for _ in range(given.processes):
        command = [sys.executable, __file__, "--one", *sys.argv[1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        processes.append(json.loads(done.stdout))
    result = {
        "benchmark": "host_pace",
        "command": " ".join(["python", "benchmarks/host_pace.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"device": cpu_model(), "cores": usable_cores(), **gpu_of_this_machine()},
        "versions": {"onnxruntime": onnxruntime.__version__, "Python": sys.version.split()[0]},
        "model": given.name,
        "processes_ms": processes,
    }
    print(json.dumps(result, indent=1))


def one_process(name: str, provider: str, blocks: int) -> dict[str, list[float]]:
    """The median of each block, in ms: of those in a row, and of those after a pause."""
    from workload_models import workload

    from pytest_gptune.engines.base import BuildRequest
    from pytest_gptune.engines.machine import usable_cores
    from pytest_gptune.engines.onnx_model import inspect_model
    from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend

    described = workload(name)
    model = inspect_model(described.path)
    floats = {item.name for item in model.inputs if item.dtype == "float32"}
    first = next(iter(described.inputs(described.path)))
    inputs = {key: np.asarray(value, np.float32 if key in floats else None) for key, value in first.items()}
    options = {"provider": provider, "allow_cpu_nodes": provider != "cpu"}
    threads = (("-ort:intra_op_num_threads", str(min(4, usable_cores()))),)
    engine = OnnxRuntimeBackend().build(BuildRequest(model.path, model.sha256, threads, options=options))
    engine.load(inputs)
    engine.sample(0.3, at_most=1_000_000)
    found: dict[str, list[float]] = {"in a row": [], "after a pause": []}
    for kind, taken in found.items():
        for _ in range(blocks):
            if kind == "after a pause":
                time.sleep(_PAUSE_S)
                engine.sample(0.012, at_most=1_000_000)
            block = engine.sample(0.05, at_most=1_000_000).latencies_s
            taken.append(round(statistics.median(block) * 1e3, 4))
    engine.close()
    return found


if __name__ == "__main__":
    main()
