"""Routes whose engine is there already: neither timed nor built again, and never a winner."""

from __future__ import annotations

import json

import pytest
from planted_project import PlantedProject, statuses

KNOBS = {"-a": ["off", "on"], "-z": ["off", "on", "auto"], "-y": ["0", "1"]}


def test_a_route_whose_digest_is_known_before_is_not_built(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors={"-a=on": 0.8}, inert=["-z", "-y"])
    result, test = planted.search("--gptune-search=full", "-rs")
    found = statuses(test)
    assert found.pop("default") == found.pop("a=on") == "passed"
    assert set(found.values()) == {"inert"}
    assert len(found) == 10
    built = planted.builds()
    assert sum(count for route, count in built.items() if "-z" in route or "-y" in route) == 0
    result.assert_outcomes(passed=2, skipped=11)
    result.stdout.fnmatch_lines(["SKIPPED * inert: the same engine as default"])
    said = (
        "inert: 10 of 12 routes are engines that were there already; knobs without effect on this model: y, z"
    )
    assert said in " ".join(result.stdout.str().split())
    assert test["inert_knobs"] == ["-y", "-z"]
    twins = {route["id"]: route["same_as"] for route in test["routes"]}
    assert twins["a=on,z=on"] == "a=on"
    assert twins["z=auto"] == "default"
    assert twins["default"] == ""


def test_where_digests_come_with_the_build_they_are_built_and_not_timed(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors={"-a=on": 0.8}, inert=["-z"], known_before=False)
    _, test = planted.search("--gptune-search=fast")
    assert statuses(test) == {
        "default": "passed",
        "y=1": "passed",
        "z=on": "inert",
        "z=auto": "inert",
        "a=on": "passed",
    }
    assert planted.builds()["-z=on"] == 1
    latencies = {route["id"]: route["latency"] for route in test["routes"]}
    assert latencies["z=on"] is None


def test_a_knob_with_one_value_that_counts_is_not_inert(planted: PlantedProject) -> None:
    planted.plant(knobs={"-a": ["off", "on"], "-b": ["off", "on"]}, inert=["-b"])
    _, test = planted.search("--gptune-search=fast")
    assert test["inert_knobs"] == ["-b"]


@pytest.mark.parametrize("known_before", [True, False])
def test_processes_side_by_side_agree_in_the_end(planted: PlantedProject, known_before: bool) -> None:
    planted.plant(knobs=KNOBS, factors={"-a=on": 0.8}, inert=["-z", "-y"], known_before=known_before)
    report = planted.path / "report.json"
    planted.run_apart("--gptune-search=full", "-n2", f"--gptune-report={report}")
    (test,) = json.loads(report.read_text())["tests"]
    found = statuses(test)
    assert (found["default"], found["a=on"]) == ("passed", "passed")
    assert sum(status == "inert" for status in found.values()) == 10
    assert test["winner"] == "a=on"


def test_the_baselines_route_runs_although_its_engine_is_the_defaults(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors={"-z=on": 0.5})
    planted.search("--gptune-search=fast", "--gptune-update-baseline")
    planted.plant(knobs=KNOBS, inert=["-z"])
    _, test = planted.search("--gptune-search=replay")
    assert statuses(test) == {"default": "passed", "z=on": "passed"}
    assert test["verdict"]["reason"] != "partial_run"


def test_an_inert_route_is_no_finalist(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, inert=["-z", "-y", "-a"])
    _, test = planted.search("--gptune-search=fast")
    assert test["finalists"] == ["default"]
    assert test["winner"] == "default"
