"""``--gptune-epsilon``, ``--gptune-metric``, ``--gptune-atol``, ``--gptune-rtol``, ini keys and marker."""

from __future__ import annotations

import pytest
from projects import INACCURATE, MODEL, Project

ROUTE = f"--gptune-route={INACCURATE}"


def body(**arguments: object) -> str:
    given = "".join(f", {name}={value!r}" for name, value in arguments.items())
    return f"""
    @pytest.mark.gptune(model="{MODEL}"{given})
    def test_model(gptune_engine, gptune_golden):
        gptune_golden.check(gptune_engine)
    """


def passes(project: Project, *arguments: str) -> bool:
    """Whether the route with a loss of about 4e-4 passes."""
    outcomes = project.run(ROUTE, *arguments).parseoutcomes()
    assert outcomes.get("passed", 0) + outcomes.get("xfailed", 0) == 1
    return "passed" in outcomes


def test_epsilon_of_the_command_line_over_marker_over_ini(project: Project) -> None:
    project.tests(body())
    project.ini(gptune_epsilon="1e-2")
    assert passes(project)

    project.tests(body(epsilon=1e-6))
    assert not passes(project)
    assert passes(project, "--gptune-epsilon=0.01")
    assert not passes(project, "--gptune-epsilon", "1e-7")


def test_a_loss_equal_to_epsilon_passes(project: Project) -> None:
    project.tests(body(epsilon=0))

    project.run().assert_outcomes(passed=1, skipped=1)
    project.run(ROUTE).assert_outcomes(xfailed=1, skipped=1)


def test_no_epsilon_is_said_once_and_how_to_give_one(project: Project) -> None:
    project.tests(body())

    result = project.run("--gptune-search=fast")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "the test has no epsilon, so its accuracy cannot be judged",
            "  in: test_model.py::test_model, @pytest.mark.gptune(...)",
            "  do: write epsilon=1e-3 in the marker, or give --gptune-epsilon; 0 asks for equality",
        ]
    )


def test_without_a_golden_no_epsilon_is_needed(project: Project) -> None:
    project.tests(f'@pytest.mark.gptune(model="{MODEL}")\ndef test_model(gptune_engine):\n    pass\n')

    assert "errors" not in project.run().parseoutcomes()


def test_epsilon_of_each_output(project: Project) -> None:
    project.tests(body(epsilon={"y": 1e-2}))
    assert passes(project)

    project.tests(body(epsilon={"y": 1e-6}))
    assert not passes(project)


@pytest.mark.parametrize(
    ("epsilon", "what"),
    [
        ({"z": 1e-2}, "*'z'*"),
        (-1, "epsilon is -1"),
        ("1e-3", "epsilon is '1e-3', not a number"),
        (True, "epsilon is True, not a number"),
        ({"y": "x"}, "epsilon of 'y' is 'x', not a number"),
    ],
)
def test_an_epsilon_that_cannot_be(project: Project, epsilon: object, what: str) -> None:
    project.tests(body(epsilon=epsilon) + "\n    def test_other():\n        pass\n")

    result = project.run()

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines([what, "  in: test_model.py::test_model*", "  do: *"])
    result.stdout.no_fnmatch_line("During handling*")


@pytest.mark.parametrize(
    ("argument", "example"),
    [
        ("epsilon", "1e-3"),
        ("atol", "1e-5"),
        ("rtol", "1e-5"),
        ("max_regression", "a number of percent, as 3"),
    ],
)
def test_what_is_no_number_in_a_marker_says_how_it_is_written(
    project: Project, argument: str, example: str
) -> None:
    project.tests(body(**{"epsilon": 1, argument: "3%"}))

    result = project.run()

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            f"{argument} is '3%', not a number",
            f"  in: test_model.py::test_model, @pytest.mark.gptune(...), {argument}=",
            f"  do: write {argument} as {example}",
        ],
        consecutive=True,
    )


@pytest.mark.parametrize("option", ["epsilon", "atol", "rtol", "max-regression"])
@pytest.mark.parametrize("value", ["nan", "-0.5"])
def test_a_number_that_cannot_be_is_an_error_of_each_test(project: Project, option: str, value: str) -> None:
    project.tests(body(epsilon=1))

    result = project.run(f"--gptune-{option}={value}")

    result.assert_outcomes(errors=1)
    name = option.replace("-", "_")
    result.stdout.fnmatch_lines([f"{name} is {value}", f"  in: --gptune-{option}", "  do: write a number*"])


