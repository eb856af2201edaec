"""How many routes of a real model are engines that are there already, and what knowing it saves.

    python benchmarks/inert.py

``pytest --gptune-search fast`` over every knob that ONNX Runtime has for SqueezeNet's graph (as the package
onnx ships it for tests), passes of its optimiser included: as it is, and with a backend that does not tell
which engines are the same, twice each. Prints JSON: mean wall times, their ratio, knobs without effect.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from search_cost import Contest

from pytest_gptune.engines.machine import cpu_model, usable_cores

FORGETFUL = """
import uuid
from dataclasses import replace

from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend


class Forgetful(OnnxRuntimeBackend):
    name = "forgetful"

    def engine_digest(self, request):
        return None

    def _engine_digest(self, request):
        return uuid.uuid4().hex
"""


def search(folder: Path, backend: str) -> tuple[float, dict[str, Any]]:
    """Seconds of a search, all of it, and its report."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--gptune-search=fast"]
    command += [f"--gptune-backend={backend}", "--gptune-report=report.json"]
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    (test,) = json.loads((folder / "report.json").read_text())["tests"]
    return seconds, test


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        contest = Contest(folder)
        (folder / "forgetful_backend.py").write_text(FORGETFUL)
        info = folder / "forgetful_backend-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: forgetful-backend\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[gptune.backends]\nforgetful = forgetful_backend:Forgetful\n")
        # In turns: the machine's load moves both.
        runs = [search(folder, backend) for backend in ("onnxruntime", "forgetful") * 2]
    with_s, without_s = (sum(seconds for seconds, _ in runs[which::2]) / 2 for which in (0, 1))
    test, other = runs[0][1], runs[1][1]
    statuses = [route["status"] for route in test["routes"]]
    print(
        json.dumps(
            {
                "benchmark": "inert",
                "command": " ".join(["python", *sys.argv]),
                "machine": {"cpu": cpu_model(), "cores": usable_cores(), "system": platform.platform()},
                "versions": {"python": platform.python_version(), "onnxruntime": version("onnxruntime")},
                "model": Path(contest.model.path).name,
                "knobs": len(contest.space),
                "routes": len(statuses),
                "inert": statuses.count("inert"),
                "inert_without_digests": [r["status"] for r in other["routes"]].count("inert"),
                "seconds_with_digests": round(with_s, 1),
                "seconds_without": round(without_s, 1),
                "times_less": round(without_s / with_s, 2),
                "knobs_without_effect": test["inert_knobs"],
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
