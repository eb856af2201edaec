"""``--gptune-report`` and the ini key ``gptune_report``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from projects import CHECK, MEASURE, MODEL, Project

SCHEMA = Path(__file__).parents[1] / "data" / "report.schema.json"


def read(path: Path) -> dict[str, Any]:
    report = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    if SCHEMA.exists():
        jsonschema = pytest.importorskip("jsonschema")
        jsonschema.validate(report, json.loads(SCHEMA.read_text()))
    assert report["schema"] == 1
    return dict(report)


def test_a_report_holds_every_route_and_the_verdict(project: Project) -> None:
    project.tests(MEASURE)

    result = project.run("--gptune-search=fast", "--gptune-report=out/x.json")

    assert result.ret == 0
    report = read(project.path / "out/x.json")
    (test,) = report["tests"]
    assert test["nodeid"] == "test_model.py::test_model"
    assert test["search"] == "fast"
    assert test["backend"] == "onnxruntime"
    assert test["cases"] == ["case0"]
    assert test["shapes"] == {"x": [2, 8]}
    assert {route["id"]: route["status"] for route in test["routes"]} == {
        "default": "passed",
        "ort:optimization.enable_gelu_approximation=1": "inaccurate",
        "ort:enable_mem_pattern=off": "passed",
    }
    inaccurate = test["routes"][1]
    assert inaccurate["latency"] is None
    assert 1e-5 < inaccurate["loss"]["y"] <= inaccurate["needed_epsilon"]
    assert test["winner"] in ("default", "ort:enable_mem_pattern=off")
    assert test["verdict"]["outcome"] == "new"
    assert report["environment"]["onnxruntime"]["tuner_version"]


def test_two_processes_write_the_same_report(project: Project) -> None:
    project.tests(CHECK)
    project.run("--gptune-search=full", "--gptune-report=one.json")

    project.run_apart("--gptune-search=full", "--gptune-report=two.json", "-n2")

    (one,), (two,) = (read(project.path / name)["tests"] for name in ("one.json", "two.json"))
    routes = [sorted((route["id"], route["status"]) for route in test["routes"]) for test in (one, two)]
    assert len(routes[0]) == 4
    assert routes[0] == routes[1]
    assert one["verdict"] == two["verdict"]


def test_a_report_may_be_given_again(project: Project) -> None:
    project.tests(CHECK)

    project.run("--gptune-report=one.json", "--gptune-report", "two.json")

    assert read(project.path / "one.json") == read(project.path / "two.json")


def test_a_report_is_replaced(project: Project) -> None:
    project.tests(CHECK)
    project.write("x.json", "of an earlier run")

    project.run("--gptune-report=x.json")

    assert len(read(project.path / "x.json")["tests"]) == 1


def test_an_earlier_report_does_not_survive_a_run_without_tunings(project: Project) -> None:
    project.tests(CHECK, golden=None)
    project.write("x.json", "of an earlier run")

    result = project.run("--gptune-report=x.json")

    assert result.ret == 1
    assert read(project.path / "x.json")["tests"] == []


def test_collection_alone_writes_no_report(project: Project) -> None:
    project.tests(CHECK)

    project.run("--gptune-report=x.json", "--collect-only")

    assert not (project.path / "x.json").exists()


def test_the_ini_key_is_relative_to_the_root_folder(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.tests(CHECK)
    project.ini(gptune_report="reports/x.json")
    (project.path / "below").mkdir()
    monkeypatch.chdir(project.path / "below")

    project.run("..")
    project.run("..", "--gptune-report=y.json")

    assert read(project.path / "reports/x.json")["tests"]
    assert read(project.path / "below/y.json")["tests"]


@pytest.mark.parametrize("how", ["command line", "ini"])
def test_a_kind_that_is_not_written_is_refused_at_once(project: Project, how: str) -> None:
    project.tests(CHECK)
    if how == "ini":
        project.ini(gptune_report="x.csv")

    result = project.run(*(["--gptune-report=x.csv"] if how == "command line" else []))

    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: *report writes * not 'x.csv'", "  do: give a path that ends in*"])


def test_a_path_that_cannot_be_written_is_an_error_after_the_summary(project: Project) -> None:
    project.tests(CHECK)
    project.write("file", "not a folder")

    result = project.run("--gptune-report=file/x.json")

    assert result.ret == 4
    result.stdout.fnmatch_lines(["*= gptune =*", "*1 passed*"])
    result.stderr.fnmatch_lines(["ERROR: cannot write x.json: *", "  in: *file", "  do: *"])
    result.stderr.no_fnmatch_line("*Traceback*")


def test_every_test_of_a_run_is_in_it(project: Project) -> None:
    project.tests(
        CHECK
        + f"""
    @pytest.mark.parametrize("n", [1, 2])
    @pytest.mark.gptune(model="{MODEL}", epsilon=1e-5)
    def test_other(n, gptune_engine, gptune_golden):
        gptune_golden.check(gptune_engine)
    """
    )
    project.golden("test_other[1]")
    project.golden("test_other[2]")

    project.run("--gptune-report=x.json")

    assert [test["nodeid"] for test in read(project.path / "x.json")["tests"]] == [
        "test_model.py::test_model",
        "test_model.py::test_other[1]",
        "test_model.py::test_other[2]",
    ]
