"""One engine by the plugin's sampling and by the independent script's, in turns, in one process.

    python benchmarks/sampling_ways.py squeezenet
    python benchmarks/sampling_ways.py captcha_detection --route "enable_cuda_graph=1"

``both_ways.py`` compares engines of processes of their own, so that all that differs between those is in its
figures. Here both samplings put the same inferences of the same session on the same stream: what is left is
how they enqueue, record events, and wait. Each block of an engine that waits for the host starts from another
core. Prints JSON: the median of each block in ms, the ratio of the two over all pairs, and of the quietest
blocks. Wants a GPU and PyTorch, whose events the script uses.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
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
    parser.add_argument("name", help="a workload's")
    parser.add_argument("--route", default="", help="as key=value ..., default the default")
    parser.add_argument("--pairs", type=int, default=100, help="of blocks, default 100")
    parser.add_argument("--packages", type=Path, default=HERE.parent / "build" / "workloads")
    given = parser.parse_args()
    sys.path[:0] = [str(HERE), str(given.packages)]
    print(json.dumps(compare(given), indent=1))


def compare(given: argparse.Namespace) -> dict[str, Any]:
    """Blocks of either way, in turns."""
    import onnxruntime
    import torch
    import verify_winner
    from device_name import gpu_of_this_machine
    from workload_models import workload

    from pytest_gptune.engines.base import BuildRequest
    from pytest_gptune.engines.machine import cpu_model, usable_cores
    from pytest_gptune.engines.onnx_model import inspect_model
    from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend
    from pytest_gptune.engines.onnxruntime.cuda_engine import CudaSessionEngine
    from pytest_gptune.timing.statistics import paired_ratio

    described = workload(given.name)
    model = inspect_model(described.path)
    pairs = tuple((f"-ort:{k}", v) for k, _, v in (token.partition("=") for token in given.route.split()))
    options = {"provider": "cuda", "allow_cpu_nodes": True}
    engine = OnnxRuntimeBackend().build(
        BuildRequest(model.path, model.sha256, pairs, options=options, fresh=True)
    )
    assert isinstance(engine, CudaSessionEngine)
    engine.load(described.cases()[0])
    assert engine._loaded is not None
    enqueue = engine._enqueue(engine._loaded)
    stream = torch.cuda.ExternalStream(engine._stream.handle)
    pace_s = min(engine.sample(0.2, 1_000_000).latencies_s)

    def by_plugin() -> float:
        return statistics.median(engine.sample(0.05, 1_000_000).latencies_s)

    def by_script() -> float:
        engine._cores.move()
        return float(statistics.median(verify_winner.block_on_device(enqueue, stream, pace_s)))

    ways = {"plugin": by_plugin, "script": by_script}
    found: dict[str, list[float]] = {key: [] for key in ways}
    for _ in range(given.pairs):
        for key in random.sample(list(ways), len(ways)):
            found[key].append(ways[key]())
    share = engine.sample(0.2, 1_000_000).enqueue_share
    engine.close()
    ratio = paired_ratio(found["plugin"], found["script"])
    return {
        "benchmark": "sampling_ways",
        "command": " ".join(["python", "benchmarks/sampling_ways.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"device": cpu_model(), "cores": usable_cores(), **gpu_of_this_machine()},
        "versions": {
            "onnxruntime": onnxruntime.__version__,
            "PyTorch": torch.__version__,
            "Python": platform.python_version(),
        },
        "model": given.name,
        "enqueue_share": share,
        "blocks_ms": {key: [round(value * 1e3, 4) for value in values] for key, values in found.items()},
        "plugin_over_script": {
            "value": round(ratio.value, 4),
            "interval": [round(ratio.low, 4), round(ratio.high, 4)],
            "quietest": {
                count: round(_quietest(found["plugin"], count) / _quietest(found["script"], count), 4)
                for count in (1, 5, 20)
            },
        },
    }


def _quietest(values: list[float], count: int) -> float:
    return statistics.fmean(sorted(values)[:count])


if __name__ == "__main__":
    main()
