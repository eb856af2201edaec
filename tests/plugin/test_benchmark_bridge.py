"""Routes as rows of pytest-benchmark."""

from __future__ import annotations

import json
from typing import Any

import pytest
from projects import INACCURATE, MARKER, MEASURE, Project

FAST = "--gptune-search=fast"
JSON = "--benchmark-json=rows.json"
DEFAULT = "test_model[default]"
OFF = "test_model[ort:enable_mem_pattern=off]"


def rows(project: Project, name: str = "rows.json") -> dict[str, Any]:
    """Rows by name; pytest-benchmark writes no file where there is none."""
    path = project.path / name
    if not path.exists():
        return {}
    return {row["name"]: row for row in json.loads(path.read_text())["benchmarks"]}


def test_a_route_is_a_row_and_an_inaccurate_one_leaves_none(project: Project) -> None:
    project.tests(MEASURE)

    result = project.run(FAST, JSON)

    result.assert_outcomes(passed=2, xfailed=1, skipped=1)
    found = rows(project)
    assert set(found) == {DEFAULT, OFF}
    assert "gelu_approximation=1" not in (project.path / "rows.json").read_text()
    row = found[OFF]
    assert row["group"] == "test_model.py::test_model"
    extra = row["extra_info"]
    assert (
        extra["gptune_route"] == "-ort:enable_mem_pattern=off -ort:optimization.enable_gelu_approximation=0"
    )
    assert extra["gptune_status"] == "passed"
    assert extra["gptune_backend"] == "onnxruntime"
    assert 0 <= extra["gptune_loss"] <= 1e-5
    assert (extra["gptune_latency_kind"], extra["gptune_statistic"]) == ("host_wall", "p25")
    assert len(extra["gptune_engine_digest"]) == 64
    for row in found.values():
        stats = row["stats"]
        assert 2 <= stats["rounds"] == len(stats["data"]) <= 1000
        assert stats["iterations"] == 1
        assert stats["min"] <= row["extra_info"]["gptune_latency_s"] <= stats["max"]
        assert 1e-7 < stats["min"] < 1e-2  # seconds
    result.stdout.fnmatch_lines(["*- benchmark 'test_model.py::test_model': 2 tests -*", "Name (time in *"])


def test_the_latency_that_is_returned_is_the_rows(project: Project) -> None:
    project.tests(
        f"""
        {MARKER}
        def test_model(gptune_engine, gptune_golden, gptune_benchmark, record_property):
            gptune_golden.check(gptune_engine)
            record_property("latency", gptune_benchmark(gptune_engine))
        """
    )

    project.run(JSON, "--junitxml=junit.xml")

    latency = rows(project)[DEFAULT]["extra_info"]["gptune_latency_s"]
    assert f'name="latency" value="{latency}"' in (project.path / "junit.xml").read_text()


def test_the_users_own_benchmark_mark_stays(project: Project) -> None:
    project.tests(MEASURE.replace("@pytest", "@pytest.mark.benchmark(group='mine')\n    @pytest", 1))

    project.run(JSON)

    assert rows(project)[DEFAULT]["group"] == "mine"


def test_a_benchmark_of_the_users_own_is_a_row_beside_ours(project: Project) -> None:
    project.tests(MEASURE + "\n    def test_other(benchmark):\n        benchmark(sum, [1])\n")

    project.run(JSON, "--benchmark-max-time=0.01", "--benchmark-min-rounds=2")

    found = rows(project)
    assert set(found) == {DEFAULT, "test_other"}
    assert found["test_other"]["group"] is None


def test_disabled_benchmarks_check_and_measure_nothing(project: Project) -> None:
    project.tests(MEASURE)

    result = project.run(FAST, "--benchmark-disable", "-rs", JSON)

    result.assert_outcomes(passed=2, xfailed=1, skipped=1)
    assert rows(project) == {}
    result.stdout.fnmatch_lines(["SKIPPED *no latency was measured in this run*"])


def test_disabled_benchmarks_may_be_enabled_again(project: Project) -> None:
    project.tests(MEASURE)

    project.run("--benchmark-disable", "--benchmark-enable", JSON)

    assert set(rows(project)) == {DEFAULT}


