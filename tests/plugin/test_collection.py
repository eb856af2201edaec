"""Tests with gptune fixtures beside everything else that pytest lets tests do."""

from __future__ import annotations

import itertools

import pytest
from projects import CHECK, MARKER, MEASURE, MODEL, Project

FIXTURES = ("gptune_engine", "gptune_golden", "gptune_benchmark", "gptune_route", "gptune_knobs")

SUBSETS = [subset for size in (1, 2, 3) for subset in itertools.combinations(FIXTURES, size)]


@pytest.mark.parametrize("subset", SUBSETS, ids=lambda subset: "+".join(subset))
def test_fixtures_in_any_subset_and_order(project: Project, subset: tuple[str, ...]) -> None:
    project.tests(f"{MARKER}\ndef test_model({', '.join(reversed(subset))}):\n    pass\n")

    result = project.run("--gptune-search=fast", "--benchmark-disable")

    outcomes = result.parseoutcomes()
    assert outcomes["passed"] == (1 if subset == ("gptune_knobs",) else 3)
    assert "failed" not in outcomes
    assert "errors" not in outcomes


def test_one_fixture_for_everything(project: Project) -> None:
    project.tests(
        f"""
        {MARKER}
        def test_model(gptune, gptune_route, gptune_engine):
            assert gptune.route is gptune_route is gptune_engine.route
            assert gptune.engine is gptune_engine
            assert gptune.check() > 0
        """
    )

    project.run().assert_outcomes(passed=1, skipped=1)


def test_the_engine_is_called_with_arrays_by_name(project: Project) -> None:
    project.tests(
        f"""
        import numpy as np

        {MARKER}
        def test_model(gptune_engine, gptune_golden):
            x = np.zeros((2, 8))
            assert np.array_equal(gptune_engine({{"x": x}})["y"], gptune_engine(x=x)["y"])
            assert list(gptune_engine(gptune_golden.cases[0].inputs)) == ["y"]
            assert gptune_engine.info.digest
        """
    )

    project.run("--gptune-search=fast").assert_outcomes(passed=3, skipped=1)


def test_inputs_that_the_model_does_not_have_fail_the_test(project: Project) -> None:
    project.tests(f"{MARKER}\ndef test_model(gptune_engine):\n    gptune_engine(z=[1.0])\n")

    result = project.run()

    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["*the inputs do not fit the model*"])


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("np.ones((2, 8), 'f')", "ndarray"),
        ("np.ones(1, 'f')", "ndarray"),
        ("inputs=np.ones((2, 8), 'f')", "ndarray"),
        ("[]", "list"),
        ("[1.0], x=[1.0]", "list"),
        ("0", "int"),
    ],
)
def test_inputs_without_names_fail_the_test_with_one_message(project: Project, given: str, kind: str) -> None:
    project.tests(
        f"import numpy as np\n{MARKER}\ndef test_model(gptune_engine):\n    gptune_engine({given})\n"
    )

    result = project.run()

    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(
        [
            f"the engine was called with a {kind} instead of arrays by input name",
            "  in: test_model.py::test_model",
            "  do: call it with a mapping, as gptune_engine({'x': array})",
        ],
        consecutive=True,
    )
    result.stdout.no_fnmatch_line("*ValueError*")


def test_a_class(project: Project) -> None:
    project.tests(
        f"""
        class TestEngines:
            {MARKER}
            def test_model(self, gptune_engine, gptune_golden):
                gptune_golden.check(gptune_engine)

            class TestNested:
                {MARKER}
                def test_model(self, gptune_engine, gptune_golden):
                    gptune_golden.check(gptune_engine)
        """,
        golden="TestEngines.test_model",
    )
    project.golden("TestEngines.TestNested.test_model")

    result = project.run("--gptune-report=x.json")

    result.assert_outcomes(passed=2, skipped=2)
    text = (project.path / "x.json").read_text()
    assert '"test_model.py::TestEngines::TestNested::test_model"' in text


