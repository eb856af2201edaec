"""What becomes of the test of a route: passed, xfailed, failed, and mistakes in its body."""

from __future__ import annotations

import pytest
from projects import CHECK, INACCURATE, MARKER, MEASURE, Project


def test_an_inaccurate_route_does_not_stop_a_run(project: Project) -> None:
    project.tests(CHECK + "\n    def test_other():\n        pass\n")

    for option in ("-x", "--maxfail=1"):
        project.run("--gptune-search=full", option).assert_outcomes(passed=3, xfailed=2, skipped=1)


def test_the_message_of_an_inaccurate_route_has_no_traceback(project: Project) -> None:
    project.tests(CHECK)

    result = project.run("--gptune-search=fast", "-rx")

    (line,) = [line for line in result.outlines if line.startswith("XFAIL")]
    assert "[ort:optimization.enable_gelu_approximation=1] - inaccurate: output 'y'" in line
    result.stdout.no_fnmatch_line("*Error*")


def test_with_runxfail_an_inaccurate_route_fails_and_leaves_no_latency(project: Project) -> None:
    project.tests(MEASURE)

    result = project.run("--gptune-search=fast", "--runxfail", "--benchmark-json=rows.json")

    result.assert_outcomes(passed=2, failed=1, skipped=1)
    assert "gelu_approximation=1" not in (project.path / "rows.json").read_text()
    result.stdout.fnmatch_lines(["inaccurate: output 'y' of case 'case0'*"])
    result.stdout.fnmatch_lines(["    ort:optimization.enable_gelu* - * - *inaccurate"])


def test_the_users_own_failure_stops_a_run(project: Project) -> None:
    project.tests(f"{MARKER}\ndef test_model(gptune_engine):\n    assert gptune_engine is None, 'my own'\n")

    result = project.run("--gptune-search=fast", "-x")

    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["*AssertionError: my own*"])


def test_the_users_own_failure_is_the_routes_status(project: Project) -> None:
    project.tests(
        f"""
        {MARKER}
        def test_model(gptune, gptune_route):
            gptune.golden.check(gptune.engine)
            assert "off" not in str(gptune_route), "my own"
        """
    )

    result = project.run("--gptune-search=fast")

    assert result.ret == 1
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["xfailed"], outcomes["failed"]) == (1, 1, 1)
    result.stdout.fnmatch_lines(["    ort:enable_mem_pattern=off * test_failed"])


def test_the_users_own_skip_and_xfail_are_theirs(project: Project) -> None:
    project.tests(
        f"""
        {MARKER}
        def test_skipped(gptune_engine):
            pytest.skip("my own")

        @pytest.mark.xfail(reason="my own", strict=True)
        {MARKER}
        def test_xfailed(gptune_engine):
            raise ValueError

        @pytest.mark.skip(reason="never")
        {MARKER}
        def test_never(gptune):
            raise ValueError
        """
    )

    result = project.run("-rsx")

    outcomes = result.parseoutcomes()
    assert "failed" not in outcomes
    assert "errors" not in outcomes
    result.stdout.fnmatch_lines(["XFAIL *my own*"])


def test_the_baselines_route_that_became_inaccurate_fails(project: Project) -> None:
    project.tests(CHECK)
    project.baseline(INACCURATE)

    result = project.run()

    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["inaccurate: output 'y'*", "This is the baseline's route."])
    result.stdout.fnmatch_lines(["*baseline_route_inaccurate*"])
    result.stdout.no_fnmatch_line("During handling*")


def test_two_processes(project: Project) -> None:
    project.tests(CHECK + "\n    def test_other():\n        pass\n")

    result = project.run_apart("--gptune-search=full", "-n2", "-v")

    result.assert_outcomes(passed=3, xfailed=2, skipped=1)
    assert result.stdout.str().count("gptune-gate") == 1


@pytest.mark.long
def test_two_processes_that_measure(project: Project) -> None:
    project.tests(MEASURE)

    result = project.run_apart("--gptune-search=full", "-n2", "-o", "gptune_isolation=process")

    result.assert_outcomes(passed=2, xfailed=2, skipped=1)
    result.stdout.fnmatch_lines(["  verdict: new. *"])


def test_an_engine_of_another_test_is_refused(project: Project) -> None:
    project.tests(
        f"""
        kept = []

        {MARKER}
        def test_first(gptune_engine):
            kept.append(gptune_engine)

        {MARKER}
        def test_model(gptune_engine, gptune_golden):
            gptune_golden.check(kept[0])
        """
    )

    result = project.run()

    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(
        ["expected the engine of this test, not *", "  in: *", "  do: give the fixture*"]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_mistakes_in_the_body_of_a_test_are_one_message_each(project: Project) -> None:
    project.tests(
        f"""
        {MARKER}
        def test_case(gptune_engine, gptune_golden, gptune_benchmark):
            gptune_golden.check(gptune_engine)
            gptune_benchmark(gptune_engine, case="nope")

        {MARKER}
        def test_input(gptune_engine):
            gptune_engine(z=1)

        {MARKER}
        def test_twice(gptune_engine, gptune_golden, gptune_benchmark):
            gptune_golden.check(gptune_engine)
            gptune_benchmark(gptune_engine)
            gptune_benchmark(gptune_engine)
        """,
        golden=None,
    )
    for owner in ("test_case", "test_input", "test_twice"):
        project.golden(owner)

    result = project.run()

    assert result.parseoutcomes()["failed"] == 3
    result.stdout.fnmatch_lines_random(
        [
            "the golden has no case 'nope'",
            "the inputs do not fit the model*",
            "the engine of this test was measured already, and a route has one latency",
        ]
    )
    result.stdout.no_fnmatch_line("*pytest_gptune/plugin*")


@pytest.mark.parametrize("shapes", ["{'x': 4}", "{'x': {'min': 1, 'opt': 2, 'max': 3}}", "[{'x': None}]"])
def test_a_shape_that_is_none(project: Project, shapes: str) -> None:
    project.tests(CHECK.replace("epsilon=1e-5", f"epsilon=1e-5, shapes={shapes}"))

    result = project.run()

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["shapes has * where a shape belongs", "  in: *", "  do: write shapes=*"])
    result.stdout.no_fnmatch_line("*TypeError*")


def test_without_a_check_a_route_is_unchecked_and_cannot_win(project: Project) -> None:
    project.tests(
        f"""
        {MARKER}
        def test_model(gptune_engine, gptune_benchmark):
            gptune_benchmark(gptune_engine)
        """
    )

    result = project.run("-rs")

    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["    default * us * - * unchecked", "  winner:  none"])
    result.stdout.fnmatch_lines(["SKIPPED * no route was checked against a golden*"])


def test_the_case_to_time_is_named(project: Project) -> None:
    project.tests(MEASURE.replace("check()", "check(case='absent')"))

    result = project.run()

    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["*the golden has no case 'absent'*"])
