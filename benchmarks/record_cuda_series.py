"""Records latency series of engines on a GPU: several models, builds, with and without a CUDA graph.

    python benchmarks/record_cuda_series.py --output benchmarks/data/h200-onnxruntime.npz

The builds of one model, eager and with graph, are measured in turns, a block each, in random order. Kept is
every sample, in seconds: keys ``MODEL-eager`` and ``MODEL-graph``, float32[builds, blocks, samples], cut to
the shortest block. Beside them ``...-clock``, the clock of the multiprocessors during each block in MHz,
float32[builds, blocks], and ``...-enqueue``, the host's time to enqueue over the latency of each block.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from pytest_gptune.engines.base import BuildRequest, Engine, SampleBlock
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend

EXAMPLES = Path(__file__).resolve().parents[1] / "example_project" / "models"
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "mlp": {"features": (32, 48)},
    "convnet": {"image": (1, 3, 64, 64)},
    "encoder": {"tokens": (2, 64, 128)},
    "convolutions": {"image": (8, 64, 56, 56)},
}
ROUTES = {"eager": (), "graph": (("-ort:enable_cuda_graph", "1"),)}


def convolutions(path: Path) -> Path:
    """Five 3x3 convolutions of 64 channels with Relu: ``image`` [8, 64, 56, 56] -> ``y``, float32."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "image"
    for layer in range(5):
        kernel = (rng.standard_normal((64, 64, 3, 3)) * (2 / 576) ** 0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"w{layer}"))
        nodes.append(helper.make_node("Conv", [last, f"w{layer}"], [f"c{layer}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"]))
        last = f"r{layer}"
    shape = [8, 64, 56, 56]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [info("image", TensorProto.FLOAT, shape)],
        [info(last, TensorProto.FLOAT, shape)],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def record(
    backend: OnnxRuntimeBackend, name: str, path: Path, given: argparse.Namespace
) -> dict[str, np.ndarray]:
    """All series of one model."""
    model = inspect_model(path)
    rng = np.random.default_rng(0)
    inputs = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in SHAPES[name].items()}
    options = {"provider": given.provider}
    engines: dict[tuple[str, int], Engine] = {}
    for number in range(given.builds):
        for kind, route in ROUTES.items():
            if route and given.provider != "cuda":
                continue
            built = backend.build(BuildRequest(model.path, model.sha256, route, options=options))
            built.load(inputs)
            built.sample(0.2, 1_000_000)
            engines[kind, number] = built
    order = random.Random(0)
    blocks: dict[Any, list[SampleBlock]] = {key: [] for key in engines}
    for _ in range(given.blocks):
        for key in order.sample(list(engines), len(engines)):
            engines[key].sample(0.012, 1_000_000)
            blocks[key].append(engines[key].sample(given.block_s, 1_000_000))
    for engine in engines.values():
        engine.close()
    series: dict[str, np.ndarray] = {}
    for kind in {kind for kind, _ in engines}:
        of_kind = [blocks[kind, number] for number in range(given.builds)]
        shortest = min(len(block.latencies_s) for build in of_kind for block in build)
        rows = {
            "": [[block.latencies_s[:shortest] for block in build] for build in of_kind],
            "-clock": [[(block.sm_clock_hz or np.nan) / 1e6 for block in build] for build in of_kind],
            "-enqueue": [[block.enqueue_share or np.nan for block in build] for build in of_kind],
        }
        series |= {f"{name}-{kind}{end}": np.asarray(values, np.float32) for end, values in rows.items()}
    return series


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--builds", type=int, default=5, help="builds of each model and kind, default 5")
    parser.add_argument("--blocks", type=int, default=12, help="blocks of each build, default 12")
    parser.add_argument("--block-s", type=float, default=0.05, help="length of a block, default 0.05")
    parser.add_argument("--provider", default="cuda", help="cuda, or cpu to try the script")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    backend = OnnxRuntimeBackend()
    environment = backend.environment({"provider": given.provider})
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: EXAMPLES / f"{name}.onnx" for name in ("mlp", "convnet", "encoder")}
        paths["convolutions"] = convolutions(Path(folder) / "convolutions.onnx")
        series: dict[str, Any] = {}
        for name, path in paths.items():
            series |= record(backend, name, path, given)
    about = {
        "device_class": environment.device_class,
        "software": dict(environment.software),
        "device": dict(environment.device),
        "block_s": given.block_s,
        "shapes": SHAPES,
        "unit": "s",
    }
    given.output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(given.output, about=np.array(json.dumps(about)), **series)
    summary = {}
    for key, values in series.items():
        if not key.endswith(("-clock", "-enqueue")):
            of_builds = np.median(values, axis=(1, 2))
            of_blocks = np.median(values, axis=2)
            summary[key] = {
                "shape": list(values.shape),
                "median_us": round(float(np.median(of_builds)) * 1e6, 3),
                "between_builds_pct": round(float(np.std(of_builds) / np.mean(of_builds)) * 100, 3),
                "between_blocks_pct": round(
                    float(np.mean(np.std(of_blocks, axis=1) / np.mean(of_blocks, axis=1))) * 100, 3
                ),
                "within_blocks_pct": round(
                    float(np.mean(np.std(values, axis=2) / np.mean(values, axis=2))) * 100, 3
                ),
                "enqueue_share": round(float(np.nanmedian(series[f"{key}-enqueue"])), 3),
                "sm_mhz": [float(f(series[f"{key}-clock"])) for f in (np.nanmin, np.nanmax)],
            }
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
