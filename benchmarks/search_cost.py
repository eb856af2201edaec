"""What a search costs and how good its choice is: our ``fast`` beside the loop of the reference tuner.

    python benchmarks/search_cost.py --quick                       one run of each, about ten minutes
    python benchmarks/search_cost.py --record search-cost.jsonl    20 of ours, 5 of the loop; can be stopped

One real model (SqueezeNet's graph, as the package onnx ships it for tests) and every knob that ONNX Runtime
has for it, one at a time: 60 routes or more. Ours is ``pytest --gptune-search fast`` in a process of its own,
all of it: collection, builds, accuracy, timing, finals, verdict. The reference loop is re-enacted after
trtexec's: a process per route that builds, compares the outputs with the golden, warms up for 200 ms and runs
for 3 s; its mean over all samples ranks, the smallest wins.

Regret is how much slower the route that was chosen truly is than the fastest route: the ratio of the two by a
long measurement at the end, in which all engines that differ take turns, many builds of each. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from pytest_gptune.engines.base import BuildRequest, RouteFailureError
from pytest_gptune.engines.machine import cpu_model, usable_cores
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend
from pytest_gptune.engines.worker import WorkerBackend
from pytest_gptune.plugin.run import route_pairs
from pytest_gptune.routes import KnobSpace, RouteExpression
from pytest_gptune.timing.statistics import paired_ratio

EPSILON = 1e-4

TEST = """
import numpy as np
import pytest

def inputs():
    return {{{name!r}: np.random.default_rng(0).random({shape!r}, np.float32)}}

@pytest.mark.gptune(model={model!r}, epsilon={epsilon}, routes={routes!r}, inputs=inputs)
def test_model(gptune):
    gptune.check()
"""

# One route of the reference loop, in a process of its own: mean of all samples in seconds, if it is accurate.
ONE_ROUTE = """
import json, sys, time
import numpy as np
from pytest_gptune.engines.base import BuildRequest
from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend

model, sha256, route, data, epsilon = sys.argv[1:]
pairs = tuple(tuple(pair.split("=", 1)) for pair in route.split())
arrays = np.load(data, allow_pickle=False)
inputs = {k[3:]: arrays[k] for k in arrays.files if k.startswith("in/")}
golden = {k[4:]: arrays[k] for k in arrays.files if k.startswith("out/")}
engine = OnnxRuntimeBackend().build(BuildRequest(model, sha256, pairs))
outputs = engine.run(inputs)
loss = max(float(np.abs(outputs[name] - golden[name]).max()) for name in golden)
if loss > float(epsilon):
    print(json.dumps({"loss": loss}))
else:
    engine.load(inputs)
    samples = list(engine.sample(0.2, 10_000_000).latencies_s)
    samples += engine.sample(3.0, 10_000_000).latencies_s
    print(json.dumps({"loss": loss, "mean": sum(samples) / len(samples)}))
