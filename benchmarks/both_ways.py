"""Default and winner of a workload by the plugin's engines and by the independent script's, in turns.

    python benchmarks/both_ways.py docs/results/workloads-h200.json --only squeezenet
    python benchmarks/both_ways.py docs/results/workloads-h200.json --default-only --builds 12
    python benchmarks/both_ways.py docs/results/workloads-cpu.json --only squeezenet --builds 8

``workloads.py`` runs the script after the finals. What changes on the machine in between, as the pace of a
host that others use, is in the difference of the two. Here the winners of an earlier output of it are built
again, and every build of either way is interleaved with the others block by block, by the code of the
finals: on a device each in a process of its own, on a CPU the plugin's in one worker and the script's in this
process, which takes longer blocks there. Writes JSON: the latency of each build, the speedup either way, and
the ratio of the two ways with its 95 % interval. A workload that fails has its reason in ``error``.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("winners", type=Path, help="an output of workloads.py")
    parser.add_argument("--only", action="append", metavar="NAME", help="this workload; may repeat")
    parser.add_argument("--builds", type=int, default=5, help="of each engine either way, default 5")
    parser.add_argument(
        "--default-only", action="store_true", help="not the winner, where that is known to agree"
    )
    parser.add_argument("--projects", type=Path, help="of workloads.py: a golden there calibrates int8")
    parser.add_argument("--packages", type=Path, default=HERE.parent / "build" / "workloads")
    parser.add_argument("--output", type=Path, help="a JSON file, else printed")
    given = parser.parse_args()
    sys.path[:0] = [str(HERE), str(given.packages)]
    import onnxruntime
    from device_name import gpu_of_this_machine

    from pytest_gptune.engines.machine import cpu_model, usable_cores
    from pytest_gptune.errors import GptuneError

    document = json.loads(given.winners.read_text())
    found: dict[str, Any] = {}
    result = {
        "benchmark": "both_ways",
        "command": " ".join(["python", "benchmarks/both_ways.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"device": cpu_model(), "cores": usable_cores(), **gpu_of_this_machine()},
        "versions": {"onnxruntime": onnxruntime.__version__, "Python": platform.python_version()},
        "workloads": found,
    }
    for item in document["workloads"]:
        if item["name"] in (given.only or [item["name"]]) and item.get("winner"):
            try:
                found[item["name"]] = both_ways(item, document, given)
            except (GptuneError, EOFError, OSError) as error:  # the script's process ended, for one
                found[item["name"]] = {"error": f"{type(error).__name__}: {error}"}
            said = found[item["name"]].get("plugin_over_script", found[item["name"]])
            print(item["name"], json.dumps(said), file=sys.stderr)
            if given.output:
                given.output.parent.mkdir(parents=True, exist_ok=True)
                given.output.write_text(json.dumps(result, indent=1) + "\n")
    if not given.output:
        print(json.dumps(result, indent=1))


def both_ways(
    item: Mapping[str, Any], document: Mapping[str, Any], given: argparse.Namespace
) -> dict[str, Any]:
    """Latencies of default and winner either way, measured in turns."""
    from worker_backends import AProcessEach
    from workload_models import workload
    from workload_winners import script_routes, tuned_request

    from pytest_gptune.engines.base import BuildRequest
    from pytest_gptune.engines.worker import WorkerBackend
    from pytest_gptune.timing.finals import Contestant, FinalsPlan, FinalsResult, run_finals

    described, provider, threads = workload(item["name"]), document["provider"], document["threads"]
    options = described.options(document.get("groups", "--groups" in document["command"].split()))
    if provider != "cpu":
        options |= {"provider": provider, "allow_cpu_nodes": True}
    cases, golden = described.cases(), ""
    if given.projects:
        golden = next(map(str, (given.projects.resolve() / item["name"]).rglob("*.golden.npz")), "")
    tuned = tuned_request(described, item["winner"]["route"], options, golden)
    default = tuned_request(described, item["default"]["route"], options, golden)
    if item["sha256"] != default.model_sha256:
        return {"error": "the model is not the one that was tuned"}
    requests: dict[str, BuildRequest] = {"default": default, "winner": tuned}
    routes = dict(zip(requests, script_routes(item["default"]["route"], tuned, threads), strict=True))
    if given.default_only:
        del requests["winner"]
    kind = WorkerBackend if provider == "cpu" else AProcessEach
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(kind("onnxruntime", route_timeout_s=300)) as backend,
    ):
        inputs = Path(folder) / "inputs.npz"
        named: dict[str, Any] = cases[0]
        np.savez(inputs, **named)

        fresh = {key: replace(request, fresh=True) for key, request in requests.items()}

        def by_plugin(key: str) -> Callable[[], Any]:
            def build() -> Any:
                engine = backend.build(fresh[key])
                for case in cases:
                    engine.run(case)  # as the finals, which check what they measure
                engine.load(cases[0])
                return engine

            return build

        scripts = _scripts(requests, routes, inputs, provider, given.builds)
        contestants = [Contestant(f"plugin {key}", by_plugin(key)) for key in requests]
        contestants += [Contestant(f"script {key}", scripts[key]) for key in requests]
        start = time.perf_counter()
        result, plan, rng = FinalsResult(), FinalsPlan(), random.Random()
        for _ in range(given.builds):
            with backend.expecting(list(fresh.values())):  # side by side, as in the finals
                run_finals(contestants, plan, rng, builds=1, result=result)
    if result.failures:
        return {"error": "; ".join(f"{key}: {why}" for key, why in result.failures.items())}
    return {**_figures(result), "seconds": round(time.perf_counter() - start, 1)}


def _scripts(
    requests: Mapping[str, Any], routes: Mapping[str, str], inputs: Path, provider: str, builds: int
) -> dict[str, Callable[[], Any]]:
    """What builds the script's engines anew, on a device each in a new process; those are started here."""
    import verify_winner

    given = SimpleNamespace(inputs=str(inputs), provider=provider)
    kind = verify_winner.Engine if provider == "cpu" else verify_winner.InItsProcess
    engines: dict[str, Any] = {key: kind(requests[key].model, routes[key], given) for key in requests}
    if provider != "cpu":
        for number in range(builds):  # each goes first in turn
            for key in reversed(engines) if number % 2 else engines:
                engines[key].start()
        for engine in engines.values():
            engine.ready()

    def building(key: str) -> Callable[[], Any]:
        def build() -> Any:
            if provider != "cpu" and not engines[key].waiting:  # after a round that started anew
                engines[key].start()
                engines[key].ready()
            engines[key].ask("build")
            return _ScriptsEngine(engines[key], "host_wall" if provider == "cpu" else "device_queued")

        return build

    return {key: building(key) for key in requests}


