"""Ids of routes: what they show, and how a command line picks them."""

from __future__ import annotations

import re

import pytest
from projects import CHECK, MODEL, Project

FAST = "--gptune-search=fast"
DEFAULT = "test_model[default]"
APPROXIMATED = "test_model[ort:optimization.enable_gelu_approximation=1]"
OFF = "test_model[ort:enable_mem_pattern=off]"
MANY = " ".join(
    f"-ort:{name}"
    for name in (
        "execution_mode=[sequential|parallel]",
        "enable_cpu_mem_arena=[on|off]",
        "session.use_device_allocator_for_initializers=[0|1]",
        "session.force_spinning_stop=[0|1]",
    )
)
LONG = f'@pytest.mark.gptune(model="{MODEL}", routes="{MANY}")\ndef test_model(gptune_engine):\n    pass\n'


def test_the_default_route_is_called_default_and_others_by_their_difference(project: Project) -> None:
    project.tests(CHECK)

    assert project.collect("--gptune-search=full") == [
        DEFAULT,
        APPROXIMATED,
        OFF,
        "test_model[ort:enable_mem_pattern=off,ort:optimization.enable_gelu_approximation=1]",
    ]


def test_fixed_knobs_are_not_shown(project: Project) -> None:
    project.tests(CHECK.replace("[on|off]", "off"))

    assert project.collect(FAST) == [DEFAULT, APPROXIMATED]


def test_a_node_id_runs_alone(project: Project) -> None:
    project.tests(CHECK)

    result = project.run(f"test_model.py::{OFF}", FAST, "-v")

    result.assert_outcomes(passed=1, skipped=1)
    assert f"test_model.py::{OFF} PASSED" in result.stdout.str()
    result.stdout.fnmatch_lines(["*incomparable, partial_run*"])


@pytest.mark.long
def test_a_node_id_runs_alone_in_two_processes(project: Project) -> None:
    project.tests(CHECK)

    result = project.run_apart(f"test_model.py::{OFF}", f"test_model.py::{DEFAULT}", FAST, "-n2")

    result.assert_outcomes(passed=2, skipped=1)


@pytest.mark.parametrize(
    ("expression", "ids"),
    [
        ("gelu", [APPROXIMATED]),
        ("enable_mem_pattern", [OFF]),
        ("ort:enable_mem_pattern", [OFF]),
        ("default", [DEFAULT]),
        ("default or gelu", [DEFAULT, APPROXIMATED]),
        ("test_model and not gelu", [DEFAULT, OFF]),
    ],
)
def test_a_keyword_matches_the_names_of_knobs(project: Project, expression: str, ids: list[str]) -> None:
    project.tests(CHECK)

    assert project.collect(FAST, "-k", expression) == ids


def test_deselect_takes_the_whole_id(project: Project) -> None:
    project.tests(CHECK)

    assert project.collect(FAST, f"--deselect=test_model.py::{APPROXIMATED}") == [DEFAULT, OFF]


def test_deselecting_the_default_leaves_nothing_to_judge(project: Project) -> None:
    project.tests(CHECK)

    result = project.run(FAST, f"--deselect=test_model.py::{DEFAULT}", "-rs")

    result.assert_outcomes(passed=1, xfailed=1, skipped=1, deselected=1)
    result.stdout.fnmatch_lines(["SKIPPED * incomparable, partial_run*default route did not run*"])


def test_ids_over_100_characters_are_cut_and_distinct(project: Project) -> None:
    project.tests(LONG)

    collected = project.collect("--gptune-search=full")

    assert len(collected) == len(set(collected)) == 16
    ids = [item.removeprefix("test_model[").removesuffix("]") for item in collected]
    assert max(map(len, ids)) == 100
    cut = [item for item in ids if len(item) == 100]
    assert cut
    assert all(re.search(r"~[0-9a-f]{8}$", item) for item in cut)


def test_a_cut_id_runs_alone(project: Project) -> None:
    project.tests(LONG)
    (last,) = project.collect("--gptune-search=full")[-1:]
    assert "~" in last

    result = project.run(f"test_model.py::{last}", "--gptune-search=full", "-v")

    assert f"test_model.py::{last} PASSED" in result.stdout.str()


def test_ids_do_not_depend_on_the_order_of_the_expression(project: Project) -> None:
    project.tests(CHECK)
    given = "-ort:enable_mem_pattern=off -ort:optimization.enable_gelu_approximation=1"

    (one,) = project.collect(f"--gptune-route={given}")
    (two,) = project.collect(f"--gptune-route={' '.join(reversed(given.split()))}")

    assert one == two


def test_last_failed_runs_a_route_again(project: Project) -> None:
    project.tests(
        CHECK.replace("gptune_golden.check(gptune_engine)", "assert 'off' not in str(gptune_engine.route)")
    )
    first = project.run(FAST, "-p", "cacheprovider")
    assert first.parseoutcomes()["failed"] == 1

    result = project.run(FAST, "-p", "cacheprovider", "--lf", "-v")

    assert f"test_model.py::{OFF} FAILED" in result.stdout.str()
    assert result.parseoutcomes()["failed"] == 1
    assert "passed" not in result.parseoutcomes()
