"""The user's own parameters beside the routes: each combination of them is a tuning of its own."""

from __future__ import annotations

import json

import pytest
from projects import INACCURATE, MARKER, MODEL, Project

OFF = "ort:enable_mem_pattern=off"
PLAIN = f'@pytest.mark.gptune(model="{MODEL}", epsilon=1e-5, routes="-ort:enable_mem_pattern=[on|off]")'
FAST = "--gptune-search=fast"


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_parametrize_mark_before_and_after_ours(project: Project, order: str) -> None:
    own = "@pytest.mark.parametrize('n', [1, 2])"
    marks = f"{own}\n{PLAIN}" if order == "before" else f"{PLAIN}\n{own}"
    project.tests(f"{marks}\ndef test_model(n, gptune_engine):\n    assert n\n")

    assert project.collect(FAST) == [
        "test_model[1-default]",
        f"test_model[1-{OFF}]",
        "test_model[2-default]",
        f"test_model[2-{OFF}]",
    ]


def test_several_parameters_and_a_fixture_with_parameters(project: Project) -> None:
    project.tests(
        f"""
        @pytest.fixture(params=["u", "v"])
        def letter(request):
            return request.param

        @pytest.mark.parametrize("a", [1, 2])
        @pytest.mark.parametrize("b", [3])
        {PLAIN}
        def test_model(a, b, letter, gptune_engine):
            assert letter in "uv"
        """
    )

    collected = project.collect()

    assert len(collected) == 4
    assert all(item.endswith("-default]") for item in collected)
    project.run().assert_outcomes(passed=4, skipped=4)


def test_a_hook_of_the_users_that_parametrises(project: Project) -> None:
    project.write(
        "conftest.py",
        """
        def pytest_generate_tests(metafunc):
            if "late" in metafunc.fixturenames:
                metafunc.parametrize("late", [1, 2])
        """,
    )
    project.tests(
        f"""
        def pytest_generate_tests(metafunc):
            if "early" in metafunc.fixturenames:
                metafunc.parametrize("early", ["x"])

        {PLAIN}
        def test_model(early, late, gptune_engine):
            pass
        """
    )

    collected = project.collect()
    assert len(collected) == 2
    assert all(item.endswith("-default]") for item in collected)


def test_a_parametrised_class(project: Project) -> None:
    project.tests(
        f"""
        @pytest.mark.parametrize("n", [1, 2])
        class TestEngines:
            {PLAIN}
            def test_model(self, n, gptune_engine):
                pass
        """
    )

    assert project.collect() == ["TestEngines::test_model[1-default]", "TestEngines::test_model[2-default]"]


def test_each_combination_has_its_own_golden(project: Project) -> None:
    project.tests(
        f"""
        @pytest.mark.parametrize("n", [1, 2])
        {PLAIN}
        def test_model(n, gptune_engine, gptune_golden):
            gptune_golden.check(gptune_engine)
        """,
        golden="test_model[1]",
    )

    result = project.run(FAST)

    result.assert_outcomes(passed=2, errors=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "  in: test_model.py::test_model?2]: *test_model?2].golden.npz",
            "  do: * 'test_model.py::test_model' *",
        ]
    )


def test_each_combination_has_its_own_baseline_and_verdict(project: Project) -> None:
    project.tests(
        f"""
        @pytest.mark.parametrize("n", [1, 2])
        {PLAIN}
        def test_model(n, gptune):
            gptune.check()
        """,
        golden="test_model[1]",
    )
    project.golden("test_model[2]")

    result = project.run(FAST, "--gptune-update-baseline", "-v")

    result.assert_outcomes(passed=4, skipped=2)
    for n in (1, 2):
        assert f"test_model.py::test_model::gptune-gate[{n}] SKIPPED" in result.stdout.str()
        baseline = json.loads(project.baseline_path(f"test_model[{n}]").read_text())
        assert len(baseline["entries"]) == 1


