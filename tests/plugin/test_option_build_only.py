"""``--gptune-build-only``: every route is built, nothing is run."""

from __future__ import annotations

import json

import pytest
from projects import MODEL, Project

BODY = f"""
    @pytest.mark.gptune(
        model="{MODEL}",
        epsilon=1e-5,
        routes="-ort:enable_mem_pattern=[on|off] -ort:session.disable_prepacking=[0|1]",
    )
    def test_model(gptune):
        raise AssertionError("the body is run")
"""


def build_only(project: Project, *arguments: str) -> tuple[pytest.RunResult, dict[str, object]]:
    report = project.path / "report.json"
    result = project.run("--gptune-build-only", f"--gptune-report={report}", *arguments)
    (test,) = json.loads(report.read_text())["tests"]
    return result, test


def test_every_route_is_built_and_no_body_is_run(project: Project) -> None:
    project.tests(BODY)
    result, test = build_only(project, "--gptune-search=full")
    result.assert_outcomes(passed=5)
    assert test["verdict"]["outcome"] == "pass"
    assert test["verdict"]["reason"] == "built"
    assert (
        test["verdict"]["message"]
        == "4 of 4 routes were built, and none was run: nothing was compared or timed."
    )
    for route in test["routes"]:
        assert route["build_seconds"] > 0
        assert route["latency"] is None
        assert route["loss"] == {}


def test_no_golden_has_to_be_there(project: Project) -> None:
    project.tests(BODY, golden=None)
    result, _ = build_only(project, "--gptune-search=fast")
    result.assert_outcomes(passed=4)


@pytest.fixture
def refusing(project: Project) -> Project:
    """A project whose backend refuses the routes that REFUSED names."""
    project.write("refusing_backend.py", REFUSING)
    info = "refusing_backend-1.0.dist-info"
    project.write(f"{info}/METADATA", "Metadata-Version: 2.1\nName: refusing-backend\n")
    project.write(f"{info}/entry_points.txt", "[gptune.backends]\nrefusing = refusing_backend:Refusing\n")
    project._pytester.syspathinsert()
    project.tests(BODY.replace("epsilon=1e-5", 'epsilon=1e-5, backend="refusing"'))
    return project


def test_a_default_that_cannot_be_built_fails(refusing: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The baseline's and the default route are what a team ships."""
    monkeypatch.setenv("REFUSED", "")
    result, test = build_only(refusing, "--gptune-search=full")
    assert result.ret == 1
    assert (test["verdict"]["outcome"], test["verdict"]["reason"]) == ("fail", "not_built")
    assert "default: rejected: refused as asked" in test["verdict"]["message"]
    assert "3 of 4 routes were built" in test["verdict"]["message"]
    result.stdout.fnmatch_lines(["*This is the default route.*"])


def test_another_route_that_cannot_be_built_is_expected_to_fail(
    refusing: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFUSED", "-ort:enable_mem_pattern=off")
    result, test = build_only(refusing, "--gptune-search=full")
    result.assert_outcomes(passed=4, xfailed=1)
    assert "3 of 4 routes were built" in test["verdict"]["message"]
    assert result.ret == 0


REFUSING = """
import os

from pytest_gptune.engines.base import BuildRejectedError
from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend

class Refusing(OnnxRuntimeBackend):
    name = "refusing"

    def build(self, request):
        if " ".join(map("=".join, request.route)) == os.environ["REFUSED"]:
            raise BuildRejectedError("refused as asked")
        return super().build(request)
"""


def test_mixed_has_no_later_routes(project: Project) -> None:
    project.tests(BODY)
    _, test = build_only(project, "--gptune-search=mixed")
    assert len(test["routes"]) == 3


def test_engines_can_be_kept(project: Project) -> None:
    project.tests(BODY)
    build_only(project, "--gptune-search=fast", "--gptune-save-engine=kept", "--gptune-save-all-engines")
    assert len(list((project.path / "kept").rglob("*.engine"))) == 3


@pytest.mark.parametrize("other", ["--gptune-update-goldens", "--gptune-update-baseline"])
def test_what_needs_a_run_is_refused(project: Project, other: str) -> None:
    project.tests(BODY)
    result = project.run("--gptune-build-only", other)
    assert result.ret == 4
    assert f"--gptune-build-only and {other} exclude each other" in result.stderr.str()
