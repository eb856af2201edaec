"""Scratch projects in git repositories, run as a user runs them, and what came out of a run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnxruntime  # noqa: F401
import pytest

from pytest_gptune.plugin import controller, golden_making, item_hooks, printing  # noqa: F401

LAYERS, WIDTH, BATCH = 9, 192, 64
"""Of the model whose latency matters: about 0.4 ms on one core; one more layer is 11 % more work."""

TUNED_TEST = """
import pytest

@pytest.mark.gptune(
    model="models/net.onnx",
    epsilon=1e-4,
    routes="-ort:intra_op_num_threads=1 -ort:session.disable_prepacking=[0|1]",
)
def test_net(gptune):
    gptune.check()
"""
"""The default route is much faster than the other one, so that the winner is never in doubt."""

STEADY_TEST = """
import pytest

@pytest.mark.gptune(
    model="models/net.onnx", epsilon=1e-3, backend="steady", routes="-first=[off|on] -second=[off|on]"
)
def test_net(gptune):
    gptune.check()
"""

_IGNORED = "report.json\njunit.xml\n__pycache__\n.pytest_cache\n"

_WRITE = ("--gptune-search=full", "--gptune-update-goldens", "--gptune-update-baseline")

_DISTRIBUTION = {
    "METADATA": "Metadata-Version: 2.1\nName: steady-backend\nVersion: 1.0\n",
    "entry_points.txt": "[gptune.backends]\nsteady = steady_backend:SteadyBackend\n",
}


def heed_ctrl_c() -> None:
    """For a process that is to be interrupted: background jobs of a shell ignore it, and so would it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class Run:
    """One run of pytest.

    Attributes:
        out: everything that was printed.
        report: the JSON report, None where none was written.
        junit: the root of the JUnit file, None where there is none.
    """

    code: int
    out: str
    outcomes: dict[str, int] = field(default_factory=dict)
    report: dict[str, Any] | None = None
    junit: ET.Element | None = None

    @property
    def text(self) -> str:
        """Everything that was printed, as one line: where the terminal's width folds it does not matter."""
        return " ".join(self.out.split())

    @property
    def tests(self) -> dict[str, dict[str, Any]]:
        """What the JSON report has of each tuning, by the name of its test."""
        assert self.report is not None, self.out
        return {test["nodeid"].split("::")[-1]: test for test in self.report["tests"]}

    @property
    def test(self) -> dict[str, Any]:
        """What the JSON report has of the only tuning."""
        (test,) = self.tests.values()
        return test

    @property
    def verdict(self) -> dict[str, Any]:
        """The verdict of the only tuning."""
        return self.test["verdict"]

    @property
    def said(self) -> tuple[str, str]:
        """Outcome and reason of the only verdict."""
        return self.verdict["outcome"], self.verdict["reason"]

    @property
    def statuses(self) -> dict[str, str]:
        """Status by id of each route of the only tuning."""
        return {route["id"]: route["status"] for route in self.test["routes"]}

    def case(self, name: str = "gptune-gate") -> ET.Element:
        """The only JUnit test case of this name."""
        assert self.junit is not None
        (case,) = [element for element in self.junit.iter("testcase") if element.get("name") == name]
        return case


