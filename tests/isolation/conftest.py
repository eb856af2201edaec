"""A project whose engines misbehave, run as a user would; and what must be left of it afterwards: nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from models import mlp

TEST = """
import pytest

@pytest.mark.gptune(model="model.onnx", epsilon=1e-6, backend="faulty", routes="{routes}")
def test_model(gptune):
    gptune.check()
"""


@dataclass
class Outcome:
    """How a run of the project ended."""

    code: int
    output: str
    report: dict[str, Any]
    rows: list[dict[str, Any]]
    left: list[str]

    @property
    def test(self) -> dict[str, Any]:
        return self.report["tests"][0]

    def statuses(self) -> dict[str, str]:
        return {route["id"]: route["status"] for route in self.test["routes"]}

    def route(self, route_id: str) -> dict[str, Any]:
        return next(route for route in self.test["routes"] if route["id"] == route_id)


class FaultyProject:
    """A folder with one tuned test over the backend that misbehaves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        shutil.copy(Path(__file__).parent / "faulty_backend.py", folder / "faulty_backend.py")
        info = folder / "faulty_backend-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-backend\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[gptune.backends]\nfaulty = faulty_backend:FaultyBackend\n")
        mlp(folder / "model.onnx", layers=1, width=8, batch=2)
        (folder / "pytest.ini").write_text("[pytest]\n")

    def run(self, routes: str, *arguments: str, timeout_s: float = 60.0, **environment: str) -> Outcome:
        """Tune, and look at what is left."""
        (self.folder / "test_it.py").write_text(TEST.format(routes=routes))
        run_id = uuid.uuid4().hex
        tmp = self.scratch / run_id
        tmp.mkdir()
        report, cache = self.folder / f"{run_id}.json", self.folder / f"{run_id}.jsonl"
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "no:cacheprovider",
                "-q",
                "--gptune-update-goldens",
                f"--gptune-report={report}",
                f"--gptune-cache={cache}",
                f"--gptune-route-timeout={timeout_s}",
                "-o",
                "gptune_final_builds=1",
                *(["--gptune-search=fast"] if not any("--gptune-search" in a for a in arguments) else []),
                *arguments,
            ],
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": str(self.folder),
                "TMPDIR": str(tmp),
                "XDG_CACHE_HOME": str(self.scratch / "cache"),
                "FAULTY_LOG": str(self.folder / f"{run_id}.log"),
                "GPTUNE_TEST_RUN": run_id,
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        rows = [json.loads(line) for line in cache.read_text().splitlines()] if cache.exists() else []
        return Outcome(
            done.returncode,
            done.stdout + done.stderr,
            json.loads(report.read_text()) if report.exists() else {},
            [row for row in rows if row["kind"] == "row"],
            [*_orphans(run_id), *self._files_left(tmp)],
        )

    def _files_left(self, tmp: Path) -> list[str]:
        scratch = self.scratch / "cache" / "pytest-gptune" / "scratch"
        # ".ses" is written by ONNX Runtime itself when it is imported; pytest prunes its own base folder.
        found = [
            path for path in tmp.iterdir() if path.name != ".ses" and not path.name.startswith("pytest-of-")
        ]
        found += scratch.iterdir() if scratch.exists() else []
        found += self.folder.rglob("*.part")
        return [str(path) for path in found]


def _orphans(run_id: str) -> list[str]:
    """Processes of the run that outlived it; a killed one may take a moment to go."""
    deadline = time.monotonic() + 5
    while True:
        left = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("GPTUNE_TEST_RUN") == run_id and process.status() != "zombie":
                    left.append(" ".join(process.cmdline()))
            except psutil.Error:
                continue
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


@pytest.fixture
def faulty_project(tmp_path: Path) -> FaultyProject:
    return FaultyProject(tmp_path)
