"""What routes leave behind in their process: a CUDA graph's latency, and that of a graph of small kernels.

    python benchmarks/launch_pace.py resnet50
    python benchmarks/launch_pace.py deepcut --packages build/workloads

In one process an engine with a CUDA graph is built and timed; then engines of other routes are built and run,
one after another, and after each the first engine is timed again, and a new one like it. ``slowdown`` is what
``engines/cuda/launch_pace.py`` reads. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent

_GRAPH = "enable_cuda_graph=1"
_ROUTES = (
    "",
    "use_tf32=0",
    "cudnn_conv_algo_search=heuristic",
    "graph_optimization_level=disable",
    "prefer_nhwc=1",
    "cudnn_conv_algo_search=default",
    "",
)


class Process:
    """Engines of one model in this process."""

    def __init__(self, name: str) -> None:
        from workload_models import workload

        from pytest_gptune.engines.onnx_model import inspect_model
        from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend

        described = workload(name)
        self.backend = OnnxRuntimeBackend()
        self.model = inspect_model(described.path)
        floats = {item.name for item in self.model.inputs if item.dtype == "float32"}
        first = next(iter(described.inputs(described.path)))
        self.inputs = {
            key: np.asarray(value, np.float32) if key in floats else value for key, value in first.items()
        }
        self.options = {"provider": "cuda", "allow_cpu_nodes": True}

    def engine(self, route: str) -> Any:
        from pytest_gptune.engines.base import BuildRequest

        pairs = tuple((f"-ort:{k}", v) for k, _, v in (token.partition("=") for token in route.split()))
        request = BuildRequest(self.model.path, self.model.sha256, pairs, options=self.options)
        engine = self.backend.build(request)
        engine.load(self.inputs)
        return engine

    def new_engine_ms(self, route: str) -> float:
        engine = self.engine(route)
        engine.run(self.inputs)
        result = latency_ms(engine)
        engine.close()
        return result


def latency_ms(engine: Any) -> float:
    """The median of the quietest of three blocks."""
    blocks = [engine.sample(0.15, 1_000_000).latencies_s for _ in range(3)]
    return round(min(float(statistics.median(block)) for block in blocks) * 1e3, 4)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload")
    parser.add_argument("--packages", type=Path, default=HERE.parent / "build" / "workloads")
    given = parser.parse_args()
    sys.path[:0] = [str(HERE), str(given.packages.resolve())]
    from pytest_gptune.engines.cuda import Device
    from pytest_gptune.engines.cuda.launch_pace import LaunchPace

    device = Device.find("0")
    device.make_current()
    process = Process(given.workload)
    # On the stream of the engines: a second one may change what is measured.
    pace = LaunchPace(process.backend._streams.of(device))
    first = process.engine(_GRAPH)
    rows = [{"after": None, "first_ms": latency_ms(first), "slowdown": round(pace.slowdown(), 3)}]
    for route in _ROUTES:
        row: dict[str, Any] = {"after": route or "default", "its_own_ms": process.new_engine_ms(route)}
        row |= {"first_ms": latency_ms(first), "new_ms": process.new_engine_ms(_GRAPH)}
        rows.append({**row, "slowdown": round(pace.slowdown(), 3)})
    print(json.dumps({"workload": given.workload, "device": device.name, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