def test_a_call_gives_none_where_benchmarks_are_disabled(project: Project) -> None:
    project.tests(MEASURE.replace("gptune.check()", "assert gptune.check() is None"))

    project.run("--benchmark-disable").assert_outcomes(passed=1, skipped=1)


def test_skipped_benchmarks_leave_the_other_tests(project: Project) -> None:
    project.tests(
        MEASURE
        + f"""
    {MARKER}
    def test_accuracy(gptune_engine, gptune_golden):
        gptune_golden.check(gptune_engine)
    """
    )
    project.golden("test_accuracy")

    result = project.run(FAST, "--benchmark-skip", "-rs")

    result.assert_outcomes(passed=2, xfailed=1, skipped=4)
    result.stdout.fnmatch_lines(["SKIPPED [[]3] * Skipping benchmark (--benchmark-skip active)."])


def test_only_benchmarks_are_ours_too(project: Project) -> None:
    project.tests(MEASURE + "\n    def test_other():\n        pass\n")

    result = project.run("--benchmark-only", "-rs")

    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED * Skipping non-benchmark (--benchmark-only active)."])


@pytest.mark.parametrize("strict", [True, False])
def test_without_pytest_benchmark_latency_is_measured_and_no_row_kept(project: Project, strict: bool) -> None:
    project.tests(MEASURE)

    result = project.run("-p", "no:benchmark", *(["--strict-markers", "-Werror"] if strict else []))

    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.re_match_lines([r"[*+ ] +default +[0-9.]+ us +1.00x +0 +passed"])
    result.stdout.no_fnmatch_line("*warning*")
    result.stdout.no_fnmatch_line("*- benchmark *")


def test_rows_are_saved(project: Project) -> None:
    project.tests(MEASURE)

    project.run("--benchmark-save=kept", "--benchmark-storage=file://rows")

    (path,) = (project.path / "rows").rglob("*_kept.json")
    assert set(rows(project, str(path.relative_to(project.path)))) == {DEFAULT}


@pytest.mark.long
def test_saved_rows_are_compared(project: Project) -> None:
    project.tests(MEASURE)
    project.run("--benchmark-save=kept")

    result = project.run("--benchmark-compare")

    assert result.ret == 0
    for run in ("NOW", "0001_kept"):  # the faster one is first
        result.stdout.fnmatch_lines([f"*test_model[[]default] ({run})*"])


def test_rows_may_be_grouped_and_sorted(project: Project) -> None:
    project.tests(MEASURE)

    result = project.run(FAST, "--benchmark-group-by=func", "--benchmark-columns=median,rounds")

    assert result.ret == 0
    result.stdout.fnmatch_lines(["*- benchmark 'test_model': 2 tests -*", "Name (time in *Median *Rounds"])


def test_two_processes_measure_without_rows(project: Project) -> None:
    project.tests(MEASURE)

    result = project.run_apart("-n2", JSON)

    result.assert_outcomes(passed=1, skipped=1)
    assert rows(project) == {}
    result.stdout.fnmatch_lines(["  verdict: new. *"])


def test_the_users_own_failure_after_a_check_leaves_no_row(project: Project) -> None:
    project.tests(
        f"""
        {MARKER}
        def test_model(gptune_engine, gptune_golden, gptune_benchmark):
            gptune_golden.check(gptune_engine)
            assert False, "my own"
            gptune_benchmark(gptune_engine)
        """
    )

    result = project.run(JSON)

    assert result.parseoutcomes()["failed"] == 1
    assert rows(project) == {}


def test_a_baselines_route_that_became_inaccurate_leaves_no_row(project: Project) -> None:
    project.tests(MEASURE)
    project.baseline(INACCURATE)

    project.run(JSON)

    assert set(rows(project)) == {DEFAULT}


def test_samples_are_told_apart_from_the_time_of_the_test(project: Project) -> None:
    """A row's total is that of its samples, not of building, checking and warming up."""
    project.tests(MEASURE)

    project.run(JSON)

    stats = rows(project)[DEFAULT]["stats"]
    assert stats["total"] == pytest.approx(sum(stats["data"]))
