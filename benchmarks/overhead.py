"""What the plugin itself costs.

    python benchmarks/overhead.py

Prints JSON. ``plain_run_ms``: CPU time of a run of a project that does not use the plugin, with it less
without it, both with pytest-benchmark, in pairs. ``collection_s``: collecting 500 routes of one test, less
collecting one. ``route_ms``: a route of a test in process beyond build, runs and sampling. Medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pytest_gptune.engines.machine import cpu_model, usable_cores

MODEL = Path(__file__).resolve().parents[1] / "example_project" / "models" / "mlp.onnx"

# Counts what pytest-benchmark's and our own code take around the engine.
TIMED = """
import time
import pytest
from pytest_gptune.engines.in_process import InProcessBackend, _InProcessEngine

SPENT = {"engine": 0.0}


def timed(function):
    def wrapper(*arguments, **named):
        start = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            SPENT["engine"] += time.perf_counter() - start

    return wrapper


InProcessBackend.build = timed(InProcessBackend.build)
for name in ("run", "load", "sample", "close"):
    setattr(_InProcessEngine, name, timed(getattr(_InProcessEngine, name)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    engine, start = SPENT["engine"], time.perf_counter()
    result = yield
    beyond = time.perf_counter() - start - (SPENT["engine"] - engine)
    with open("beyond.txt", "a") as stream:
        stream.write(f"{beyond}\\n")
    return result
"""

TUNED = """
import pytest

@pytest.mark.gptune(model={model!r}, epsilon=1e-6, routes={routes!r})
def test_model(gptune):
    gptune.check()
"""


def pytest_seconds(folder: Path, *arguments: str) -> float:
    """Wall time of one pytest process."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
    )
    if done.returncode not in (0, 5):
        raise SystemExit(done.stdout + done.stderr)
    return time.perf_counter() - start


def cpu_seconds(folder: Path, *arguments: str) -> float:
    """CPU time of one pytest process: what a busy machine adds to wall time is not the plugin's."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    pytest_seconds(folder, *arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def plain_run(repeats: int) -> dict[str, Any]:
    """A project that does not use the plugin, with it and without it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "test_plain.py").write_text("def test_plain():\n    pass\n")
        without = ("-p", "no:gptune")
        pytest_seconds(folder)
        pytest_seconds(folder, *without)
        differences = []
        for number in range(repeats):
            # Order alternates: the process that comes second finds the machine as the first left it.
            if number % 2:
                bare, whole = cpu_seconds(folder, *without), cpu_seconds(folder)
            else:
                whole, bare = cpu_seconds(folder), cpu_seconds(folder, *without)
            differences.append(whole - bare)
    low, median, high = (_ms(part) for part in _quartiles(differences))
    return {"median": median, "quartiles": [low, high], "repeats": repeats}


def collection(routes: int, repeats: int) -> dict[str, Any]:
    """Collecting many routes of one test, less collecting one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n")
        # 5 x 5 x 5 x 2 x 2: the product of five knobs, 500 routes.
        expression = (
            "-ort:graph_optimization_level=[disable|basic|extended|layout|all] "
            "-ort:session.dynamic_block_base=[0|1|2|4|8] -ort:enable_mem_pattern=[on|off] "
            "-ort:enable_mem_reuse=[on|off] -ort:session.intra_op.allow_spinning=[1|0] "
            "-ort:session.graph_optimizations_loop_level=[0|1|2] -ort:enable_cpu_mem_arena=[on|off]"
        )
        (folder / "test_many.py").write_text(TUNED.format(model=str(MODEL), routes=expression))
        (folder / "test_one.py").write_text(
            TUNED.format(model=str(MODEL), routes="-ort:graph_optimization_level=all")
        )
        arguments = ("--collect-only", "--gptune-search=full")
        differences = []
        for _ in range(repeats):
            many = pytest_seconds(folder, "test_many.py", *arguments)
            differences.append(many - pytest_seconds(folder, "test_one.py", *arguments))
    count = 5 * 5 * 2 * 2 * 2 * 3 * 2
    return {
        "median_s": round(statistics.median(differences) * routes / count, 3),
        "routes": routes,
        "of": count,
    }


def route(repeats: int) -> dict[str, Any]:
    """What one route of a test takes beyond its engine, in process."""
    beyond: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\ngptune_final_builds = 1\n")
        (folder / "conftest.py").write_text(TIMED)
        routes = "-ort:intra_op_num_threads=1 -ort:session.dynamic_block_base=[0|1|2|4|8]"
        (folder / "test_model.py").write_text(TUNED.format(model=str(MODEL), routes=routes))
        arguments = ("--gptune-isolation=none", "--gptune-search=fast")
        pytest_seconds(folder, "--gptune-update-goldens")
        (folder / "beyond.txt").unlink()
        for _ in range(repeats):
            pytest_seconds(folder, *arguments)
            # The first route imports and reads what the others share.
            beyond += [float(line) for line in (folder / "beyond.txt").read_text().split()][1:]
            (folder / "beyond.txt").unlink()
    return {"median": _ms(beyond), "routes": len(beyond)}


def _quartiles(values: list[float]) -> tuple[list[float], ...]:
    return tuple([part] for part in statistics.quantiles(values, n=4))


def _ms(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=25, help="pairs of runs, default 25")
    given = parser.parse_args()
    result = {
        "benchmark": "overhead",
        "command": " ".join(["python", *sys.argv]),
        "machine": {"cpu": cpu_model(), "cores": usable_cores(), "system": platform.platform()},
        "python": platform.python_version(),
        "goals": {"plain_run_ms": 30, "collection_s": 1, "route_ms": 5},
        "plain_run_ms": plain_run(given.repeats),
        "collection_s": collection(500, max(3, given.repeats // 5)),
        "route_ms": route(max(2, given.repeats // 5)),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
