"""What the pace of an engine that keeps the device waiting depends on: core, process, time.

    python benchmarks/host_pace.py squeezenet
    python benchmarks/host_pace.py captcha_detection --packages build/workloads --processes 8 --rounds 4

Each of some processes, alive at the same time, builds the default engine of a workload. In each round they
measure one after another: blocks of 50 ms whose inferences are enqueued from one core, where the scheduler
had put the thread, then as many that are enqueued from one core after another, each with the time of a fixed
loop on that core. Prints JSON: the median of every block in ms, the loop in us; and of the quietest blocks of
a turn how much of their spread lies between processes, between rounds, and within.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent

_KINDS = ("stays", "moves")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="a workload's")
    parser.add_argument("--provider", default="cuda", help="ONNX Runtime's, default cuda")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=10, help="of either kind in each turn")
    parser.add_argument("--packages", type=Path, default=HERE.parent / "build" / "workloads")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    sys.path[:0] = [str(HERE), str(given.packages)]
    if given.one:
        one_process(given.name, given.provider, given.blocks)
        return
    import onnxruntime
    from device_name import gpu_of_this_machine

    from pytest_gptune.engines.machine import cpu_model, usable_cores

    turns = all_turns(given.processes, given.rounds)
    result = {
        "benchmark": "host_pace",
        "command": " ".join(["python", "benchmarks/host_pace.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"device": cpu_model(), "cores": usable_cores(), **gpu_of_this_machine()},
        "versions": {"onnxruntime": onnxruntime.__version__, "Python": sys.version.split()[0]},
        "model": given.name,
        "quietest": {kind: spread_of(turns, kind) for kind in _KINDS},
        "processes": turns,
    }
    print(json.dumps(result, indent=1))


def all_turns(processes: int, rounds: int) -> list[list[dict[str, Any]]]:
    """What each process measured in each round."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, __file__, "--one", *sys.argv[1:]],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(processes)
        ]
        for process in started:
            _answer(process)
        turns: list[list[dict[str, Any]]] = [[] for _ in started]
        for _ in range(rounds):
            for process, mine in zip(started, turns, strict=True):
                assert process.stdin is not None
                print("turn", file=process.stdin, flush=True)
                mine.append(_answer(process))
    return turns


def _answer(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        raise SystemExit(f"a process ended with exit code {process.wait()}")
    return json.loads(line)


def spread_of(turns: list[list[dict[str, Any]]], kind: str) -> dict[str, Any]:
    """The quietest block of each turn, in ms, and the relative standard deviations of what adds up to it."""
    least = np.array([[min(turn[kind]) for turn in mine] for mine in turns])
    logs = np.log(least)
    processes, rounds = logs.mean(axis=1), logs.mean(axis=0)
    rest = logs - processes[:, None] - rounds[None, :] + logs.mean()
    return {
        "ms": least.tolist(),
        "median_ms": float(np.median(least)),
        "between_processes": float(processes.std(ddof=1)) if len(processes) > 1 else None,
        "between_rounds": float(rounds.std(ddof=1)) if len(rounds) > 1 else None,
        "within": float(np.sqrt((rest**2).sum() / max((logs.shape[0] - 1) * (logs.shape[1] - 1), 1))),
    }


def one_process(name: str, provider: str, blocks: int) -> None:
    """Builds an engine, then measures for each line that comes in."""
    from workload_models import workload

    from pytest_gptune.engines.base import BuildRequest
    from pytest_gptune.engines.machine import usable_cores
    from pytest_gptune.engines.onnx_model import inspect_model
    from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend

    described = workload(name)
    model = inspect_model(described.path)
    options = {"provider": provider, "allow_cpu_nodes": provider != "cpu"}
    threads = (("-ort:intra_op_num_threads", str(min(4, usable_cores()))),)
    engine = OnnxRuntimeBackend().build(BuildRequest(model.path, model.sha256, threads, options=options))
    engine.load(described.cases()[0])
    engine.sample(0.3, at_most=1_000_000)
    print(json.dumps("ready"), flush=True)
    cores = sorted(os.sched_getaffinity(0))
    for turn, _ in enumerate(sys.stdin):
        found: dict[str, list[float]] = {"stays": [], "moves": [], "loop_us": []}
        start = int(Path("/proc/thread-self/stat").read_text().rpartition(")")[2].split()[36])
        order = [start] * blocks + [cores[(turn * blocks + n) % len(cores)] for n in range(blocks)]
        for number, core in enumerate(order):
            os.sched_setaffinity(0, {core})  # with a single core to use, the engine does not move by itself
            found["loop_us"].append(fixed_loop_us())
            engine.sample(0.012, at_most=1_000_000)
            block = engine.sample(0.05, at_most=1_000_000).latencies_s
            found[_KINDS[number >= blocks]].append(round(statistics.median(block) * 1e3, 4))
        os.sched_setaffinity(0, cores)
        print(json.dumps(found), flush=True)
    engine.close()


def fixed_loop_us() -> float:
    """The shortest of five times of a loop that needs nothing but its core, in microseconds."""
    shortest = float("inf")
    for _ in range(5):
        begin, total = time.perf_counter(), 0
        for number in range(4000):
            total += number
        shortest = min(shortest, time.perf_counter() - begin)
    return round(shortest * 1e6, 1)


if __name__ == "__main__":
    main()
