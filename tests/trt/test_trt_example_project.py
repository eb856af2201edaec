"""The example project with TensorRT: built anywhere with TensorRT RTX, and tuned over the double."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from projects import Project
from trt_projects import TrtProject

EXAMPLE = Path(__file__).parents[2] / "example_project"
TESTS = ["test_convnet", "test_encoder", "test_mlp"]


@pytest.fixture
def example(project: Project) -> Path:
    return Path(shutil.copytree(EXAMPLE, project.path / "example_project"))


def by_test(report: Path) -> dict[str, dict[str, Any]]:
    return {test["nodeid"].rpartition("::")[2]: test for test in json.loads(report.read_text())["tests"]}


def build_only(project: Project, *arguments: str) -> dict[str, dict[str, Any]]:
    """The command of the documents, on a machine with a GPU and without."""
    pytest.importorskip("tensorrt_rtx", reason="TensorRT RTX is not installed", exc_type=ImportError)
    report = project.path / "report.json"
    result = project.run_apart(
        "example_project",
        "--gptune-backend=tensorrt_rtx",
        "--gptune-isolation=process",
        "--gptune-build-only",
        f"--gptune-report={report}",
        *arguments,
    )
    assert result.ret == 0
    return by_test(report)


def test_it_is_built_without_a_gpu(project: Project, example: Path) -> None:
    tests = build_only(project)
    assert sorted(tests) == TESTS
    for test in tests.values():
        assert (test["verdict"]["outcome"], test["verdict"]["reason"]) == ("pass", "built")
        (default,) = test["routes"]
        assert default["status"] == "unchecked"
        assert default["engine_bytes"] > 10_000


@pytest.mark.long
def test_every_route_is_built_without_a_gpu(project: Project, example: Path) -> None:
    """What a pull request on a machine without a GPU is gated with."""
    tests = build_only(project, "--gptune-search=fast")
    encoder = {route["id"]: route["status"] for route in tests["test_encoder"]["routes"]}
    assert set(encoder) == {"default", "builder:max_aux_streams=0", "builder:optimization_level=5"}
    mlp = {route["id"]: route["status"] for route in tests["test_mlp"]["routes"]}
    assert mlp["default"] == mlp["builder:TF32=off"] == "unchecked"
    assert set(mlp.values()) == {"unchecked", "inert"}


def test_a_model_that_cannot_be_built_fails(project: Project, example: Path) -> None:
    model = example / "models" / "mlp.onnx"
    model.write_bytes(model.read_bytes()[:-1000])
    pytest.importorskip("tensorrt_rtx", reason="TensorRT RTX is not installed", exc_type=ImportError)
    result = project.run_apart(
        "example_project",
        "-kmlp",
        "--gptune-backend=tensorrt_rtx",
        "--gptune-isolation=process",
        "--gptune-build-only",
    )
    result.stdout.fnmatch_lines(["not an ONNX model, or a truncated one*", "  in: *mlp.onnx", "  do: *"])
    assert result.ret == 1


@pytest.mark.long
def test_it_is_tuned_where_tensorrt_is(trt_project: TrtProject, example: Path) -> None:
    """The markers have routes by backend; the double cannot build one of them."""
    _, report = trt_project.run("example_project", "--gptune-search=fast", "-kencoder")
    (test,) = report["tests"]
    assert {route["id"]: route["status"] for route in test["routes"]} == {
        "default": "passed",
        "builder:max_aux_streams=0": "rejected",
        "builder:optimization_level=5": "rejected",  # it has no graph there
    }
    assert test["winner"] == "default"
    assert len(test["cases"]) == 2
