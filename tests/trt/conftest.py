"""The double of TensorRT and CUDA: in this process, or in the processes of a project's run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import pytest
from double_engines import Build, request_for
from projects import Project
from trt_projects import DOUBLE, TrtProject

from pytest_gptune.engines.tensorrt import TensorRtBackend
from pytest_gptune.engines.tensorrt.engine import TensorRtEngine


def _doubled() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in ("tensorrt", "cuda")]


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[TensorRtBackend]:
    """The backend over the double, in this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TRT_DOUBLE_LOG", str(tmp_path / "builds.jsonl"))
    for name in _doubled():
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(DOUBLE)
    yield TensorRtBackend()
    for name in _doubled():
        del sys.modules[name]


@pytest.fixture
def build(double: TensorRtBackend) -> Build:
    def build(path: Path, *route: tuple[str, str], **fields: Any) -> TensorRtEngine:
        return double.build(request_for(path, *route, **fields))

    return build


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    return models.mlp(tmp_path / "mlp.onnx")


@pytest.fixture
def trt_project(project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TrtProject:
    paths = [str(DOUBLE), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TRT_DOUBLE_LOG", str(tmp_path / "builds.jsonl"))
    return TrtProject(project, tmp_path / "builds.jsonl", tmp_path / "cache")
