"""Routes that a search proposes when it has seen results: ``--gptune-search mixed`` and ``coordinate``."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest
from planted_project import PlantedProject, statuses

KNOBS = {"-a": ["off", "on"], "-b": ["off", "on"], "-c": ["off", "on"], "-d": ["off", "on"]}
HELPFUL = {"-a=on": 0.8, "-b=on": 0.9, "-c=on": 1.2}
BEST = "a=on,b=on"


def test_mixed_runs_the_combinations_after_the_tests(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=HELPFUL)
    result, test = planted.search("--gptune-search=mixed", "-v")
    # The default, four knobs, one combination, and the verdict, which without a baseline is skipped.
    result.assert_outcomes(passed=6, skipped=1)
    assert statuses(test) == dict.fromkeys(["default", "d=on", "c=on", "b=on", "a=on", BEST], "passed")
    assert test["winner"] == BEST
    assert test["routes"][-1]["speedup"] == pytest.approx(1 / 0.72, rel=1e-3)
    result.stdout.fnmatch_lines(
        [
            "test_model.py::test_model*a=on* PASSED*",
            f"test_model.py::test_model[[]{BEST}] PASSED*",
            "test_model.py::test_model::gptune-gate SKIPPED*",
            "*search mixed: 6 of 6 routes: 6 passed",
            "*python -m pytest 'test_model.py::test_model' '--gptune-route=-a=on -b=on'",
        ]
    )


def test_not_all_that_is_promising_is_there_at_once(planted: PlantedProject) -> None:
    """On a GPU each engine that is measured in turns has a process and a context of its own."""
    knobs = {f"-{letter}": ["off", "on"] for letter in "abcdefghij"}
    factors = {f"{knob}=on": 0.95 - 0.01 * number for number, knob in enumerate(knobs)}
    planted.plant(knobs=knobs, factors=factors)
    _, test = planted.search("--gptune-search=mixed", "-o", "gptune_mixed_max_routes=1")
    assert test["winner"] == ",".join(f"{knob[1:]}=on" for knob in knobs)
    alive = [line for line in (planted.path / "builds.log").read_text().splitlines() if "alive" in line]
    assert max(int(line.split()[1]) for line in alive) == 8


def test_what_the_hosts_pace_hides_is_tried_where_it_does_not(planted: PlantedProject) -> None:
    """Alone, -a and -b gain nothing: the device waits for the host. A run that resumes knows that, too."""
    knobs = {**KNOBS, "-graph": ["off", "on"]}
    planted.plant(knobs=knobs, factors=HELPFUL, hosts_pace=300, ahead="-graph=on")
    cache = ("--gptune-search=mixed", "--gptune-cache=cache.jsonl")
    _, test = planted.search(*cache)
    assert test["winner"] == f"{BEST},graph=on"
    assert test["routes"][0]["latency"]["warnings"][0].startswith("enqueue-bound")
    assert len(test["routes"]) == 1 + 5 + 4 + 1
    before = planted.builds()
    _, again = planted.search(*cache, "--gptune-continue")
    assert again["winner"] == test["winner"]
    assert statuses(again) == statuses(test)
    assert planted.builds() == before


def test_the_command_it_prints_runs_the_route_alone(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=HELPFUL)
    _, test = planted.search("test_model.py::test_model", "--gptune-route=-a=on -b=on")
    assert statuses(test) == {BEST: "passed"}


def test_the_same_under_xdist(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=HELPFUL)
    report = planted.path / "report.json"
    result = planted.run_apart("--gptune-search=mixed", "-n2", f"--gptune-report={report}")
    result.assert_outcomes(passed=6, skipped=1)
    (test,) = json.loads(report.read_text())["tests"]
    assert test["winner"] == BEST
    assert statuses(test)[BEST] == "passed"


def test_coordinate_walks_to_the_best(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors={**HELPFUL, "-c=on -b=on": 0.5})
    result, test = planted.search("--gptune-search=coordinate")
    assert test["winner"] == "a=on,b=on,c=on"
    assert statuses(test)["default"] == "passed"
    assert test["planned"] == 1
    result.assert_outcomes(passed=len(test["routes"]), skipped=1)


def test_late_routes_end_as_tests_do(planted: PlantedProject) -> None:
    """An inaccurate one and one that crashes are expected failures with their reason; nothing else stops."""
    planted.plant(
        knobs=KNOBS,
        factors={"-a=on": 0.8, "-b=on": 0.9, "-c=on": 0.9},
        moved={"-a=on -b=on": 1.0},
        crashed={"-a=on -c=on": 1},
    )
    result, test = planted.search("--gptune-search=mixed", "-rx")
    found = statuses(test)
    assert found["a=on,b=on"] == "inaccurate"
    assert found["a=on,c=on"] == found["a=on,b=on,c=on"] == "crashed"
    assert test["winner"] in ("a=on", "b=on,c=on")
    result.assert_outcomes(passed=6, xfailed=3, skipped=1)
    line = "XFAIL test_model.py::test_model[[]a=on,c=on] - reason: crashed: planted to crash"
    result.stdout.fnmatch_lines([line])


def test_junit_has_a_case_for_each(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=HELPFUL)
    planted.search("--gptune-search=mixed", "--junitxml=junit.xml")
    cases = ET.parse(planted.path / "junit.xml").getroot().iter("testcase")
    names = [case.get("name") for case in cases]
    assert names.count(f"test_model[{BEST}]") == 1
    assert len(names) == 7


def test_a_test_with_parameters_of_its_own(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=HELPFUL)
    planted.tests(
        """
        @pytest.mark.parametrize("size", ["small", "large"])
        @pytest.mark.gptune(model="model.onnx", epsilon=1e-2, backend="planted")
        def test_model(gptune, size):
            gptune.check()
        """,
        golden=None,
    )
    for size in ("small", "large"):
        planted.golden(f"test_model[{size}]")
    result, _ = planted.search("--gptune-search=mixed", "-v")
    result.assert_outcomes(passed=12, skipped=2)
    lines = [f"test_model.py::test_model[[]{size}-{BEST}] PASSED*" for size in ("small", "large")]
    result.stdout.fnmatch_lines(lines)


PART = [("-k", "default or b"), ("--deselect", "test_model.py::test_model[a=on]")]


@pytest.mark.parametrize("arguments", PART)
def test_a_search_of_which_a_part_was_selected_does_not_go_on(
    planted: PlantedProject, arguments: tuple[str, ...]
) -> None:
    planted.plant(knobs=KNOBS, factors=HELPFUL)
    _, test = planted.search("--gptune-search=mixed", *arguments)
    assert BEST not in statuses(test)
    assert "the mixed search was not continued: only" in test["unfinished"]
    assert test["unfinished"] in test["notes"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--gptune-search=coordinate", "-ogptune_max_routes=3"),
        ("--gptune-search=coordinate", "--gptune-budget=0.000001"),
        ("--gptune-search=mixed", "-x", "test_model.py", "test_zz.py"),
    ],
)
def test_no_baseline_is_written_from_a_search_that_is_not_at_its_end(
    planted: PlantedProject, arguments: tuple[str, ...]
) -> None:
    planted.plant(knobs=KNOBS, factors=HELPFUL)
    planted.write("test_zz.py", "def test_fails():\n    assert False\n")
    _, test = planted.search(*arguments, "--gptune-update-baseline")
    assert test["unfinished"]
    assert test["verdict"]["reason"] == "partial_run"
    assert not planted.baseline_path().exists()


def test_where_nothing_is_timed_nothing_follows(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=HELPFUL)
    for search in ("mixed", "coordinate"):
        _, test = planted.search(f"--gptune-search={search}", "--benchmark-disable")
        assert len(test["routes"]) == (5 if search == "mixed" else 1)
        assert all(route["latency"] is None for route in test["routes"])


def test_gains_are_measured_again_before_they_are_combined(planted: PlantedProject) -> None:
    """The default was measured in a slow minute: every value looks 20 % faster, and none is."""
    planted.plant(knobs=KNOBS, slow_first={"": 1.25})
    _, test = planted.search("--gptune-search=mixed")
    assert len(test["routes"]) == 5


def test_gains_that_single_builds_hide_are_combined(planted: PlantedProject) -> None:
    """Of 8 %, where builds differ by 3 %: three of them are no proof, and reason enough to try."""
    wobbles = {choice: [1.0, 0.96, 1.0, 1.04] for choice in ("-a=on", "-b=on")}
    planted.plant(knobs=KNOBS, factors={"-a=on": 0.92, "-b=on": 0.92}, wobbles=wobbles)
    _, test = planted.search("--gptune-search=mixed")
    assert BEST in statuses(test)
    wobbles = {choice: [0.98, 0.96, 1.0, 1.04] for choice in ("-a=on", "-b=on")}
    planted.plant(knobs=KNOBS, wobbles=wobbles)  # none is faster
    _, test = planted.search("--gptune-search=mixed")
    assert BEST not in statuses(test)


def test_it_is_said_that_the_body_is_not_run(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=HELPFUL)
    _, test = planted.search("--gptune-search=mixed")
    assert "late:    1 routes were built, checked and timed without the body of the test" in test["notes"]


def test_a_cache_that_cannot_be_written_costs_the_cache_alone(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=HELPFUL)
    _, test = planted.search("--gptune-search=mixed", "--gptune-cache=/dev/full")
    assert test["winner"] == BEST
    report = planted.path / "report.json"
    planted.run_apart("--gptune-search=mixed", "-n2", "--gptune-cache=/dev/full", f"--gptune-report={report}")
    (test,) = json.loads(report.read_text())["tests"]
    assert test["winner"] == BEST


def test_a_run_that_stops_at_the_first_failure_does_not_go_on(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=HELPFUL)
    planted.write("test_zz.py", "def test_fails():\n    assert False\n")
    result, test = planted.search("--gptune-search=mixed", "-x")
    assert BEST not in statuses(test)
    assert result.ret == 1


def test_the_last_failed_of_a_late_route_leave_nothing_to_run(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=HELPFUL)
    planted._pytester.runpytest_inprocess("--gptune-search=mixed")
    result = planted._pytester.runpytest_inprocess("--gptune-search=mixed", "--lf")
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_an_interrupted_late_route_ends_the_run_with_the_best_so_far(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=HELPFUL, interrupted={"-a=on -b=on": 1})
    report = planted.path / "report.json"
    result = planted.run_apart("--gptune-search=mixed", f"--gptune-report={report}")
    (test,) = json.loads(report.read_text())["tests"]
    assert result.ret == 2
    assert (test["verdict"]["outcome"], test["verdict"]["reason"]) == ("incomparable", "partial_run")
    assert "best so far a=on (~1.25x)" in test["verdict"]["message"]
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_from_an_inaccurate_default_it_starts_at_a_route_that_passes(planted: PlantedProject) -> None:
    planted.plant(
        knobs={"-tf32": ["on", "off"], **KNOBS},
        factors={"-tf32=off": 1.3, **HELPFUL},
        moved={"-tf32=on": 1.0},
    )
    for search in ("mixed", "coordinate"):
        _, test = planted.search(f"--gptune-search={search}")
        assert test["winner"] == "tf32=off,a=on,b=on"
        assert statuses(test)["default"] == "inaccurate"


def test_combinations_beyond_the_bound_are_counted(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors={f"{knob}=on": 0.9 for knob in KNOBS})
    planted.ini(gptune_mixed_max_routes=3)
    _, test = planted.search("--gptune-search=mixed")
    assert len(test["routes"]) == 5 + 3
    assert test["winner"] == "a=on,b=on,c=on,d=on"
    assert any("11 combinations of what helped; the best 3" in note for note in test["notes"])


def test_a_dry_run_cannot_know_late_routes(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS)
    result = planted.run("--gptune-search=coordinate", "--gptune-dry-run")
    assert result.ret == 4


def test_isolated_engines_take_part(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=HELPFUL)
    planted.ini(gptune_isolation="process")
    result, test = planted.search("--gptune-search=mixed")
    assert test["winner"] == BEST
    result.assert_outcomes(passed=6, skipped=1)
