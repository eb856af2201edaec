"""What an earlier session of its process costs an engine, and what else happened there before it.

    python benchmarks/earlier_session.py
    python benchmarks/earlier_session.py squeezenet --provider cuda --builds 8

An engine is built in a process of its own: at once; in one that got ready before, as in the finals on a
GPU; in one that found out the engine's digest before, by a session that it let go; and with CUDA in one that
found out before how fast kernels start, as the processes of a search do. All are measured in turns by the
code of the finals. Without a name the model is a chain of 1,200 tiny nodes: its latency is
what ONNX Runtime does for each node, as the host's is before a GPU. Prints JSON: latencies of each
build, and ratios with their 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent

_LAYERS = 400
_ONE = "one session"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", help="a workload's, instead of the chain")
    parser.add_argument("--provider", default="cpu", help="ONNX Runtime's, default cpu")
    parser.add_argument("--builds", type=int, default=12, help="of each kind, default 12")
    parser.add_argument("--packages", type=Path, default=HERE.parent / "build" / "workloads")
    given = parser.parse_args()
    sys.path[:0] = [str(HERE), str(given.packages)]
    print(json.dumps(compare(given), indent=1))


def compare(given: argparse.Namespace) -> dict[str, Any]:
    """Latencies of each kind."""
    import onnxruntime
    from device_name import gpu_of_this_machine
    from worker_backends import AProcessEach

    from pytest_gptune.engines.base import BuildRequest
    from pytest_gptune.engines.machine import cpu_model, usable_cores
    from pytest_gptune.engines.onnx_model import inspect_model
    from pytest_gptune.timing.finals import Contestant, FinalsPlan, run_finals

    class WatchedBefore(AProcessEach):
        """As if further engines were to come in that process."""

        def _identified(self, request: BuildRequest, deadline: float) -> BuildRequest:
            return replace(super()._identified(request, deadline), fresh=False)

    class DigestBefore(AProcessEach):
        """Leaves it to the build to find out the digest."""

        def _identified(self, request: BuildRequest, deadline: float) -> BuildRequest:
            return request

    with tempfile.TemporaryDirectory() as folder:
        path, inputs = _of_workload(given.name) if given.name else _chain(Path(folder))
        options = {} if given.provider == "cpu" else {"provider": given.provider, "allow_cpu_nodes": True}
        one_thread = (("-ort:intra_op_num_threads", "1"),)
        request = BuildRequest(str(path), inspect_model(path).sha256, one_thread, options=options, fresh=True)

        def building(backend: AProcessEach, *, ready: bool = False) -> Any:
            def build() -> Any:
                with backend.expecting([request] if ready else []):
                    engine = backend.build(request)
                engine.run(inputs)
                engine.load(inputs)
                return engine

            return build

        with (
            closing(AProcessEach("onnxruntime", route_timeout_s=300)) as alone,
            closing(DigestBefore("onnxruntime", route_timeout_s=300)) as after,
            closing(WatchedBefore("onnxruntime", route_timeout_s=300)) as watched,
        ):
            contestants = [
                Contestant(_ONE, building(alone)),
                Contestant("got ready", building(alone, ready=True)),
                Contestant("an earlier session", building(after)),
            ]
            if given.provider == "cuda":
                contestants.append(Contestant("watched", building(watched)))
            result = run_finals(contestants, FinalsPlan(rounds=6), random.Random(), builds=given.builds)
    if result.failures:
        raise SystemExit("\n".join(f"{key}: {why}" for key, why in result.failures.items()))
    ratios = {key: result.ratio(key, _ONE) for key in result.blocks if key != _ONE}
    return {
        "benchmark": "earlier_session",
        "command": " ".join(["python", "benchmarks/earlier_session.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"device": cpu_model(), "cores": usable_cores(), **gpu_of_this_machine()},
        "versions": {"onnxruntime": onnxruntime.__version__, "Python": platform.python_version()},
        "model": given.name or f"a chain of {3 * _LAYERS} nodes",
        "latencies_ms": {key: [round(s * 1e3, 4) for s in result.latencies(key)] for key in result.blocks},
        "over_one_session": {
            key: {"value": round(ratio.value, 4), "interval": [round(ratio.low, 4), round(ratio.high, 4)]}
            for key, ratio in ratios.items()
        },
        "warnings": {key: list(result.warnings(key)) for key in result.blocks},
    }


def _of_workload(name: str) -> tuple[Path, dict[str, np.ndarray]]:
    from workload_models import workload

    described = workload(name)
    return described.path, described.cases()[0]


def _chain(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Convolutions of two by two points, each with a Sigmoid and a Transpose, so that nothing is fused."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes, weights, last, shape = [], [], "x", [1, 8, 2, 2]
    for layer in range(_LAYERS):
        weight = rng.normal(size=(8, 8, 1, 1)).astype(np.float32) / 3
        weights.append(numpy_helper.from_array(weight, f"w{layer}"))
        nodes.append(helper.make_node("Conv", [last, f"w{layer}"], [f"c{layer}"]))
        nodes.append(helper.make_node("Sigmoid", [f"c{layer}"], [f"s{layer}"]))
        last = f"t{layer}"
        nodes.append(helper.make_node("Transpose", [f"s{layer}"], [last], perm=[0, 1, 3, 2]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", last)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    path = folder / "chain.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path, {"x": rng.normal(size=shape).astype(np.float32)}


if __name__ == "__main__":
    main()
