"""``--gptune-cache``: what a run writes of each route, inaccurate ones included."""

from __future__ import annotations

import json
from typing import Any

import pytest
from projects import CHECK, INACCURATE, MARKER, MEASURE, Project

from pytest_gptune.records.cached_tuning import CachedTuning, cached_tunings
from pytest_gptune.records.tuning_cache import read_cache
from pytest_gptune.records.what_if import ladder

CACHE = "--gptune-cache=cache.jsonl"
APPROXIMATION = INACCURATE.removeprefix("-")


def rows(project: Project) -> dict[str, dict[str, Any]]:
    """The rows by the route's id."""
    lines = [json.loads(line) for line in (project.path / "cache.jsonl").read_text().splitlines()]
    return {line["record"]["id"]: line for line in lines if line["kind"] == "row"}


def tuning(project: Project) -> CachedTuning:
    (found,) = cached_tunings(read_cache(project.path / "cache.jsonl"))
    return found


def test_an_inaccurate_route_is_timed_for_the_cache_and_stays_inaccurate(project: Project) -> None:
    project.tests(MEASURE)

    result = project.run("--gptune-search=full", CACHE, "--benchmark-json=rows.json", "-rx")

    result.assert_outcomes(passed=2, xfailed=2, skipped=1)
    result.stdout.fnmatch_lines(["XFAIL * inaccurate: output 'y'*"])
    row = rows(project)[APPROXIMATION]
    assert row["status"] == "inaccurate"
    assert row["error_message"].startswith("output 'y'")
    assert row["gpu_time"] == pytest.approx(row["latency_s"] * 1e3)
    assert row["latency_s"] > 0
    assert row["record"]["timed_case"] == "case0"
    assert "gelu_approximation=1" not in (project.path / "rows.json").read_text()


def test_it_cannot_win(project: Project) -> None:
    """Every route but the default is inaccurate: none of them wins, whatever its latency."""
    project.tests(MEASURE.replace("enable_mem_pattern=[on|off] -ort:", ""))

    result = project.run("--gptune-search=fast", CACHE)

    result.assert_outcomes(passed=1, xfailed=1, skipped=1)
    result.stdout.fnmatch_lines(["*ort:optimization.enable_gelu* us *inaccurate", "  winner:  default"])


def test_the_baselines_route_fails_as_without_a_cache(project: Project) -> None:
    """It has a latency and no row of pytest-benchmark, which says nothing of that."""
    project.tests(MEASURE)
    project.baseline(INACCURATE)

    result = project.run(CACHE)

    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["inaccurate: output 'y'*", "This is the baseline's route."])
    result.stdout.no_fnmatch_line("*Benchmark fixture was not used*")
    assert rows(project)[APPROXIMATION]["latency_s"] > 0


def test_a_larger_epsilon_makes_it_eligible(project: Project) -> None:
    project.tests(MEASURE)

    project.run("--gptune-search=full", CACHE)

    rungs = ladder(tuning(project))
    assert rungs[-1].eligible == 4
    assert rungs[-1].epsilon > 1e-5
    passed = [rung.eligible for rung in rungs if rung.epsilon <= 1e-5]
    assert passed[-1] == 2


def test_without_a_cache_it_is_not_timed(project: Project) -> None:
    project.tests(MEASURE)

    project.run("--gptune-search=fast", "--gptune-report=x.json")

    (test,) = json.loads((project.path / "x.json").read_text())["tests"]
    assert {route["id"]: route["latency"] is None for route in test["routes"]}[APPROXIMATION]


@pytest.mark.parametrize(
    ("body", "options"), [(CHECK, ()), (MEASURE, ("--benchmark-disable",))], ids=["check only", "disabled"]
)
def test_where_nothing_is_timed_it_is_not_either(
    project: Project, body: str, options: tuple[str, ...]
) -> None:
    project.tests(body)

    project.run("--gptune-search=fast", CACHE, *options)

    found = rows(project)
    assert found[APPROXIMATION]["status"] == "inaccurate"
    assert [row["latency_s"] for row in found.values()] == [None] * 3


def test_where_no_epsilon_would_do_it_is_not_timed(project: Project) -> None:
    """A loss of NaN counts as infinite."""
    project.write(
        "conftest.py",
        """
        from pytest_gptune.accuracy import Metric

        def pytest_gptune_metric(name):
            return Metric("own", lambda actual, golden: float("nan")) if name == "own" else None
        """,
    )
    project.tests(MEASURE)

    project.run("--gptune-search=fast", "--gptune-metric=own", CACHE)

    found = rows(project)
    assert {row["status"] for row in found.values()} == {"inaccurate"}
    assert [row["latency_s"] for row in found.values()] == [None] * 3


