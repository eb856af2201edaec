"""``--gptune-dry-run``: print the routes and exit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from projects import CHECK, MODEL, ROUTES, Project

LINES = [
    f"test_model.py::test_model: 3 routes of {ROUTES}",
    "     1  -ort:enable_mem_pattern=on -ort:optimization.enable_gelu_approximation=0",
    "     2  -ort:enable_mem_pattern=on -ort:optimization.enable_gelu_approximation=1",
    "     3  -ort:enable_mem_pattern=off -ort:optimization.enable_gelu_approximation=0",
]
UNNAMED = f'@pytest.mark.gptune(model="{MODEL}")\ndef test_model(gptune_engine):\n    pass\n'


def printed(lines: list[str]) -> list[str]:
    """From the first test to the end of its routes."""
    first = next(number for number, line in enumerate(lines) if "::" in line)
    return lines[first : lines.index("", first)]


def test_it_prints_the_routes_and_runs_nothing(project: Project) -> None:
    project.tests(CHECK + "        raise AssertionError\n")

    result = project.run("--gptune-search=fast", "--gptune-dry-run")

    assert result.ret == 0
    assert printed(result.outlines) == LINES
    assert result.parseoutcomes() == {}


def test_it_needs_no_golden(project: Project) -> None:
    project.tests(CHECK, golden=None)

    result = project.run("--gptune-search=fast", "--gptune-dry-run")

    assert result.ret == 0
    assert printed(result.outlines) == LINES
    assert not project.golden_path().exists()


def test_it_turns_xdist_off(project: Project) -> None:
    project.tests(CHECK)

    result = project.run_apart("--gptune-search=fast", "--gptune-dry-run", "-n", "2")

    assert result.ret == 0
    assert printed(result.outlines) == LINES
    result.stdout.no_fnmatch_line("*workers*")


def test_routes_without_an_expression_are_listed_under_their_test(project: Project) -> None:
    project.tests(UNNAMED)

    result = project.run("--gptune-dry-run")

    assert printed(result.outlines)[0] == "test_model.py::test_model: 1 routes"


def test_each_combination_of_the_users_parameters_is_a_test_of_its_own(project: Project) -> None:
    parametrised = "@pytest.mark.parametrize('n', [1, 2])\n    def test_model(n, "
    project.tests(CHECK.replace("def test_model(", parametrised))

    result = project.run("--gptune-search=fast", "--gptune-dry-run")

    result.stdout.fnmatch_lines(
        ["test_model.py::test_model[[]1]: 3 routes*", "     3*", "test_model.py::test_model[[]2]: 3 routes*"]
    )


def test_deselected_routes_are_not_printed(project: Project) -> None:
    project.tests(CHECK)

    result = project.run("--gptune-search=fast", "--gptune-dry-run", "-k", "gelu")

    assert [line.split()[0] for line in printed(result.outlines)[1:]] == ["1"]


@pytest.mark.parametrize("search", ["mixed", "coordinate"])
def test_it_refuses_a_search_whose_routes_depend_on_measurements(project: Project, search: str) -> None:
    project.tests(CHECK)

    result = project.run(f"--gptune-search={search}", "--gptune-dry-run")

    assert result.ret == 4
    result.stderr.fnmatch_lines(
        [
            f"ERROR: --gptune-dry-run cannot print the routes of {search}",
            "  do: its later routes depend on what the earlier ones measure: use fast or full",
        ]
    )


def test_a_test_that_cannot_be_planned_fails_the_run_and_the_others_are_printed(project: Project) -> None:
    project.tests(CHECK + "\n" + CHECK.replace("test_model", "test_other").replace(MODEL, "absent.onnx"))

    result = project.run("--gptune-search=fast", "--gptune-dry-run")

    assert result.ret == 1
    assert LINES[-1] in result.outlines
    result.stdout.fnmatch_lines(["test_model.py::test_other: model 'absent.onnx' does not exist*", "  do: *"])


def test_a_backend_that_is_not_there_is_said(project: Project, add_toy_backend: Callable[..., None]) -> None:
    add_toy_backend(missing=True)
    project.tests(f'@pytest.mark.gptune(model="{MODEL}", backend="toy")\ndef test_model(gptune):\n    pass\n')

    result = project.run("--gptune-dry-run")

    result.stdout.fnmatch_lines(["test_model.py::test_model: skipped: no toy device is there"])


def test_without_a_test_of_ours(project: Project) -> None:
    project.tests("def test_other():\n    pass\n")

    result = project.run("--gptune-dry-run")

    assert result.ret == 0
    assert result.parseoutcomes() == {}


def test_without_a_terminal_reporter(project: Project) -> None:
    project.tests(CHECK)

    result = project.run("--gptune-search=fast", "--gptune-dry-run", "-p", "no:terminal")

    assert [line for line in result.outlines if line in LINES] == LINES


def test_two_hundred_knobs_take_less_than_a_second(
    project: Project, add_toy_backend: Callable[..., None]
) -> None:
    resource = pytest.importorskip("resource", reason="processor time of child processes")
    project.tests(UNNAMED, golden=None)

    def seconds(knobs: int, routes: int) -> float:
        add_toy_backend(knobs=knobs)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = project.run_apart("--gptune-backend=toy", "--gptune-search=fast", "--gptune-dry-run")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert printed(result.outlines)[0] == f"test_model.py::test_model: {routes} routes"
        assert len(printed(result.outlines)) == routes + 1
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # What pytest and the imports cost is in both; processor time, since a busy machine takes no more of it.
    assert seconds(200, 201) - seconds(1, 2) < 1.0