"""


class Contest:
    """The model, its routes, and both ways to choose among them."""

    def __init__(self, folder: Path) -> None:
        import onnx

        data = Path(onnx.__file__).parent / "backend/test/data/light"
        self.model = inspect_model(next(data.rglob("*squeezenet*.onnx")))
        self.folder = folder
        backend = OnnxRuntimeBackend()
        self.space = KnobSpace.from_json(backend.knob_space(self.model, {}))
        # Every bounded knob, those on request included: passes of the optimiser.
        terms = [f"{knob.name}=[{'|'.join(knob.values)}]" for knob in self.space if knob.values]
        self.expression = RouteExpression.parse(" ".join(terms), self.space)
        self.routes = [str(route.minimal(self.space)) for route in self.expression.fast()]
        (item,) = self.model.inputs
        shape = tuple(dim if isinstance(dim, int) else 1 for dim in item.shape or ())
        test = TEST.format(
            name=item.name, shape=shape, model=self.model.path, epsilon=EPSILON, routes=str(self.expression)
        )
        (folder / "test_model.py").write_text(test)
        self._pytest("--gptune-update-goldens", "--gptune-search=replay")
        inputs = {item.name: np.random.default_rng(0).random(shape, np.float32)}
        engine = backend.build(self._request("-ort:graph_optimization_level=disable"))
        arrays: dict[str, Any] = {f"in/{name}": value for name, value in inputs.items()}
        arrays |= {f"out/{name}": value for name, value in engine.run(inputs).items()}
        self.data = folder / "data.npz"
        np.savez(self.data, **arrays)
        self.inputs = inputs

    def _request(self, route: str) -> BuildRequest:
        return BuildRequest(self.model.path, self.model.sha256, route_pairs(route))

    def _pytest(self, *options: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)
        return done.stdout

    def ours(self) -> dict[str, Any]:
        """One search of ours: its winner's key, and how it went."""
        start = time.perf_counter()
        self._pytest("--gptune-search=fast", "--gptune-report=report.json")
        seconds = time.perf_counter() - start
        (test,) = json.loads((self.folder / "report.json").read_text())["tests"]
        routes = {route["id"]: route for route in test["routes"]}
        statuses: dict[str, int] = {}
        for route in routes.values():
            statuses[route["status"]] = statuses.get(route["status"], 0) + 1
        winner = routes[test["winner"]]["route"]
        key = str(RouteExpression.parse(winner, self.space).default.minimal(self.space))
        return {"by": "ours", "winner": key, "seconds": round(seconds, 2), "statuses": statuses}

    def reference(self) -> dict[str, Any]:
        """One pass of the reference loop."""
        start = time.perf_counter()
        best, winner, failed = math.inf, "", 0
        for route in self.routes:
            command = [sys.executable, "-c", ONE_ROUTE, self.model.path, self.model.sha256, route]
            command += [str(self.data), str(EPSILON)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            found = json.loads(done.stdout) if done.returncode == 0 else {}
            if "mean" not in found:
                failed += 1
            elif found["mean"] < best:
                best, winner = found["mean"], route
        seconds = round(time.perf_counter() - start, 2)
        return {"by": "reference", "winner": winner, "seconds": seconds, "not_eligible": failed}

    def truth(self, builds: int) -> dict[str, float]:
        """Latency of each route over that of the default; routes of one engine share one measurement."""
        backend = WorkerBackend("onnxruntime", route_timeout_s=600)
        rng = random.Random(0)
        try:
            digests: dict[str, str] = {}
            for route in self.routes:
                try:
                    digests[route] = str(backend.engine_digest(self._request(route)))
                except RouteFailureError:
                    continue
            chosen = {digest: route for route, digest in reversed(list(digests.items()))}
            latencies: dict[str, list[float]] = {digest: [] for digest in chosen}
            for number in range(builds):
                order = list(chosen)
                rng.shuffle(order)
                for digest in order:
                    latencies[digest].append(self._quietest(backend, chosen[digest]))
                print(f"truth: {number + 1}/{builds}", file=sys.stderr)
        finally:
            backend.close()
        default = latencies[digests[""]]
        ratios = {digest: paired_ratio(values, default).value for digest, values in latencies.items()}
        return {route: round(ratios[digest], 4) for route, digest in digests.items()}

    def _quietest(self, backend: WorkerBackend, route: str) -> float:
        engine = backend.build(self._request(route))
        try:
            engine.load(self.inputs)
            engine.sample(0.05, 1_000_000)
            blocks = [engine.sample(0.06, 1_000_000).latencies_s for _ in range(4)]
        finally:
            engine.close()
        return min(float(np.percentile(block, 25)) for block in blocks)


def summary(records: list[dict[str, Any]], truth: dict[str, float]) -> dict[str, Any]:
    """Seconds and regret of one of the two."""
    best = min(truth.values())
    regrets = sorted(truth.get(record["winner"], math.inf) / best - 1 for record in records)
    return {
        "runs": len(records),
        "seconds_median": round(statistics.median(record["seconds"] for record in records), 1),
        "regret_percent": [round(100 * regret, 2) for regret in regrets],
        "share_within_1_percent": round(sum(regret <= 0.01 for regret in regrets) / len(regrets), 3),
        "winners": sorted({record["winner"] or "default" for record in records}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one run of each")
    parser.add_argument("--ours", type=int, default=20)
    parser.add_argument("--reference", type=int, default=5)
    parser.add_argument("--builds", type=int, default=15, help="of each engine for the truth")
    parser.add_argument("--record", type=Path, help="JSON lines, one a run; what is in it is not repeated")
    given = parser.parse_args()
    wanted = {"ours": 1 if given.quick else given.ours, "reference": 1 if given.quick else given.reference}
    records: list[dict[str, Any]] = []
    if given.record and given.record.exists():
        records = [json.loads(line) for line in given.record.read_text().splitlines()]
    with tempfile.TemporaryDirectory() as name:
        contest = Contest(Path(name))
        print(f"{len(contest.routes)} routes of {len(contest.space)} knobs", file=sys.stderr)
        # Spread over time: ours between passes of the loop.
        todo = [by for by, count in wanted.items() for _ in range(count)]
        for record in records:
            if record["by"] in todo:
                todo.remove(record["by"])
        random.Random(0).shuffle(todo)
        for by in todo:
            records.append(contest.ours() if by == "ours" else contest.reference())
            print(records[-1], file=sys.stderr)
            if given.record:
                with given.record.open("a") as stream:
                    stream.write(json.dumps(records[-1]) + "\n")
        truth = contest.truth(4 if given.quick else given.builds)
    of = {by: summary([r for r in records if r["by"] == by], truth) for by in wanted}
    result = {
        "benchmark": "search_cost",
        "command": " ".join(["python", *sys.argv]),
        "machine": {"cpu": cpu_model(), "cores": usable_cores(), "system": platform.platform()},
        "versions": {"python": platform.python_version(), "onnxruntime": version("onnxruntime")},
        "model": Path(contest.model.path).name,
        "routes": len(contest.routes),
        "engines_that_differ": len(set(truth.values())),
        "statuses_of_ours": next(r["statuses"] for r in records if r["by"] == "ours"),
        "by": of,
        "times_less": round(of["reference"]["seconds_median"] / of["ours"]["seconds_median"], 2),
        "truth_over_default": dict(sorted(truth.items(), key=lambda pair: pair[1])),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
