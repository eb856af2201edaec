"""A backend of a test's own: registered as a user's package registers one."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from projects import Project

SOURCE = """
import json

from pytest_gptune.engines.base import BackendMissingError, BuildRejectedError, Environment


class Backend:
    name = "toy"

    def check_available(self, options):
        if MISSING:
            raise BackendMissingError("no toy device is there", mend="plug one in")

    def check_options(self, options):
        pass

    def environment(self, options):
        return Environment("toy:1", "1.0", {"backend": "toy 1.0"}, {}, {})

    def knob_space(self, model, options):
        knobs = [
            {"option": f"-toy{n}", "allowed_values": f"-toy{n}=[on|off]", "default_value": "on", "help": ""}
            for n in range(KNOBS)
        ]
        return json.dumps({"tuner_version": "1.0", "tuner_options": knobs})

    def process_family(self, route):
        return ""

    def build(self, request):
        raise BuildRejectedError("toys cannot be built")
"""


@pytest.fixture
def add_toy_backend(project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install the backend ``toy`` in the project's folder; it has knobs, and builds nothing."""

    def add(*, knobs: int = 3, missing: bool = False) -> None:
        project.write("toy_backend.py", f"KNOBS, MISSING = {knobs}, {missing}\n{SOURCE}")
        project.write("toy_backend-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy-backend\n")
        project.write(
            "toy_backend-1.0.dist-info/entry_points.txt", "[gptune.backends]\ntoy = toy_backend:Backend\n"
        )
        monkeypatch.syspath_prepend(project.path)
        monkeypatch.setenv("PYTHONPATH", str(project.path), prepend=os.pathsep)

    return add
