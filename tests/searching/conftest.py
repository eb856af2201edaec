"""Projects over the planted backend."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from planted_project import TEST, PlantedProject
from projects import Project


@pytest.fixture
def planted(project: Project, monkeypatch: pytest.MonkeyPatch) -> PlantedProject:
    """A project with one test over the planted backend, and its golden."""
    made = PlantedProject(project._pytester, project._model, project.golden_content)
    shutil.copy(Path(__file__).parent / "planted_backend.py", made.path)
    made.write("planted_backend-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: planted-backend\n")
    made.write(
        "planted_backend-1.0.dist-info/entry_points.txt",
        "[gptune.backends]\nplanted = planted_backend:PlantedBackend\n",
    )
    monkeypatch.syspath_prepend(made.path)
    monkeypatch.setenv("PYTHONPATH", str(made.path), prepend=":")
    made.tests(TEST)
    return made
