"""``--gptune-route``: one route, as reports print it."""

from __future__ import annotations

from glob import escape

import pytest
from projects import CHECK, INACCURATE, MEASURE, Project

OFF = "test_model[ort:enable_mem_pattern=off]"


@pytest.mark.parametrize("route", ["-ort:enable_mem_pattern=off", "ort:enable_mem_pattern=off"])
def test_the_leading_dash_may_be_left_out(project: Project, route: str) -> None:
    project.tests(CHECK)

    assert project.collect(f"--gptune-route={route}") == [OFF]


def test_without_a_dash_the_equals_sign_may_be_left_out_too(project: Project) -> None:
    project.tests(CHECK)

    assert project.collect("--gptune-route", "ort:enable_mem_pattern=off") == [OFF]


@pytest.mark.parametrize("route", ["default", "", "-ort:enable_mem_pattern=on"])
def test_the_default_route(project: Project, route: str) -> None:
    project.tests(CHECK)

    assert project.collect(f"--gptune-route={route}") == ["test_model[default]"]


def test_it_replaces_the_routes_of_the_search(project: Project) -> None:
    project.tests(CHECK)

    result = project.run("--gptune-search=full", "--gptune-route=-ort:enable_mem_pattern=off", "-v")

    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [f"test_model.py::{escape(OFF)} PASSED*", "*search route: 1 of 1 routes: 1 passed"]
    )


def test_a_knob_that_the_expression_does_not_name(project: Project) -> None:
    project.tests(CHECK)

    collected = project.collect("--gptune-route=-ort:enable_mem_reuse=off")

    assert collected == ["test_model[ort:enable_mem_reuse=off]"]


def test_fixed_knobs_of_the_expression_stay(project: Project) -> None:
    project.tests(CHECK.replace("[on|off]", "off"))

    result = project.run("--gptune-route=-ort:enable_mem_reuse=off", "--gptune-dry-run")

    result.stdout.fnmatch_lines(
        ["* -ort:enable_mem_pattern=off -ort:optimization.*=0 -ort:enable_mem_reuse=off"]
    )


@pytest.mark.parametrize(
    ("route", "what", "mend"),
    [
        ("ort:nonsense=1", "unknown knob 'ort:nonsense' at character 1", "*--gptune-knobs*"),
        (
            "-ort:enable_mem_patern=off",
            "unknown knob '-ort:enable_mem_patern' at character 1",
            "write -ort:enable_mem_pattern, the nearest known knob, or see --gptune-knobs",
        ),
        (
            "-ort:enable_mem_pattern=of",
            "value 'of' at character 25 is not allowed for -ort:enable_mem_pattern",
            "write off, the nearest of on, off",
        ),
        (
            "-ort:enable_mem_pattern=[on|off]",
            "a route has one value for each knob, not several: *",
            "write one of -ort:enable_mem_pattern=on, -ort:enable_mem_pattern=off",
        ),
    ],
)
def test_a_route_that_cannot_be_is_an_error_of_each_test(
    project: Project, route: str, what: str, mend: str
) -> None:
    project.tests(CHECK + "\n    def test_other():\n        pass\n")

    result = project.run(f"--gptune-route={route}")

    result.assert_outcomes(passed=1, errors=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines([what, "  in: --gptune-route", f"  do: {mend}"])


def test_a_route_with_a_value_that_this_machine_lacks_skips_the_test(project: Project) -> None:
    project.tests(CHECK)

    result = project.run("--gptune-route=-ort:intra_op_num_threads=60000", "-rs")

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED *this machine lacks a value of it*"])


def test_an_inaccurate_route_is_xfailed(project: Project) -> None:
    project.tests(CHECK)

    result = project.run(f"--gptune-route={INACCURATE}", "-rx")

    result.assert_outcomes(xfailed=1, skipped=1)
    result.stdout.fnmatch_lines(["XFAIL *inaccurate: output 'y'*"])


def test_one_route_alone_is_measured_and_not_judged(project: Project) -> None:
    project.tests(MEASURE)

    result = project.run("test_model.py::test_model", "--gptune-route=-ort:enable_mem_pattern=off")

    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.re_match_lines([r"    ort:enable_mem_pattern=off +[0-9.]+ us .* passed"])
    result.stdout.fnmatch_lines(["  verdict: incomparable, partial_run. the default route did not run*"])


def test_it_is_not_an_ini_key(project: Project) -> None:
    project.tests(CHECK)
    project.ini(gptune_route="-ort:enable_mem_pattern=off")

    result = project.run("--strict-config")

    assert result.ret == 4
    result.stderr.fnmatch_lines(["*Unknown config option: gptune_route*"])
