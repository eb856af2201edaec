"""What a round of the finals saves by getting the workers of its engines ready side by side.

    python benchmarks/worker_starts.py
    python benchmarks/worker_starts.py resnet50 --provider cuda
    python benchmarks/worker_starts.py magika --packages build/workloads

Every engine has a process of its own. A round builds some, one after another as always, and ends them; its
workers start one by one or all at once, in turns. On a CPU engines share a process otherwise. Prints JSON:
seconds of each round, and the ratio of their medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", default="squeezenet", help="a workload's, default squeezenet")
    parser.add_argument("--provider", default="cpu")
    parser.add_argument("--engines", type=int, default=4, help="of each round, default 4")
    parser.add_argument("--rounds", type=int, default=5, help="of either kind, default 5")
    parser.add_argument("--packages", type=Path, default=HERE.parent / "build" / "workloads")
    given = parser.parse_args()
    sys.path[:0] = [str(HERE), str(given.packages)]
    print(json.dumps(compare(given), indent=1))


def compare(given: argparse.Namespace) -> dict[str, Any]:
    """Seconds of rounds of either kind."""
    import onnxruntime
    from device_name import gpu_of_this_machine
    from worker_backends import AProcessEach
    from workload_models import workload

    from pytest_gptune.engines.base import BuildRequest
    from pytest_gptune.engines.machine import cpu_model, usable_cores
    from pytest_gptune.engines.onnx_model import inspect_model

    path = workload(given.name).path
    options = {"provider": given.provider, "allow_cpu_nodes": True}
    request = BuildRequest(str(path), inspect_model(path).sha256, options=options, fresh=True)
    seconds: dict[str, list[float]] = {"one by one": [], "side by side": []}

    backend = AProcessEach("onnxruntime", route_timeout_s=300)
    try:
        backend.build(request).close()  # what is read and compiled once is not of the first kind
        for number in range(given.rounds):
            order = list(seconds.items())
            for kind, taken in order if number % 2 else reversed(order):
                start = time.perf_counter()
                expected = [request] * given.engines if kind == "side by side" else []
                with backend.expecting(expected):
                    engines = [backend.build(request) for _ in range(given.engines)]
                    for engine in engines:
                        engine.close()
                taken.append(round(time.perf_counter() - start, 3))
    finally:
        backend.close()
    return {
        "benchmark": "worker_starts",
        "command": " ".join(["python", "benchmarks/worker_starts.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"device": cpu_model(), "cores": usable_cores(), **gpu_of_this_machine()},
        "versions": {"onnxruntime": onnxruntime.__version__, "Python": sys.version.split()[0]},
        "engines": given.engines,
        "seconds": seconds,
        "one_by_one_over_side_by_side": round(
            statistics.median(seconds["one by one"]) / statistics.median(seconds["side by side"]), 2
        ),
    }


if __name__ == "__main__":
    main()
