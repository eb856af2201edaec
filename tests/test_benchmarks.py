"""The benchmarks run, in their smallest forms: what a change of the package breaks in them is seen at once.

Their figures are not looked at: those want a quiet machine and more builds. What takes minutes in any form,
or needs a GPU or downloaded packages, is type-checked only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"

SMALLEST = {
    "both_ways": ["docs/results/workloads-cpu.json", "--only", "squeezenet", "--builds", "2"],
    "earlier_session": ["--builds", "2"],
    "graph_id": ["squeezenet", "--provider", "cpu", "--processes", "1"],
    "host_pace": ["squeezenet", "--provider", "cpu", "--processes", "2", "--rounds", "2", "--blocks", "2"],
    "isolation": ["--pairs", "2", "--processes", "2"],
    "record_cuda_series": ["--provider", "cpu", "--builds", "2", "--blocks", "2", "--output", "{tmp}/s.npz"],
    "record_series": ["--seconds", "4", "--output", "{tmp}/s.npz"],
    "simulate_timing": ["--trials", "2"],
    "worker_starts": ["--engines", "2", "--rounds", "1"],
}


def run(name: str, tmp_path: Path, *arguments: str) -> str:
    given = [argument.format(tmp=tmp_path) for argument in arguments]
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("name", SMALLEST)
def test_its_smallest_form_prints_json(name: str, tmp_path: Path) -> None:
    assert json.loads(run(name, tmp_path, *SMALLEST[name]))


@pytest.mark.long
def test_a_workload_is_tuned_and_its_winner_verified(tmp_path: Path) -> None:
    output, projects = tmp_path / "out", tmp_path / "projects"
    kept = ["--projects", str(projects), "--only", "squeezenet"]
    run("workloads", tmp_path, *kept, "--goldens-only")
    assert list(projects.rglob("*.golden.npz"))
    run("workloads", tmp_path, *kept, "--budget", "3", "--output", str(output))
    (workload,) = json.loads(output.with_suffix(".json").read_text())["workloads"]
    assert workload["winner"]["status"] == "passed"
    assert workload["verified"]["speedup"] > 0
    assert "squeezenet" in output.with_suffix(".md").read_text()
    run("workloads", tmp_path, "--verify-again", f"{output}.json", *kept)
    again = json.loads(output.with_suffix(".json").read_text())
    assert again["workloads"][0]["verified"]["command"].endswith("squeezenet")
