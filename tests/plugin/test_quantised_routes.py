"""Routes with quantised nodes, as a user of the plugin runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from onnx import TensorProto, helper
from projects import MODEL, Project

FLOAT = TensorProto.FLOAT
RNG = np.random.default_rng(0)
ROUTES = "-quant:conv=[off|int8] -quant:head=[off|int8]"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the project, which takes away the caller's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _model(project: Project) -> None:
    """A Conv and a MatMul; ``x`` [1, 3, 6, 6] -> ``y`` [1, 5]."""
    weights = {
        "wc": (RNG.standard_normal((4, 3, 3, 3)) / 4).astype(np.float32),
        "wm": (RNG.standard_normal((144, 5)) / 8).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "wc"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node("MatMul", ["f", "wm"], ["y"], name="head"),
    ]
    model = models.build(nodes, {"x": (FLOAT, [1, 3, 6, 6])}, {"y": (FLOAT, [1, 5])}, weights)
    project.write(MODEL, model.SerializeToString())


def body(epsilon: float, **more: Any) -> str:
    arguments = "".join(f", {name}={value!r}" for name, value in more.items())
    return (
        f'@pytest.mark.gptune(model="{MODEL}", epsilon={epsilon}{arguments})\n'
        "def test_model(gptune_engine, gptune_golden):\n"
        "    gptune_golden.check(gptune_engine)\n"
    )


def outcomes(project: Project, *arguments: str) -> dict[str, int]:
    counts = project.run("--gptune-gate=off", *arguments).parseoutcomes()
    return {name: counts.get(name, 0) for name in ("passed", "xfailed", "failed", "errors")}


def test_epsilon_decides_how_much_is_quantised(project: Project) -> None:
    project.tests(body(0.5, routes=ROUTES), golden=None)
    assert project.run("--gptune-update-goldens").ret == 0
    full = ("--gptune-search", "full")
    assert outcomes(project, *full) == {"passed": 4, "xfailed": 0, "failed": 0, "errors": 0}
    exact = outcomes(project, *full, "--gptune-epsilon", "1e-6")
    assert exact == {"passed": 1, "xfailed": 3, "failed": 0, "errors": 0}


def test_the_id_and_the_route_of_a_quantised_node(project: Project) -> None:
    project.tests(body(0.5, routes=ROUTES), golden=None)
    project.run("--gptune-update-goldens")
    assert project.collect("--gptune-search", "fast") == [
        "test_model[default]",
        "test_model[quant:head=int8]",
        "test_model[quant:conv=int8]",
    ]
    alone = outcomes(project, "--gptune-route=-quant:conv=int8", "-k", "conv")
    assert alone == {"passed": 1, "xfailed": 0, "failed": 0, "errors": 0}


def test_no_routes_mean_no_quantisation_unless_asked_for(project: Project) -> None:
    project.tests(body(0.5), golden=None)
    dry = ("--gptune-search", "fast", "--gptune-dry-run")
    silent = project.run(*dry).outlines
    assert any("-ort:enable_mem_pattern=off" in line for line in silent)
    assert not [line for line in silent if "-quant:" in line]
    project.tests(body(0.5, options={"quantise": ["*"]}), golden=None)
    asked = project.run(*dry).outlines
    assert len([line for line in asked if "-quant:*=int8" in line]) == 1


def test_a_node_that_is_not_there_is_one_clear_mistake(project: Project) -> None:
    project.tests(body(0.5, routes="-quant:haed=[off|int8]"), golden=None)
    result = project.run("--gptune-search", "fast")
    result.stdout.fnmatch_lines(
        ["*unknown knob '-quant:haed'*", "*write -quant:head, the nearest known knob*"]
    )
    assert result.parseoutcomes() == {"errors": 1}


def test_a_pattern_for_nothing_is_one_clear_mistake(project: Project) -> None:
    project.tests(body(0.5, options={"quantise": ["decoder/*"]}), golden=None)
    result = project.run("--gptune-search", "fast")
    result.stdout.fnmatch_lines(["*pattern 'decoder/*' matches no MatMul, Gemm or Conv*"])
    assert result.parseoutcomes() == {"errors": 1}


@pytest.mark.long
def test_quantised_in_a_worker_and_timed_in_finals(project: Project) -> None:
    """The whole way of a user: isolated, searched, timed; calibrated anew for no build of the finals."""
    project.ini(gptune_isolation="process", gptune_final_builds=2)
    measured = body(0.5, routes=ROUTES).replace("gptune_engine, gptune_golden", "gptune")
    project.tests(measured.replace("gptune_golden.check(gptune_engine)", "gptune.check()"), golden=None)
    project.run("--gptune-update-goldens")
    result = project.run("--gptune-search", "full", "--gptune-update-baseline")
    assert result.ret == 0, result.outlines
    assert result.parseoutcomes()["passed"] >= 4
    assert project.baseline_path().is_file()
    # A plain run replays the default and whichever route won.
    assert project.run().ret == 0


def test_a_route_that_a_search_proposes_later_is_calibrated_too(project: Project) -> None:
    """Coordinate proposes the second knob once the first has been decided."""
    project.tests(
        body(0.5, routes="-quant:head=[off|int8] -quant:conv=[off|int8]").replace(
            "def test_model(gptune_engine, gptune_golden):\n    gptune_golden.check(gptune_engine)",
            "def test_model(gptune):\n    gptune.check()",
        ),
        golden=None,
    )
    project.run("--gptune-update-goldens")
    report = project.path / "report.json"
    project.run("--gptune-search=coordinate", "--gptune-gate=off", f"--gptune-report={report}")
    (test,) = json.loads(report.read_text())["tests"]
    late = [r for r in test["routes"] if "quant:conv=int8" in r["id"]]
    assert late
    assert {route["status"] for route in late} == {"passed"}, [route["error"] for route in late]
