"""Keys that only the ini file has."""

from __future__ import annotations

import re

import pytest
from projects import CHECK, MEASURE, MODEL, Project

from pytest_gptune.plugin.options import INI_KEYS, INI_ONLY, OPTIONS

UNNAMED = f'@pytest.mark.gptune(model="{MODEL}")\ndef test_model(gptune_engine):\n    pass\n'


def test_max_routes_holds_for_the_first_routes_of_a_search(project: Project) -> None:
    project.tests(CHECK + "\n    def test_other():\n        pass\n")
    project.ini(gptune_max_routes=3)
    assert len(project.collect("--gptune-search=fast", "-k", "not other")) == 3

    result = project.run("--gptune-search=full")

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "the full search has 4 routes, more than gptune_max_routes = 3",
            "  in: --gptune-search",
            "  do: list fewer knobs or values, choose --gptune-search fast, or raise gptune_max_routes",
        ],
        consecutive=True,
    )


def test_ten_thousand_routes_are_the_limit_where_nothing_says_otherwise(project: Project) -> None:
    project.tests(UNNAMED)

    result = project.run("--gptune-search=full")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["the full search has * routes, more than gptune_max_routes = 10000"])


def test_a_replay_is_not_limited(project: Project) -> None:
    project.tests(UNNAMED)
    project.ini(gptune_max_routes=1)

    assert project.collect() == ["test_model[default]"]


@pytest.mark.parametrize("key", ["gptune_max_routes", "gptune_final_builds"])
@pytest.mark.parametrize("value", [0, -3])
def test_a_count_that_cannot_be(project: Project, key: str, value: int) -> None:
    project.tests(CHECK)
    project.ini(**{key: value})

    result = project.run()

    assert result.ret == 1
    result.stdout.fnmatch_lines([f"ini {key} is {value}", "  do: write a whole number of at least 1"])


@pytest.mark.parametrize(
    ("key", "value"),
    [("gptune_max_routes", "many"), ("gptune_require_baseline", "perhaps"), ("gptune_rtol", "1e-5 or so")],
)
def test_a_value_of_another_type_names_its_key(project: Project, key: str, value: str) -> None:
    project.tests(CHECK)
    project.ini(**{key: value})

    result = project.run()

    assert result.ret == 4
    result.stderr.fnmatch_lines([f"ERROR: ini {key} cannot be used: *", "  do: correct its value"])
    result.stderr.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        ("gptune_ambiguous", "warn or fail"),
        ("gptune_gate", "auto, paired, absolute, relative or off"),
        ("gptune_isolation", "process or none"),
    ],
)
def test_a_word_that_is_none_of_a_key(project: Project, key: str, allowed: str) -> None:
    project.tests(CHECK)
    project.ini(**{key: "perhaps"})

    result = project.run()

    assert result.ret == 4
    result.stderr.fnmatch_lines([f"ERROR: ini {key} is 'perhaps'", f"  do: write {allowed}"])


def test_keys_are_read_from_pyproject_too(project: Project) -> None:
    project.tests(CHECK)
    (project.path / "pytest.ini").unlink()
    project.write(
        "pyproject.toml",
        """
        [tool.pytest.ini_options]
        gptune_search = "fast"
        gptune_epsilon = 1
        gptune_isolation = "none"
        gptune_require_baseline = true
        """,
    )

    result = project.run()

    result.assert_outcomes(passed=2, xfailed=1, failed=1)
    result.stdout.fnmatch_lines(["*ini gptune_require_baseline makes this a failure*"])


def test_without_a_baseline_the_verdict_is_skipped_and_the_next_command_named(project: Project) -> None:
    project.tests(MEASURE)

    result = project.run("-rs")

    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "  verdict: new. no baseline yet: make one and commit it.",
            "  next:    python -m pytest 'test_model.py::test_model' --gptune-search fast *-baseline",
            "SKIPPED * new. no baseline yet: make one and commit it.*",
        ]
    )


def test_a_baseline_may_be_required(project: Project) -> None:
    project.tests(MEASURE)
    project.ini(gptune_require_baseline="true")

    result = project.run()

    result.assert_outcomes(passed=1, failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*= FAILURES =*",
            "*gptune-gate*",
            "new. no baseline yet: make one and commit it.*",
            "ini gptune_require_baseline makes this a failure.",
        ]
    )


def test_making_the_baseline_is_no_failure_where_one_is_required(project: Project) -> None:
    project.tests(MEASURE)
    project.ini(gptune_require_baseline="true")

    result = project.run("--gptune-search=fast", "--gptune-update-baseline")

    result.assert_outcomes(passed=2, xfailed=1, skipped=1)
    assert project.baseline_path().exists()


def test_help_lists_every_option_and_key(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    text = project.run("--help").stdout.str()

    words = set(re.split(r"[\s=,]+", text))
    assert {option.flag for option in OPTIONS} <= words
    assert {*INI_KEYS, *(key for key, _, _ in INI_ONLY)} <= words


def test_the_marker_is_registered(project: Project) -> None:
    result = project.run("--markers")

    result.stdout.fnmatch_lines(["@pytest.mark.gptune(model, epsilon, metric, atol, rtol, routes, *"])


def test_the_fixtures_are_documented(project: Project) -> None:
    result = project.run("--fixtures")

    for name in ("", "_engine", "_golden", "_benchmark", "_route", "_knobs"):
        result.stdout.fnmatch_lines([f"gptune{name} -- *"])
    result.stdout.no_fnmatch_line("*no docstring available*gptune*")
