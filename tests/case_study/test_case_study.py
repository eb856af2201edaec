"""The case study of the documents: four places to quantise, sixteen routes, real engines.

In short form with narrow layers and without timing, then timed with two of the places; the long test has the
example as it is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from projects import Project

from pytest_gptune.cli import main

EXAMPLE = Path(__file__).parents[2] / "example_project" / "case_study" / "four_places.py"
NARROW = ("WIDTH = 1024", "WIDTH = 256")


class Study:
    """The example in a project of its own, with a golden made here."""

    def __init__(self, project: Project, capsys: pytest.CaptureFixture[str]) -> None:
        self._project = project
        self._capsys = capsys
        self._cache = project.path / "cache.jsonl"
        self.text = EXAMPLE.read_text(encoding="utf-8")

    def write(self, text: str) -> None:
        """Write the test and make its golden."""
        self._project.write("test_four_places.py", text)
        made = self._project.run("--gptune-update-goldens", "--gptune-gate=off", "--benchmark-disable")
        assert made.ret == 0, made.outlines

    def search(self, epsilon: float | None = None, *arguments: str) -> dict[str, Any]:
        """A full search, as its report has it."""
        report = self._project.path / "report.json"
        options = ["--gptune-search", "full", "--gptune-gate=off", f"--gptune-report={report}", *arguments]
        if epsilon is not None:
            options.append(f"--gptune-epsilon={epsilon!r}")
        self._project.run(*options)
        tests = json.loads(report.read_text(encoding="utf-8"))["tests"]
        assert len(tests) == 1
        test: dict[str, Any] = tests[0]
        return test

    def what_if(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Rungs, by the command line, and rows of the tuning cache of one search."""
        self.search(None, f"--gptune-cache={self._cache}")
        self._capsys.readouterr()
        assert main(["what-if", str(self._cache), "--json"]) == 0
        rungs = json.loads(self._capsys.readouterr().out)["tunings"][0]["ladder"]
        lines = self._cache.read_text(encoding="utf-8").splitlines()
        return rungs, [row for row in map(json.loads, lines) if row["kind"] == "row"]

    def plot(self, path: Path) -> None:
        assert main(["what-if", str(self._cache), f"--plot={path}"]) == 0


@pytest.fixture
def study(
    project: Project,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Study:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Study(project, capsys)


def losses(test: dict[str, Any]) -> dict[str, float]:
    return {route["id"]: route["loss"]["y"] for route in test["routes"]}


def passed(test: dict[str, Any]) -> set[str]:
    return {route["id"] for route in test["routes"] if route["status"] == "passed"}


def check_ladder(rungs: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    """From the exact route to all routes; at each step the fastest of those within is selected."""
    assert rungs[0]["epsilon"] == 0
    assert rungs[0]["eligible"] == 1
    assert "quant" not in rungs[0]["winner"]
    counts = [rung["eligible"] for rung in rungs]
    assert counts == sorted(set(counts))
    assert counts[-1] == len(rows)
    for rung in rungs:
        within = [row for row in rows if row["accuracy_loss"]["y"] <= rung["epsilon"]]
        assert len(within) == rung["eligible"]
        fastest = min(within, key=lambda row: row["latency_s"])
        assert rung["winner"] == fastest["record"]["key"]
        assert rung["latency_s"] == fastest["latency_s"]


def test_the_eligible_set_only_grows_with_epsilon(study: Study) -> None:
    """By searches of their own at each epsilon: what is eligible is decided by the plugin's gate."""
    untimed = study.text.replace(
        "(gptune):\n    gptune.check()",
        "(gptune_engine, gptune_golden):\n    gptune_golden.check(gptune_engine)",
    )
    assert untimed != study.text
    study.write(untimed.replace(*NARROW))
    exact = study.search(0.0)
    assert passed(exact) == {"default"}
    needed = losses(exact)
    assert needed["default"] == 0
    assert len(needed) == 16
    steps = sorted(needed.values())
    before = passed(exact)
    for step in (steps[4], steps[9], steps[15]):
        eligible = passed(study.search(step))
        assert eligible == {route for route, loss in needed.items() if loss <= step}
        assert before < eligible
        before = eligible
    assert len(before) == 16


def test_what_if_selects_the_fastest_eligible_route(study: Study) -> None:
    two = study.text.replace("for place in PLACES)", "for place in PLACES[:2])")
    assert two != study.text
    study.write(two.replace(*NARROW))
    rungs, rows = study.what_if()
    assert len(rows) == 4
    check_ladder(rungs, rows)


@pytest.mark.long
def test_the_fastest_of_all_is_not_accurate_enough(study: Study, tmp_path: Path) -> None:
    study.write(study.text)
    rungs, rows = study.what_if()
    assert len(rows) == 16
    check_ladder(rungs, rows)
    required = float(study.text.partition("REQUIRED = ")[2].split()[0])
    # Where weights are read from memory, the engine that reads a quarter of them is the fastest by far.
    assert rungs[-1]["winner"].count("=int8") == 4
    assert rungs[-1]["epsilon"] > required
    assert rungs[-1]["speedup"] > 1.5
    at_required = max((rung for rung in rungs if rung["epsilon"] <= required), key=lambda r: r["eligible"])
    assert 1 < at_required["eligible"] < 16
    assert at_required["latency_s"] > rungs[-1]["latency_s"]
    study.plot(tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_bytes().startswith(b"<?xml")
