"""What it costs a session to be told nothing of CUDA graphs, in each run.

    python benchmarks/graph_id.py squeezenet
    python benchmarks/graph_id.py attacut --provider cpu --packages build/workloads --processes 3

``InferenceSession.run`` and ``run_with_iobinding`` of ONNX Runtime 1.31.1 and 1.32.0 look for the entry
``gpu_graph_id`` of the run options they are given, whatever the provider. Where it is not there, that is an
exception of C++ and one of Python. A session of a workload's default route is run with ``gpu_graph_id=-1``,
without it, and without run options, in turns, from every core in random order. Prints JSON: for each process
what one call takes, in ms, medians of the four quietest cores; and in us the least without minus that with.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="a workload's")
    parser.add_argument("--provider", default="cuda", help="ONNX Runtime's, default cuda")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--packages", type=Path, default=HERE.parent / "build" / "workloads")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    sys.path[:0] = [str(HERE), str(given.packages)]
    if given.one:
        print(json.dumps(one_process(given.name, given.provider)))
        return
    import onnxruntime
    from device_name import gpu_of_this_machine

    from pytest_gptune.engines.machine import cpu_model, usable_cores

    processes = []
    for _ in range(given.processes):
        command = [sys.executable, __file__, "--one", *sys.argv[1:]]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        processes.append(json.loads(done.stdout))
    result = {
        "benchmark": "graph_id",
        "command": " ".join(["python", "benchmarks/graph_id.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"device": cpu_model(), "cores": usable_cores(), **gpu_of_this_machine()},
        "versions": {"onnxruntime": onnxruntime.__version__, "Python": sys.version.split()[0]},
        "model": given.name,
        "processes_ms": processes,
        "without_minus_with_us": [
            round((min(found["without"]) - min(found["with"])) * 1e3, 1) for found in processes
        ],
    }
    print(json.dumps(result, indent=1))


def one_process(name: str, provider: str) -> dict[str, list[float]]:
    """Medians on the four quietest cores, in ms per inference."""
    import verify_winner
    from workload_models import workload

    described = workload(name)
    stream = None
    if provider == "cuda":
        import torch

        stream = torch.cuda.Stream()
    threads = min(4, len(os.sched_getaffinity(0)))
    session = verify_winner.build(
        str(described.path), f"-ort:intra_op_num_threads={threads}", provider, stream
    )
    binding, _ = verify_winner.bind(session, described.cases()[0])
    no_wait = {"disable_synchronize_execution_providers": "1"}
    options: dict[str, Any] = {
        "with": verify_winner.run_options(**no_wait, gpu_graph_id="-1"),
        "without": verify_winner.run_options(**no_wait),
        "no run options": None,
    }
    if provider == "cuda":
        del options["no run options"]  # such a run waits for the device

    def enqueue_ms(how: Any, runs: int = 30) -> float:
        taken = []
        for _ in range(runs):
            begin = time.perf_counter()
            session.run_with_iobinding(binding, how)
            taken.append(time.perf_counter() - begin)
        if stream is not None:
            stream.synchronize()
        return statistics.median(taken[runs // 3 :]) * 1e3

    for how in options.values():
        enqueue_ms(how)
    found: dict[str, list[float]] = {kind: [] for kind in options}
    cores = sorted(os.sched_getaffinity(0))
    for core in random.sample(cores, len(cores)):
        os.sched_setaffinity(0, {core})
        for kind in random.sample(list(options), len(options)):
            found[kind].append(round(enqueue_ms(options[kind]), 4))
    return {kind: sorted(blocks)[:4] for kind, blocks in found.items()}


if __name__ == "__main__":
    main()
