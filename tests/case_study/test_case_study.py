"""The case study of the documents in short form: four places to quantise, sixteen routes, real engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from projects import Project

EXAMPLE = Path(__file__).parents[2] / "example_project" / "case_study" / "four_places.py"
SHORT = "WIDTH = 256"
FULL = ("--gptune-search", "full", "--gptune-gate=off")


@pytest.fixture
def study(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The example with narrower layers, and its golden."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = EXAMPLE.read_text(encoding="utf-8")
    assert "WIDTH = 1024" in text
    project.write("test_four_places.py", text.replace("WIDTH = 1024", SHORT))
    made = project.run("--gptune-update-goldens", "--gptune-gate=off")
    assert made.ret == 0, made.outlines
    return project


def run(study: Project, epsilon: float, *arguments: str) -> dict[str, Any]:
    """One search, as its JSON report has it."""
    report = study.path / "report.json"
    study.run(*FULL, "--gptune-epsilon", repr(epsilon), f"--gptune-report={report}", *arguments)
    tests = json.loads(report.read_text())["tests"]
    assert len(tests) == 1
    test: dict[str, Any] = tests[0]
    assert len(test["routes"]) == 16
    return test