@pytest.mark.parametrize("option", ["epsilon", "atol", "rtol", "max-regression"])
def test_what_is_no_number_is_refused_at_once(project: Project, option: str) -> None:
    project.tests(body(epsilon=1))

    result = project.run(f"--gptune-{option}=much")

    assert result.ret == 4
    result.stderr.fnmatch_lines([f"*error: argument --gptune-{option}: invalid float value: 'much'"])


def test_what_is_no_number_in_the_ini_file_is_refused_at_once(project: Project) -> None:
    project.tests(body())
    project.ini(gptune_epsilon="much")

    result = project.run()

    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: *gptune_epsilon*"])
    result.stderr.no_fnmatch_line("*Traceback*")


def test_metric_of_the_command_line_over_marker_over_ini(project: Project) -> None:
    project.tests(body(epsilon=1e-6))
    project.ini(gptune_metric="l2")  # the mean of squares is below 1e-6
    assert passes(project)

    project.tests(body(epsilon=1e-6, metric="l1"))
    assert not passes(project)
    assert passes(project, "--gptune-metric=cos")


def test_the_report_names_metric_and_epsilon(project: Project) -> None:
    project.tests(body(epsilon=1e-6))

    result = project.run("--gptune-metric=l1", "--gptune-epsilon=0.5")

    result.stdout.fnmatch_lines(["  metric l1, epsilon 0.5, 1 case*"])


@pytest.mark.parametrize("metric", ["linf", "accuracy"])
def test_an_unknown_metric(project: Project, metric: str) -> None:
    project.tests(body(epsilon=1) + "\n    def test_other():\n        pass\n")

    result = project.run(f"--gptune-metric={metric}")

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines([f"unknown metric '{metric}'*", "  do: *lInf*pytest_gptune_metric*"])


def test_a_metric_of_ones_own(project: Project) -> None:
    project.tests(body(epsilon=0.5))
    project.write(
        "conftest.py",
        """
        from pytest_gptune.accuracy import Metric

        def pytest_gptune_metric(name):
            if name == "zero":
                return Metric("zero", lambda actual, golden: 0.0)
            if name == "one":
                return Metric("one", lambda actual, golden: 1.0)
        """,
    )

    assert passes(project, "--gptune-metric=zero")
    assert not passes(project, "--gptune-metric=one")


@pytest.mark.parametrize(
    ("answer", "what", "where"),
    [
        ("1 / 0", "failed: ZeroDivisionError: division by zero", "--gptune-metric, *conftest.py:2"),
        ("max", "returned <built-in function max>, which is no Metric", "--gptune-metric"),
    ],
)
def test_a_metric_hook_that_fails_is_said_at_the_test(
    project: Project, answer: str, what: str, where: str
) -> None:
    project.tests(body(epsilon=0.5) + "\n    def test_other():\n        pass\n")
    project.write("conftest.py", f"def pytest_gptune_metric(name):\n    return {answer}\n")

    # It is not asked for what is built in.
    project.run(ROUTE).assert_outcomes(passed=2, skipped=1)

    result = project.run("--gptune-metric=own")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        [f"the hook pytest_gptune_metric {what}", f"  in: {where}", "  do: *"], consecutive=True
    )
    result.stdout.no_fnmatch_line("*During handling*")


@pytest.mark.parametrize("name", ["atol", "rtol"])
def test_tolerances_of_l0_of_the_command_line_over_marker_over_ini(project: Project, name: str) -> None:
    project.tests(body(epsilon=0, metric="l0"))
    assert not passes(project)
    project.ini(**{f"gptune_{name}": 100})
    assert passes(project)

    project.tests(body(epsilon=0, metric="l0", **{name: 1e-9}))
    assert not passes(project)
    assert passes(project, f"--gptune-{name}=100")


def test_an_inaccurate_route_names_output_place_and_both_values(project: Project) -> None:
    project.tests(body(epsilon=1e-6))

    result = project.run(ROUTE, "-rx")

    (line,) = [line for line in result.outlines if line.startswith("XFAIL")]
    assert "inaccurate" in line
    text = "\n".join(result.outlines)
    for part in ("output 'y'", "loss", "epsilon 1e-06"):
        assert part in text