class _ScriptsEngine:
    """One of the script's, as the finals take an engine."""

    def __init__(self, engine: Any, latency_kind: str) -> None:
        from pytest_gptune.timing.finals import FinalsPlan

        self._engine, self._head_s = engine, FinalsPlan().head_s
        self._last: tuple[float, ...] = ()
        self.info = SimpleNamespace(latency_kind=latency_kind)

    def sample(self, seconds: float, at_most: int, batch: int = 1) -> Any:
        """A block of the script's, whatever is asked for; none for a head, since each has one of its own."""
        from pytest_gptune.engines.base import SampleBlock

        if seconds != self._head_s or not self._last:
            self._last = tuple(self._engine.ask("time"))
        return SampleBlock(self._last)

    def close(self) -> None:
        """End its process, where it has one."""
        if getattr(self._engine, "process", None) is not None:
            self._engine.process.kill()
            self._engine.process.join()


def _figures(result: Any) -> dict[str, Any]:
    from pytest_gptune.timing.statistics import paired_ratio

    latencies = {key: result.latencies(key) for key in result.blocks}
    measured = [key for key in ("default", "winner") if f"plugin {key}" in latencies]
    found: dict[str, Any] = {
        "blocks_of_a_build": len(next(iter(result.blocks.values()))[0]),
        "latencies_ms": {key: [round(value * 1e3, 5) for value in each] for key, each in latencies.items()},
        "warnings": {f"plugin {key}": list(result.warnings(f"plugin {key}")) for key in measured},
    }

    def ratio(first: list[float], second: list[float]) -> dict[str, Any]:
        found = paired_ratio(first, second)
        return {"value": round(found.value, 4), "interval": [round(found.low, 4), round(found.high, 4)]}

    found["plugin_over_script"] = {
        key: ratio(latencies[f"plugin {key}"], latencies[f"script {key}"]) for key in measured
    }
    if "winner" in measured:
        ways = ("plugin", "script")
        speedups = {
            way: [a / b for a, b in zip(latencies[f"{way} default"], latencies[f"{way} winner"], strict=True)]
            for way in ways
        }
        found["speedup"] = {
            way: ratio(latencies[f"{way} default"], latencies[f"{way} winner"]) for way in ways
        }
        found["plugin_over_script"]["speedup"] = ratio(speedups["plugin"], speedups["script"])
    return found


if __name__ == "__main__":
    main()