def test_a_baselines_route_runs_only_where_its_own_baseline_has_it(project: Project) -> None:
    project.tests(
        f"""
        @pytest.mark.parametrize("n", [1, 2])
        {PLAIN}
        def test_model(n, gptune_engine):
            pass

        {PLAIN}
        def test_model_2(gptune_engine):
            pass
        """
    )
    project.baseline(f"-{OFF}", "test_model[2]")

    assert project.collect() == [
        "test_model[1-default]",
        "test_model[2-default]",
        f"test_model[2-{OFF}]",
        "test_model_2[default]",
    ]


def test_a_baselines_route_is_guarded_only_where_its_own_baseline_has_it(project: Project) -> None:
    project.tests(
        f"""
        @pytest.mark.parametrize("n", [1, 2])
        {MARKER}
        def test_model(n, gptune_engine, gptune_golden):
            gptune_golden.check(gptune_engine)
        """,
        golden="test_model[1]",
    )
    project.golden("test_model[2]")
    project.baseline(INACCURATE, "test_model[2]")

    result = project.run(FAST)

    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["xfailed"], outcomes["failed"]) == (4, 1, 2)


def test_a_baseline_of_another_machine_with_a_route_that_is_not_here(project: Project) -> None:
    project.tests(f"{PLAIN}\ndef test_model(gptune):\n    gptune.check()\n")
    project.baseline("-ort:intra_op_num_threads=60000")

    result = project.run("-rs")

    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["SKIPPED * incomparable, route_unavailable. the baseline's route '-ort:intra_op_num_threads=60000'*"]
    )


@pytest.mark.parametrize(
    "value", ["a-default", "default", "x[1]", "a/b", "..", "CON", "ä", " ", "a::b", "-", "x" * 300]
)
def test_ids_of_every_kind_keep_their_own_records(project: Project, value: str) -> None:
    project.tests(
        f"""
        @pytest.mark.parametrize("text", [{value!r}, "other"])
        {PLAIN}
        def test_model(text, gptune_engine, gptune_golden):
            gptune_golden.check(gptune_engine)
        """,
        golden=None,
    )

    result = project.run(FAST, "--gptune-update-goldens", "--gptune-report=x.json")

    result.assert_outcomes(passed=4, skipped=2)
    goldens = sorted(project.path.rglob("*.npz"))
    assert len(goldens) == 2
    assert {path.parent for path in goldens} == {project.path / "__gptune__" / "test_model"}
    tests = json.loads((project.path / "x.json").read_text())["tests"]
    assert [len(test["routes"]) for test in tests] == [2, 2]
    project.run(FAST).assert_outcomes(passed=4, skipped=2)


def test_user_ids_that_are_repeated_are_told_apart(project: Project) -> None:
    project.tests(
        f"""
        @pytest.mark.parametrize("n", [1, 2], ids=["same", "same"])
        {PLAIN}
        def test_model(n, gptune_engine, gptune_golden):
            gptune_golden.check(gptune_engine)
        """,
        golden=None,
    )

    project.run(FAST, "--gptune-update-goldens").assert_outcomes(passed=4, skipped=2)

    assert len(list(project.path.rglob("*.npz"))) == 2


def test_a_parameter_without_values(project: Project) -> None:
    project.tests(
        f"""
        @pytest.mark.parametrize("n", [])
        {PLAIN}
        def test_model(n, gptune_engine):
            pass
        """
    )

    result = project.run(FAST)

    assert result.ret == 0
    assert "failed" not in result.parseoutcomes()
    assert "errors" not in result.parseoutcomes()


def test_parameters_named_as_our_fixture_are_refused(project: Project) -> None:
    project.tests(
        f"""
        @pytest.mark.parametrize("gptune_route", ["-ort:enable_mem_pattern=off"])
        {PLAIN}
        def test_model(gptune_route, gptune_engine):
            pass
        """
    )

    result = project.run()

    assert result.ret == 2
    result.stdout.fnmatch_lines(["*duplicate parametrization of 'gptune_route'*"])


def test_marks_of_a_parameter_set_stay_with_it(project: Project) -> None:
    project.tests(
        f"""
        @pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.skip(reason="slow"))])
        {PLAIN}
        def test_model(n, gptune_engine):
            pass
        """
    )

    result = project.run(FAST)

    assert result.parseoutcomes()["passed"] == 2
    assert result.parseoutcomes()["skipped"] >= 2