@dataclass
class Project:
    """A user's project in a git repository."""

    path: Path
    pytester: pytest.Pytester

    def run(self, *arguments: str, report: bool = True, junit: bool = True) -> Run:
        """Run pytest in this process, as on the command line."""
        json_path, xml_path = self._fresh("report.json"), self._fresh("junit.xml")
        given = ["-p", "no:hypothesispytest", *arguments]
        given += [f"--gptune-report={json_path}"] if report else []
        given += [f"--junitxml={xml_path}"] if junit else []
        result = self.pytester.runpytest_inprocess(*given)
        out = "\n".join([*result.outlines, *result.errlines])
        try:
            outcomes = result.parseoutcomes()
        except ValueError:
            outcomes = {}
        return self._run(int(result.ret), out, outcomes)

    def command(self, *arguments: str) -> list[str]:
        """The command line of a run in a process of its own."""
        reports = [f"--gptune-report={self._fresh('report.json')}", f"--junitxml={self._fresh('junit.xml')}"]
        return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *reports, *arguments]

    def run_outside(self, *arguments: str) -> Run:
        """Run pytest in a process of its own."""
        done = subprocess.run(
            self.command(*arguments), cwd=self.path, capture_output=True, text=True, check=False, timeout=600
        )
        return self._run(done.returncode, done.stdout + done.stderr, {})

    def finished(self, code: int, out: str) -> Run:
        """What a process started with ``command`` left behind."""
        return self._run(code, out, {})

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        """Run git with a fixed author."""
        return git(cwd or self.path, *arguments)

    def commit(self, message: str = "change") -> str:
        """Commit everything and return the commit's id."""
        return commit(self.path, message)

    @property
    def model(self) -> Path:
        """The model of the only test."""
        return self.path / "models" / "net.onnx"

    def record(self, kind: str, owner: str = "test_net", stem: str = "test_net") -> Path:
        """The golden or baseline of a test."""
        return self.path / "tests" / "__gptune__" / stem / f"{owner}.{kind}"

    @property
    def baseline(self) -> dict[str, Any]:
        """The baseline of the only test."""
        plain = json.loads(self.record("baseline.json").read_text())
        assert isinstance(plain, dict)
        return plain

    def edit_baseline(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the only entry of the baseline in place."""
        plain = self.baseline
        change(plain["entries"][0])
        self.write_baseline(plain)

    def write_baseline(self, plain: Any) -> None:
        """Replace the baseline."""
        self.record("baseline.json").write_text(json.dumps(plain))

    def move_golden(self, by: float) -> None:
        """Add ``by`` to every reference output."""
        path = self.record("golden.npz")
        with np.load(path) as archive:
            arrays = {name: archive[name] for name in archive.files}
        moved = [name for name in arrays if ".o" in name]  # as c0.o0: the first output of the first case
        assert moved, sorted(arrays)
        arrays.update({name: arrays[name] + np.float32(by) for name in moved})
        np.savez(path, **arrays)

    def ini(self, **values: object) -> None:
        """Set ini keys beside those that are there."""
        path = self.path / "pytest.ini"
        path.write_text(path.read_text() + "".join(f"{key} = {value}\n" for key, value in values.items()))

    def _fresh(self, name: str) -> Path:
        path = self.path / name
        path.unlink(missing_ok=True)
        return path

    def _run(self, code: int, out: str, outcomes: dict[str, int]) -> Run:
        report, junit = self.path / "report.json", self.path / "junit.xml"
        return Run(
            code,
            out,
            outcomes,
            json.loads(report.read_text()) if report.exists() else None,
            ET.parse(junit).getroot() if junit.exists() else None,
        )


@dataclass
class SteadyProject(Project):
    """A project on the backend ``steady``."""

    def set(self, **values: Any) -> None:
        """Change ``steady.json``: see ``steady_backend``."""
        path = self.path / "steady.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    def write_baseline_entry(self, *arguments: str) -> None:
        """Make golden and baseline, and commit everything."""
        run = self.run(*_WRITE, *arguments)
        assert run.code == 0, run.out
        assert all(test["verdict"]["reason"] == "written" for test in run.tests.values()), run.out
        self.commit("baseline")


def make_steady(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed project on the backend ``steady``, with golden and baseline of the full search."""
    models.mlp(folder / "models" / "net.onnx", layers=LAYERS, width=8, batch=2)
    _write(folder / "tests" / "test_net.py", STEADY_TEST)
    _write(folder / "pytest.ini", "[pytest]\ngptune_final_builds = 2\ngptune_isolation = none\n")
    _write(folder / ".gitignore", _IGNORED)
    _write(folder / "steady.json", "{}")
    for name, text in _DISTRIBUTION.items():
        _write(folder / "steady_backend-1.0.dist-info" / name, text)
    shutil.copy(Path(__file__).with_name("steady_backend.py"), folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    git(folder, "init", "--quiet", "--template=")
    _run_outside(folder, *_WRITE)
    commit(folder, "model, golden and baseline")
    return folder


def make_tuned(folder: Path) -> Path:
    """A committed project on ONNX Runtime, with golden and baseline, tuned in a process of its own."""
    models.mlp(folder / "models" / "net.onnx", LAYERS, WIDTH, BATCH)
    _write(folder / "tests" / "test_net.py", TUNED_TEST)
    _write(folder / "pytest.ini", "[pytest]\ngptune_final_builds = 2\n")
    _write(folder / ".gitignore", _IGNORED)
    git(folder, "init", "--quiet", "--template=")
    _run_outside(folder, *_WRITE)
    commit(folder, "model, golden and baseline")
    return folder


def _run_outside(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, encoding="utf-8", check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def slow_down(project: Project, extra: int = 1) -> None:
    """Give the model more layers, each 11 % more real work; the outputs stay as they are."""
    models.slowed(project.model, LAYERS, WIDTH, BATCH, extra=extra)


def git(folder: Path, *arguments: str) -> str:
    """Run git with a fixed author, undisturbed by the user's configuration."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *author, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(folder: Path, message: str) -> str:
    """Commit everything and return the commit's id."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(folder, "rev-parse", "HEAD")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def slow(project: SteadyProject) -> None:
    """One more layer: 11 % more nodes, each of ten microseconds; the outputs stay as they are."""
    models.slowed(project.model, LAYERS, width=8, batch=2)


def other_weights(project: SteadyProject, layers: int = LAYERS) -> None:
    models.mlp(project.model, layers, width=8, batch=2, seed=1)


def second(project: SteadyProject) -> None:
    """A second test with a model, golden and baseline of its own."""
    models.mlp(project.path / "models" / "other.onnx", layers=5, width=8, batch=2, seed=3)
    text = STEADY_TEST.replace("models/net", "models/other").replace("test_net", "test_other")
    (project.path / "tests" / "test_other.py").write_text(text)
    project.write_baseline_entry()
