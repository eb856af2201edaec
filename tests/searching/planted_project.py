"""A project over the planted backend."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from projects import MODEL, Project

TEST = f"""
    @pytest.mark.gptune(model="{MODEL}", epsilon=1e-2, backend="planted")
    def test_model(gptune):
        gptune.check()
"""


class PlantedProject(Project):
    """A project whose backend is planted; engines live in the process of the tests."""

    def plant(self, **plain: Any) -> None:
        """Write what the routes are like."""
        self.write("planted.json", json.dumps(plain))

    def builds(self) -> Counter[str]:
        """How often each route was built, the finals' builds included."""
        path = self.path / "builds.log"
        lines = path.read_text().splitlines() if path.exists() else []
        # "build MODEL ROUTE", the default's route being empty.
        return Counter(" ".join(line.split()[2:]) for line in lines if line.startswith("build "))

    def search(self, *arguments: str) -> tuple[pytest.RunResult, dict[str, Any]]:
        """Run pytest, and read the first test of the JSON report."""
        report = self.path / "report.json"
        report.unlink(missing_ok=True)
        result = self.run(f"--gptune-report={report}", *arguments)
        document = json.loads(report.read_text()) if report.exists() else {"tests": []}
        return result, document["tests"][0] if document["tests"] else {}


def statuses(test: dict[str, Any]) -> dict[str, str]:
    """Status by id of the routes of a test of the report."""
    return {route["id"]: route["status"] for route in test["routes"]}
