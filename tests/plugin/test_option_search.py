"""``--gptune-search``, the ini key ``gptune_search`` and the marker's ``search``."""

from __future__ import annotations

import pytest
from projects import CHECK, INACCURATE, MARKER, MODEL, Project

DEFAULT = "test_model[default]"
APPROXIMATED = "test_model[ort:optimization.enable_gelu_approximation=1]"
UNPLANNED = "test_model[ort:enable_mem_pattern=off]"
BOTH = "test_model[ort:enable_mem_pattern=off,ort:optimization.enable_gelu_approximation=1]"


def test_replay_is_the_default_and_runs_the_default_route(project: Project) -> None:
    project.tests(CHECK)

    assert project.collect() == [DEFAULT]
    assert project.collect("--gptune-search=replay") == [DEFAULT]


def test_replay_runs_the_winner_of_the_baseline_too(project: Project) -> None:
    project.tests(CHECK)
    project.baseline("-ort:enable_mem_pattern=off")

    assert project.collect() == [DEFAULT, UNPLANNED]


def test_replay_runs_one_route_where_the_default_won(project: Project) -> None:
    project.tests(CHECK)
    project.baseline("")

    assert project.collect() == [DEFAULT]


def test_fast_changes_one_knob_at_a_time_from_right_to_left(project: Project) -> None:
    project.tests(CHECK)

    assert project.collect("--gptune-search", "fast") == [DEFAULT, APPROXIMATED, UNPLANNED]


def test_full_is_the_product_with_the_rightmost_knob_fastest(project: Project) -> None:
    project.tests(CHECK)

    assert project.collect("--gptune-search", "full") == [DEFAULT, APPROXIMATED, UNPLANNED, BOTH]


def test_full_is_led_by_the_default_route_when_the_lists_omit_it(project: Project) -> None:
    project.tests(CHECK.replace("[on|off]", "[off]"))

    assert project.collect("--gptune-search", "full") == [DEFAULT, UNPLANNED, BOTH]


def test_fast_tunes_every_bounded_knob_of_a_test_without_routes(project: Project) -> None:
    project.tests(f'@pytest.mark.gptune(model="{MODEL}")\ndef test_model(gptune_engine):\n    pass\n')
    project.tests(
        """
        def test_space(gptune_knobs):
            assert gptune_knobs.expression().fast().count == COUNT
        """,
        "test_space.py",
    )

    collected = project.collect("test_model.py", "--gptune-search=fast")

    assert collected[0] == DEFAULT
    assert len(collected) > 15
    space = (project.path / "test_space.py").read_text().replace("COUNT", str(len(collected)))
    project.write("test_space.py", space)
    project.run("test_space.py").assert_outcomes(passed=1)


def test_a_search_runs_its_routes_and_reports_each(project: Project) -> None:
    project.tests(CHECK)

    result = project.run("--gptune-search=full", "-v")

    result.assert_outcomes(passed=2, xfailed=2, skipped=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*search full: 4 of 4 routes: 2 passed, 2 inaccurate"])


def test_command_line_over_marker_over_ini(project: Project) -> None:
    project.tests(CHECK)
    project.ini(gptune_search="full")
    assert len(project.collect()) == 4

    project.tests(CHECK.replace("epsilon", 'search="fast", epsilon'))
    assert len(project.collect()) == 3
    assert len(project.collect("--gptune-search=replay")) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("fsat", ["unknown search 'fsat'", "  in: *", "  do: choose fast, the nearest of replay, fast, *"]),
        ("anything", ["unknown search 'anything'", "  in: *", "  do: choose one of replay, fast, mixed, *"]),
    ],
)
@pytest.mark.parametrize("how", ["command line", "marker", "ini"])
def test_a_search_that_is_not_there_is_an_error_of_the_tests_that_use_it(
    project: Project, given: str, message: list[str], how: str
) -> None:
    body = CHECK.replace("epsilon", f'search="{given}", epsilon') if how == "marker" else CHECK
    project.tests(body + "\n    def test_other():\n        pass\n")
    if how == "ini":
        project.ini(gptune_search=given)

    result = project.run(*([f"--gptune-search={given}"] if how == "command line" else []))

    result.assert_outcomes(passed=1, errors=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(message, consecutive=True)
    result.stdout.no_fnmatch_line("During handling*")


def test_the_message_names_where_an_unknown_search_stands(project: Project) -> None:
    project.tests(CHECK.replace("epsilon", 'search="fsat", epsilon'))

    result = project.run()

    result.stdout.fnmatch_lines(["  in: test_model.py::test_model, @pytest.mark.gptune(...), search="])


def test_the_baselines_route_that_the_search_lacks_runs_after_it(project: Project) -> None:
    project.tests(f"{MARKER.replace('[on|off]', '[on]')}\ndef test_model(gptune_engine):\n    pass\n")
    project.baseline(INACCURATE + " -ort:enable_mem_pattern=off")

    assert project.collect("--gptune-search=fast") == [DEFAULT, APPROXIMATED, BOTH]
