"""``--gptune-budget`` and ``--gptune-prior``."""

from __future__ import annotations

import json

import pytest
from planted_project import PlantedProject, statuses

KNOBS = {f"-{name}": ["off", "on"] for name in "abcdefgh"}
FACTORS = {"-h=on": 0.9, "-a=on": 0.5}


# The clock starts with the first route. What it is about to be spent on takes longer than all of it.
BUDGET, LONGER = "--gptune-budget=3", 3.2


def test_a_budget_ends_a_search_in_good_order(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=FACTORS, pauses_s={"-h=on": LONGER})
    planted.ini(gptune_final_builds=1)
    result, test = planted.search("--gptune-search=fast", BUDGET, "-rs")
    found = statuses(test)
    assert (found.pop("default"), found.pop("h=on")) == ("passed", "passed")
    assert set(found.values()) == {"skipped"}
    assert len(found) == 7
    assert test["winner"] == "h=on"
    assert test["verdict"]["outcome"] == "new"
    result.stdout.fnmatch_lines(["SKIPPED * the budget of 3 s is spent"])


def test_late_routes_are_skipped_too(planted: PlantedProject) -> None:
    knobs = {knob: KNOBS[knob] for knob in ("-a", "-h")}
    planted.plant(knobs=knobs, factors=FACTORS, pauses_s={"-a=on": LONGER})
    _, test = planted.search("--gptune-search=mixed", BUDGET)
    assert statuses(test) == {"default": "passed", "h=on": "passed", "a=on": "passed", "a=on,h=on": "skipped"}
    assert any("the budget of 3 s ended the search" in note for note in test["notes"])
    assert test["winner"] == "a=on"


def test_a_baseline_is_not_updated_from_what_a_budget_left(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=FACTORS, pauses_s={"-h=on": LONGER})
    _, test = planted.search("--gptune-search=fast", BUDGET, "--gptune-update-baseline")
    assert test["verdict"]["reason"] == "partial_run"
    assert "only 2 of 9 routes ran: the baseline was not updated" in test["verdict"]["message"]
    assert not planted.baseline_path().exists()


def test_the_baselines_route_is_never_skipped(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=FACTORS)
    planted.search("--gptune-search=fast", "--gptune-update-baseline")
    planted.plant(knobs=KNOBS, factors=FACTORS, pauses_s={"-h=on": LONGER})
    _, test = planted.search("--gptune-search=fast", BUDGET)
    assert statuses(test)["a=on"] == "passed"
    assert statuses(test)["b=on"] == "skipped"
    assert test["verdict"]["outcome"] == "pass"


def test_what_helped_before_is_tried_first(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=FACTORS)
    planted.search("--gptune-search=fast", "--gptune-cache=before.jsonl")
    usual = planted.collect("--gptune-search=fast", "--gptune-budget=100")
    hinted = planted.collect("--gptune-search=fast", "--gptune-budget=100", "--gptune-prior=before.jsonl")
    assert usual[:3] == ["test_model[default]", "test_model[h=on]", "test_model[g=on]"]
    assert hinted[:3] == ["test_model[default]", "test_model[a=on]", "test_model[h=on]"]
    assert sorted(usual) == sorted(hinted)


def test_a_hint_is_measured_and_not_trusted(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=FACTORS)
    planted.search("--gptune-search=fast", "--gptune-cache=before.jsonl")
    planted.plant(knobs=KNOBS, factors={"-a=on": 2.0, "-b=on": 0.9})
    _, test = planted.search("--gptune-search=fast", "--gptune-budget=100", "--gptune-prior=before.jsonl")
    assert test["winner"] == "b=on"
    assert {route["id"]: route["speedup"] for route in test["routes"]}["a=on"] == pytest.approx(0.5, rel=0.01)


def test_a_cache_of_trtexec_is_a_prior(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=FACTORS)
    rows = [
        {"tuner_version": "11.1", "accuracy_algorithm": "l1", "accuracy_parameter": {"epsilon": 0.1}},
        {"iter": 0, "build_route": "", "crash": False, "error_message": "", "accuracy_loss": {"y": 0.0},
         "gpu_time": 1.0},
        {"iter": 1, "build_route": "-c=on", "crash": False, "error_message": "", "accuracy_loss": {"y": 0.0},
         "gpu_time": 0.7},
    ]  # fmt: skip
    planted.write("trtexec.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    hinted = planted.collect("--gptune-search=fast", "--gptune-budget=100", "--gptune-prior=trtexec.jsonl")
    assert hinted[:2] == ["test_model[default]", "test_model[c=on]"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gptune-prior=x.jsonl",), "*matters under a budget alone*"),
        (("--gptune-budget=100", "--gptune-prior=x.jsonl"), "*there is no such tuning cache*"),
        (("--gptune-budget=100", "--gptune-prior=model.onnx"), "*--gptune-prior, *model.onnx*"),
        (("--gptune-budget=0",), "*budget is 0*"),
        (("--gptune-budget=-3",), "*budget is -3*"),
    ],
)
def test_mistakes(planted: PlantedProject, arguments: tuple[str, ...], message: str) -> None:
    planted.plant(knobs=KNOBS)
    result = planted.run("--gptune-search=fast", *arguments)
    assert result.ret != 0
    assert any(message.strip("*").split("*")[0] in line for line in [*result.outlines, *result.errlines])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


@pytest.mark.parametrize("seconds", ["nan", "inf", "-inf", "0"])
def test_a_budget_is_seconds_above_0(planted: PlantedProject, seconds: str) -> None:
    planted.plant(knobs=KNOBS)
    result = planted.run("--gptune-search=fast", f"--gptune-budget={seconds}")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            f"budget is {seconds}",
            "  in: --gptune-budget",
            "  do: give seconds above 0, or leave it out",
        ],
        consecutive=True,
    )
