"""Markers and fixtures where they cannot work: an error of that test alone, with what to write instead."""

from __future__ import annotations

from textwrap import dedent

import pytest
from projects import CHECK, MARKER, MODEL, Project

OTHER = "\ndef test_other():\n    pass\n"


def says(project: Project, *lines: str, errors: int = 1, passed: int = 1) -> None:
    """Run, and expect the message of these lines once for each error, and nothing around it."""
    result = project.run()

    result.assert_outcomes(errors=errors, passed=passed)
    assert result.ret == 1
    result.stdout.fnmatch_lines(lines, consecutive=True)
    for unwanted in ("During handling*", "Traceback*", "E  *"):
        result.stdout.no_fnmatch_line(unwanted)


def test_a_marker_without_a_fixture(project: Project) -> None:
    project.tests(f"{MARKER}\ndef test_model():\n    pass\n{OTHER}")

    says(
        project,
        "the test has the gptune marker and no gptune fixture, so nothing would be tuned",
        "  in: test_model.py::test_model, @pytest.mark.gptune(...)",
        "  do: take the fixture gptune (or gptune_engine, gptune_golden, gptune_benchmark) as an argument",
    )


def test_a_fixture_without_a_marker(project: Project) -> None:
    project.tests(f"def test_model(gptune):\n    pass\n{OTHER}")

    says(
        project,
        "the test names no model",
        "  in: test_model.py::test_model, @pytest.mark.gptune(...)",
        "  do: write @pytest.mark.gptune(model='models/encoder.onnx', ...)",
    )


@pytest.mark.parametrize(
    ("argument", "mend"),
    [
        ("epsilom=1", "write epsilon="),
        ("xyz=1", "use one of: model, epsilon, metric, atol, rtol, routes, reference, inputs, *"),
    ],
)
def test_an_unknown_argument(project: Project, argument: str, mend: str) -> None:
    project.tests(dedent(CHECK).replace("epsilon=1e-5", argument) + OTHER)

    says(
        project,
        f"the gptune marker has no argument '{argument.partition('=')[0]}'",
        "  in: test_model.py::test_model, @pytest.mark.gptune(...)",
        f"  do: {mend}",
    )


def test_a_positional_argument(project: Project) -> None:
    project.tests(f'@pytest.mark.gptune("{MODEL}")\ndef test_model(gptune):\n    pass\n{OTHER}')

    says(
        project,
        f"the gptune marker takes no positional argument, it has '{MODEL}'",
        "  in: test_model.py::test_model, @pytest.mark.gptune(...)",
        f"  do: write model='{MODEL}'",
    )


def test_a_model_that_is_no_path(project: Project) -> None:
    project.tests(f"@pytest.mark.gptune(model=17)\ndef test_model(gptune_engine):\n    pass\n{OTHER}")

    says(project, "model is 17, not a path", "  in: *model=", "  do: write model='models/encoder.onnx'")


def test_a_unittest_class(project: Project) -> None:
    project.tests(
        f"""
        import unittest

        {MARKER}
        class TestModel(unittest.TestCase):
            def test_model(self):
                pass

        def test_other():
            pass
        """
    )

    says(
        project,
        "the gptune marker is on a unittest class, whose tests take no fixtures",
        "  in: test_model.py::TestModel::test_model, @pytest.mark.gptune(...)",
        "  do: write the test as a function, or as a class that does not derive from unittest.TestCase",
    )


def test_a_marker_in_a_parameter_set(project: Project) -> None:
    project.tests(
        f"""
        @pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.gptune(epsilon=1))])
        {MARKER}
        def test_model(n, gptune_engine):
            pass
        """
    )
    result = project.run()

    result.assert_outcomes(errors=1, passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "the gptune marker is in pytest.param(marks=), where it comes too late to choose the routes",
            "  in: test_model.py::test_model?2-default]",
            "  do: put the marker on the test function; for a model of its own write a test of its own",
        ],
        consecutive=True,
    )


@pytest.mark.parametrize("name", ["gptune", "gptune_engine", "gptune_route", "gptune_golden"])
def test_a_fixture_asked_for_too_late(project: Project, name: str) -> None:
    project.tests(f"def test_model(request):\n    request.getfixturevalue('{name}')\n{OTHER}")

    result = project.run()

    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "a gptune fixture was asked for with request.getfixturevalue(), too late to choose the routes",
            "  in: test_model.py::test_model",
            "  do: take the fixture as an argument of the test or of a fixture it uses",
        ],
        consecutive=True,
    )
    result.stdout.no_fnmatch_line("During handling*")


def test_a_fixture_asked_for_late_of_a_test_that_has_routes(project: Project) -> None:
    project.tests(
        f"""
        {MARKER}
        def test_model(request, gptune_engine):
            request.getfixturevalue("gptune_golden").check(gptune_engine)
        """
    )

    project.run().assert_outcomes(passed=1, skipped=1)


def test_a_mistake_is_said_once_however_many_routes_there_would_be(project: Project) -> None:
    project.tests(CHECK.replace(MODEL, "absent.onnx"))

    result = project.run("--gptune-search=full")

    result.assert_outcomes(errors=1)
    # Whether the short summary repeats the message depends on the environment variable CI.
    assert result.stdout.str().count("ERROR at setup of ") == 1


def test_a_mistake_of_a_parametrised_test_is_said_for_each_of_the_users_parameters(project: Project) -> None:
    project.tests(
        CHECK.replace(MODEL, "absent.onnx").replace(
            "def test_model(", "@pytest.mark.parametrize('n', [1, 2])\n    def test_model(n, "
        )
    )

    project.run("--gptune-search=full").assert_outcomes(errors=2)


def test_a_mistake_in_two_processes(project: Project) -> None:
    project.tests(dedent(CHECK).replace(MODEL, "absent.onnx") + OTHER)

    result = project.run_apart("--gptune-search=full", "-n2")

    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(
        ["model 'absent.onnx' does not exist*", "  in: *", "  do: *"], consecutive=True
    )


def test_a_module_mark_does_not_concern_doctests(project: Project) -> None:
    project.tests(
        f"""
        pytestmark = pytest.mark.gptune(model="{MODEL}", epsilon=1e-5)

        def double(x):
            '''
            >>> double(1)
            2
            '''
            return 2 * x

        def test_model(gptune_engine):
            pass
        """
    )

    result = project.run("--doctest-modules")

    result.assert_outcomes(passed=2, skipped=1)


def test_a_mark_of_a_module_or_class_leaves_plain_tests_alone(project: Project) -> None:
    project.tests(
        f"""
        pytestmark = pytest.mark.gptune(model="{MODEL}", epsilon=1e-5)

        def test_plain():
            pass

        @pytest.mark.gptune(metric="l1")
        class TestNet:
            def test_plain(self):
                pass
        """
    )

    project.run().assert_outcomes(passed=2)