def two_cases(project: Project) -> None:
    """A golden of two cases, whose second one a test can name."""
    from dataclasses import replace

    from pytest_gptune.accuracy import golden_from_bytes, golden_to_bytes

    golden = golden_from_bytes(project.golden_content)
    more = replace(golden, cases=(*golden.cases, replace(golden.cases[0], name="second")))
    project.golden_content = golden_to_bytes(more)


def test_it_is_timed_on_the_case_the_test_times(project: Project) -> None:
    two_cases(project)
    project.tests(MEASURE.replace("check()", "check(case='second')"))

    project.run("--gptune-search=fast", CACHE)

    found = rows(project)
    assert [row["record"]["timed_case"] for row in found.values()] == ["second"] * 3
    assert found[APPROXIMATION]["status"] == "inaccurate"


def test_it_is_timed_on_the_case_of_the_routes_before_it(project: Project) -> None:
    """The check does not say which case will be timed; the routes that passed did."""
    two_cases(project)
    project.tests(
        f"""
        {MARKER}
        def test_model(gptune_engine, gptune_golden, gptune_benchmark):
            gptune_golden.check(gptune_engine)
            gptune_benchmark(gptune_engine, case="second")
        """
    )

    project.run("--gptune-search=fast", CACHE)

    found = rows(project)
    assert [row["record"]["timed_case"] for row in found.values()] == ["second"] * 3
    assert len(tuning(project).comparable) == 3


def test_an_engine_that_fails_while_it_is_timed_stays_inaccurate(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_gptune.engines.base import RouteFailureError
    from pytest_gptune.plugin import run

    measure = run.measure

    def failing(engine: Any, *arguments: Any) -> Any:
        if measured:
            raise RouteFailureError("died while it was timed")
        measured.append(engine)
        return measure(engine, *arguments)

    measured: list[Any] = []
    monkeypatch.setattr(run, "measure", failing)
    project.tests(MEASURE.replace("enable_mem_pattern=[on|off] -ort:", ""))

    result = project.run("--gptune-search=fast", CACHE, "-rx")

    result.stdout.fnmatch_lines(["XFAIL * inaccurate: output 'y'*"])
    row = rows(project)[APPROXIMATION]
    assert (row["status"], row["latency_s"], row["crash"]) == ("inaccurate", None, False)


def test_a_resumed_run_takes_it_up_with_its_latency(project: Project) -> None:
    project.tests(MEASURE)
    project.run("--gptune-search=fast", CACHE)
    before = rows(project)

    result = project.run("--gptune-search=fast", CACHE, "--gptune-continue", "--gptune-report=x.json")

    result.stdout.fnmatch_lines(["*xfailed*"])
    (test,) = json.loads((project.path / "x.json").read_text())["tests"]
    latencies = {route["id"]: route["latency"] for route in test["routes"]}
    assert latencies[APPROXIMATION]["p25"] == before[APPROXIMATION]["record"]["latency"]["p25"]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"garbage\n", 1),
        (b"garbage", 1),
        (b'{\n  "entries": []\n}\n', 1),
        (b'{"entries": []}', 1),
        (b"\n\n[1]\n", 3),
        (b"\x00\xff\n", 1),
    ],
)
@pytest.mark.parametrize("of", ["option", "ini", "continue"])
def test_a_file_that_is_no_cache_is_refused_and_left(
    project: Project, content: bytes, line: int, of: str
) -> None:
    project.tests(CHECK)
    path = project.write("cache.jsonl", content)
    if of == "ini":
        project.ini(gptune_cache=path.name)

    result = project.run(*{"option": [CACHE], "ini": [], "continue": [CACHE, "--gptune-continue"]}[of])

    assert result.ret == 4
    result.stderr.fnmatch_lines(
        [
            f"ERROR: line {line} is not a line of a tuning cache",
            f"  in: {path}",
            "  do: give another file to --gptune-cache, or delete this one",
        ]
    )
    assert path.read_bytes() == content


@pytest.mark.parametrize("kept", [0, 5, 40, -1])
def test_a_cache_whose_first_line_is_torn_is_written_on(project: Project, kept: int) -> None:
    """A run that was killed as it began left it."""
    project.tests(CHECK)
    project.run(CACHE)
    path = project.path / "cache.jsonl"
    (header, _) = path.read_bytes().splitlines()
    path.write_bytes(header[:kept] if kept >= 0 else header)

    project.run(CACHE).assert_outcomes(passed=1, skipped=1)

    assert path.read_bytes().splitlines()[0] == header
    assert tuning(project).routes[0].status == "passed"


def test_a_cache_whose_last_line_is_torn_is_written_on(project: Project) -> None:
    """A run that was killed as it wrote a later row left it."""
    project.tests(CHECK)
    project.run(CACHE)
    path = project.path / "cache.jsonl"
    before = path.read_bytes()
    path.write_bytes(before + before[:30])

    project.run(CACHE).assert_outcomes(passed=1, skipped=1)

    assert path.read_bytes().startswith(before)
    assert len(tuning(project).routes) == 1
