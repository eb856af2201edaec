"""A project whose tests are tuned over the double of TensorRT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from projects import Project

DOUBLE = Path(__file__).parent / "double"


class TrtProject:
    """A project whose tests are tuned over the double, as a user would run them."""

    def __init__(self, project: Project, log: Path, cache: Path) -> None:
        self.project = project
        self.log = log
        self.cache = cache

    def run(self, *arguments: str) -> tuple[pytest.RunResult, dict[str, Any]]:
        """Run pytest in a process of its own, with engines in workers; the result and the JSON report."""
        report = self.project.path / "report.json"
        report.unlink(missing_ok=True)
        result = self.project.run_apart(
            "--gptune-backend=tensorrt", "--gptune-isolation=process", f"--gptune-report={report}", *arguments
        )
        return result, json.loads(report.read_text()) if report.exists() else {}

    def builds(self) -> list[dict[str, Any]]:
        """What the double's builder was asked to build, in order."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]