def test_a_class_that_is_inherited_is_another_test(project: Project) -> None:
    project.tests(
        f"""
        class Base:
            {MARKER}
            def test_model(self, gptune_engine, gptune_golden):
                gptune_golden.check(gptune_engine)

        class TestOne(Base):
            pass

        class TestTwo(Base):
            pass
        """,
        golden="TestOne.test_model",
    )

    result = project.run()

    result.assert_outcomes(passed=1, errors=1, skipped=1)
    result.stdout.fnmatch_lines(["  in: test_model.py::TestTwo::test_model: *TestTwo.test_model.golden.npz"])


def test_markers_of_module_class_and_function_are_merged_and_the_nearest_wins(project: Project) -> None:
    project.tests(
        f"""
        pytestmark = pytest.mark.gptune(model="{MODEL}", epsilon=1e-9, metric="l1", routes="-ort:nonsense=1")

        @pytest.mark.gptune(routes="-ort:enable_mem_pattern=[on|off]", epsilon=1e-8)
        class TestEngines:
            @pytest.mark.gptune(epsilon=0.25)
            def test_model(self, gptune_engine, gptune_golden):
                gptune_golden.check(gptune_engine)
        """,
        golden="TestEngines.test_model",
    )

    result = project.run("--gptune-search=fast")

    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["  metric l1, epsilon 0.25, *"])


def test_a_list_of_module_marks(project: Project) -> None:
    project.tests(
        f"""
        pytestmark = [pytest.mark.gptune(model="{MODEL}"), pytest.mark.gptune(epsilon=0.25)]

        def test_model(gptune_engine, gptune_golden):
            gptune_golden.check(gptune_engine)
        """
    )

    project.run().assert_outcomes(passed=1, skipped=1)


def test_two_markers_on_a_function_the_lower_wins(project: Project) -> None:
    project.tests(
        f"""
        @pytest.mark.gptune(epsilon=1e-9, metric="l1")
        @pytest.mark.gptune(model="{MODEL}", epsilon=0.25)
        def test_model(gptune_engine, gptune_golden):
            gptune_golden.check(gptune_engine)
        """
    )

    result = project.run()

    result.stdout.fnmatch_lines(["  metric l1, epsilon 0.25, *"])


def test_a_marker_made_by_a_helper(project: Project) -> None:
    project.tests(
        f"""
        tuned = pytest.mark.gptune(model="{MODEL}", epsilon=1e-5)

        @tuned.with_args(epsilon=0.25)
        def test_model(gptune_engine, gptune_golden):
            gptune_golden.check(gptune_engine)
        """
    )

    result = project.run()

    result.stdout.fnmatch_lines(["  metric lInf, epsilon 0.25, *"])


def test_a_users_fixture_that_takes_the_engine(project: Project) -> None:
    project.tests(
        f"""
        @pytest.fixture
        def run(gptune_engine):
            return lambda x: gptune_engine(x=x)["y"]

        @pytest.fixture
        def checked(gptune):
            gptune.golden.check(gptune.engine)
            return gptune

        {MARKER}
        def test_model(run, checked):
            assert run([[1.0] * 8] * 2).shape == (2, 8)
        """
    )

    result = project.run("--gptune-search=fast")

    result.assert_outcomes(passed=2, xfailed=1, skipped=1)


def test_an_autouse_fixture_that_takes_the_engine(project: Project) -> None:
    project.tests(
        f"""
        @pytest.fixture(autouse=True)
        def check(gptune_engine, gptune_golden):
            gptune_golden.check(gptune_engine)

        {MARKER}
        def test_model():
            pass
        """
    )

    project.run("--gptune-search=fast").assert_outcomes(passed=2, xfailed=1, skipped=1)


def test_a_fixture_that_is_used_by_a_mark(project: Project) -> None:
    project.tests(
        f"""
        @pytest.mark.usefixtures("gptune_engine")
        {MARKER}
        def test_model():
            pass
        """
    )

    assert len(project.collect("--gptune-search=fast")) == 3
    project.run().assert_outcomes(passed=1, skipped=1)


