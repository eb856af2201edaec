"""Fixtures of the tests of verdicts and gates: scratch repositories of a user's project."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from verdict_project import Project, SteadyProject, make_steady, make_tuned


@pytest.fixture(scope="session")
def steady_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed project on the backend ``steady``, with golden and baseline."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        return make_steady(tmp_path_factory.mktemp("steady"), monkeypatch)


@pytest.fixture
def steady(
    steady_template: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> SteadyProject:
    """A project on the backend ``steady``, whose engines take exactly as long as ``steady.json`` says."""
    shutil.copytree(steady_template, pytester.path, dirs_exist_ok=True)
    pytester.syspathinsert()
    # Processes that a run starts find the backend there.
    monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)
    return SteadyProject(pytester.path, pytester)


@pytest.fixture(scope="session")
def tuned_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed project on ONNX Runtime with golden and baseline, tuned once for all tests."""
    return make_tuned(tmp_path_factory.mktemp("tuned"))


@pytest.fixture
def tuned(tuned_template: Path, pytester: pytest.Pytester) -> Project:
    """A copy of the committed project for one test to change."""
    shutil.copytree(tuned_template, pytester.path, dirs_exist_ok=True)
    return Project(pytester.path, pytester)