def test_a_fixture_of_wider_scope_cannot_take_the_engine(project: Project) -> None:
    project.tests(
        f"""
        @pytest.fixture(scope="module")
        def wide(gptune_engine):
            pass

        {MARKER}
        def test_model(wide):
            pass
        """
    )

    result = project.run()

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ScopeMismatch*"])


def test_a_users_fixture_may_stand_in_for_ours(project: Project) -> None:
    project.tests(
        f"""
        @pytest.fixture
        def gptune_engine(gptune_engine):
            gptune_engine.label = "mine"
            return gptune_engine

        {MARKER}
        def test_model(gptune):
            assert gptune.engine.label == "mine"
        """
    )

    project.run("--gptune-search=fast", "--benchmark-disable").assert_outcomes(passed=3, skipped=1)


def test_a_test_collected_twice_is_one_tuning(project: Project) -> None:
    project.tests(CHECK)

    result = project.run("test_model.py", "test_model.py::test_model", "--gptune-search=fast")

    result.assert_outcomes(passed=2, xfailed=1, skipped=1)


def test_equal_names_in_two_folders_are_two_tests(project: Project) -> None:
    for folder in ("one", "two"):
        project.write(f"{folder}/__init__.py", "")
        project.tests(CHECK, f"{folder}/test_model.py")

    project.run().assert_outcomes(passed=2, skipped=2)


def test_the_model_is_sought_beside_the_test_first_then_in_the_root_folder(project: Project) -> None:
    project.tests(CHECK, "tests/test_model.py")
    project.run().assert_outcomes(passed=1, skipped=1)

    project.write(f"tests/{MODEL}", "not a model")
    result = project.run()

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["not an ONNX model*", f"  in: *tests?{MODEL}"])


def test_an_absolute_path_and_a_path_object(project: Project) -> None:
    project.tests(
        f"""
        import pathlib

        @pytest.mark.gptune(model=pathlib.Path(__file__).resolve().parent / "{MODEL}", epsilon=1e-5)
        def test_model(gptune_engine, gptune_golden):
            gptune_golden.check(gptune_engine)
        """
    )

    project.run().assert_outcomes(passed=1, skipped=1)


def test_doctests_and_plain_tests_are_left_alone(project: Project) -> None:
    project.tests(
        """
        def double(x):
            '''
            >>> double(2)
            4
            '''
            return 2 * x

        def test_plain(tmp_path):
            assert tmp_path
        """
    )

    project.run("--doctest-modules").assert_outcomes(passed=2)


def test_collection_alone_builds_nothing_and_judges_nothing(project: Project) -> None:
    project.tests(CHECK)

    result = project.run("--collect-only", "--gptune-search=fast")

    assert result.ret == 0
    result.stdout.no_fnmatch_line("*gptune-gate*")
    result.stdout.no_fnmatch_line("*= gptune =*")


def test_setup_plan_and_fixture_listing_do_not_break(project: Project) -> None:
    project.tests(CHECK)

    assert project.run("--setup-plan").ret == 0
    assert project.run("--fixtures-per-test").ret == 0


def test_strictness_of_every_kind(project: Project) -> None:
    project.tests(MEASURE)

    result = project.run(
        "-Werror", "--strict-config", "-o", "strict=true", "--import-mode=importlib", "--gptune-search=fast"
    )

    result.assert_outcomes(passed=2, xfailed=1, skipped=1)
    result.stdout.no_fnmatch_line("*warning*")


def test_a_file_outside_the_root_folder_is_named_as_a_command_line_names_it(project: Project) -> None:
    project.write("root/pytest.ini", (project.path / "pytest.ini").read_text())
    project.tests(CHECK.replace(MODEL, f"../{MODEL}"), "other/test_model.py", golden=None)

    result = project.run("--rootdir=root", "-c", "root/pytest.ini", "other/test_model.py")

    result.stdout.fnmatch_lines(
        ["  do: python -m pytest 'other?test_model.py::test_model' --gptune-update-goldens, then commit it"]
    )
