"""Runs that are killed at any moment and go on: nothing is lost or built twice, and the end is the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from planted_project import PlantedProject, statuses

from pytest_gptune.timing.protocol import MEASURING

KNOBS = {f"-{name}": ["off", "on"] for name in "abcde"}
FACTORS = {"-a=on": 0.8, "-b=on": 0.9, "-c=on": 0.95, "-d=on": 1.2}
COMMAND = (
    "--gptune-search=mixed",
    "--gptune-cache=tuning.jsonl",
    "--gptune-report=report.json",
    "-p",
    "no:cacheprovider",
    "-q",
)


def undisturbed(planted: PlantedProject) -> tuple[dict[str, Any], Counter[str]]:
    """The report and the builds of a run that nothing happens to."""
    assert planted.run(*COMMAND).ret == 0
    return report(planted), planted.builds()


def report(planted: PlantedProject) -> dict[str, Any]:
    (test,) = json.loads((planted.path / "report.json").read_text())["tests"]
    return dict(test)


def essence(test: dict[str, Any]) -> dict[str, Any]:
    """What has to be the same, to the last digit, however often the run was killed."""
    verdict = {key: test["verdict"][key] for key in ("outcome", "reason", "ratio")}
    latencies = {
        r["id"]: (r["latency"]["value"], r["latency"]["builds"]) for r in test["routes"] if r["latency"]
    }
    facts = {key: test[key] for key in ("winner", "default", "finalists", "co_winners")}
    return {**facts, "verdict": verdict, "latencies": latencies, "statuses": statuses(test)}


def killed_until_done(planted: PlantedProject, rng: random.Random, kills: int, longest_s: float) -> int:
    """Run and kill, run and kill, and let the last run end; how many were killed."""
    done = 0
    for _ in range(kills):
        with start(planted) as process:
            try:
                process.wait(rng.uniform(0.2, longest_s))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                done += 1
    with start(planted) as process:
        assert process.wait(300) == 0, (planted.path / "out.txt").read_text()
    return done


def start(planted: PlantedProject) -> subprocess.Popen[bytes]:
    """A run that takes up the cache; in a group of its own, so that all of it can be killed."""
    with (planted.path / "out.txt").open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", *COMMAND, "--gptune-continue"],
            cwd=planted.path,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def one_in_flight(before: Counter[str], after: Counter[str], kills: int) -> bool:
    """Whether no more was built than what was being built, or not yet written, when a run was killed."""
    surplus = after - before
    return sum(surplus.values()) <= kills * ROUND


# A round of the finals is written when it ends: one build of each finalist, and the one in flight.
ROUND = 5


def check(planted: PlantedProject, kills: int, seed: int) -> None:
    planted.plant(knobs=KNOBS, factors=FACTORS)
    expected, built = undisturbed(planted)
    for left in ("tuning.jsonl", "builds.log", "report.json"):
        (planted.path / left).unlink()
    # Builds that take their time, so that kills come in the middle of them, and in every phase.
    planted.plant(knobs=KNOBS, factors=FACTORS, pause_s=0.05)
    rng = random.Random(seed)
    killed = killed_until_done(planted, rng, kills, 3.0)
    assert killed > 0
    assert essence(report(planted)) == essence(expected)
    assert one_in_flight(built, planted.builds(), killed)
    rows = [json.loads(line) for line in (planted.path / "tuning.jsonl").read_text().splitlines()]
    assert {r["record"]["id"] for r in rows if r["kind"] == "row"} == {r["id"] for r in expected["routes"]}
    keys = Counter(row["record"]["key"] for row in rows if row["kind"] == "row")
    assert max(keys.values()) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_killed_five_times(planted: PlantedProject) -> None:
    planted.ini(gptune_final_builds=2)
    check(planted, 5, seed=1)


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_killed_fifty_times(planted: PlantedProject) -> None:
    planted.ini(gptune_final_builds=2)
    check(planted, 50, seed=2)


def test_a_finished_run_is_taken_up_whole(planted: PlantedProject) -> None:
    """Search, late routes and finals: the verdict is there, and nothing was built."""
    planted.plant(knobs=KNOBS, factors=FACTORS)
    expected, built = undisturbed(planted)
    assert planted.run(*COMMAND, "--gptune-continue").ret == 0
    assert essence(report(planted)) == essence(expected)
    assert planted.builds() == built


def test_a_run_that_begins_anew_measures_its_finals_anew(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=FACTORS)
    undisturbed(planted)
    planted.plant(knobs=KNOBS, factors={**FACTORS, "-a=on": 0.5})
    second, _ = undisturbed(planted)
    assert planted.run(*COMMAND, "--gptune-continue").ret == 0
    assert essence(report(planted)) == essence(second)
    assert any("of an earlier run, from the tuning cache" in note for note in report(planted)["notes"])


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("gptune.check()", "gptune.check()\n    assert False", "protocol.test"),
        ("backend=", "shapes={'x': (2, 8)}, backend=", "protocol.shapes"),
        ("backend=", "options={'seed': 1}, atol=1e-3, backend=", "protocol.atol"),
    ],
)
def test_a_test_that_changed_is_not_taken_up(planted: PlantedProject, old: str, new: str, what: str) -> None:
    planted.plant(knobs=KNOBS, factors=FACTORS)
    undisturbed(planted)
    path = planted.path / "test_model.py"
    path.write_text(path.read_text().replace(old, new))
    result = planted.run(*COMMAND, "--gptune-continue")
    assert result.ret == 1
    assert what in result.stdout.str()


BROKEN = ["[]", "[[]]", "[[0.0]]", '["nan"]', "[[-1.0]]", '[["nan"]]', "[[1e400]]", "5", "null"]


@pytest.mark.parametrize("blocks", BROKEN)
def test_a_damaged_round_of_finals_is_dropped_with_a_warning(planted: PlantedProject, blocks: str) -> None:
    planted.plant(knobs={"-a": ["off", "on"]}, factors=FACTORS)
    expected, _ = undisturbed(planted)
    path = planted.path / "tuning.jsonl"
    lines = path.read_text().splitlines()
    number = next(n for n, line in enumerate(lines) if '"kind":"finals"' in line)
    round_ = json.loads(lines[number])
    key = next(iter(round_["blocks"]))
    text = json.dumps({**round_, "blocks": {**round_["blocks"], key: "BROKEN"}})
    lines[number] = text.replace('"BROKEN"', blocks)
    path.write_text("\n".join(lines) + "\n")
    result = planted.run(*COMMAND, "--gptune-continue")
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    assert report(planted)["winner"] == expected["winner"]
    assert "a round of finals is damaged and was dropped" in result.stdout.str()


def test_another_search_takes_up_what_it_can(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=FACTORS)
    planted.search("--gptune-search=fast", "--gptune-cache=tuning.jsonl")
    fast = planted.builds()
    _, test = planted.search("--gptune-search=full", "--gptune-cache=tuning.jsonl", "--gptune-continue")
    assert len(test["routes"]) == 32
    again = planted.builds() - fast
    # One-knob routes were not built again but for the finals.
    assert all(again[route] <= 1 for route in fast)


@pytest.mark.parametrize(
    ("written", "instead", "said"),
    [
        ('"epsilon":0.01', '"epsilon":0.02', "accuracy_parameter.epsilon: 0.02 -> 0.01"),
        (f'"measuring":{MEASURING}', '"measuring":1', f"protocol.measuring: 1 -> {MEASURING}"),
    ],
)
def test_rows_of_other_conditions_are_not_taken_up(
    planted: PlantedProject, written: str, instead: str, said: str
) -> None:
    planted.plant(knobs=KNOBS, factors=FACTORS)
    planted.search("--gptune-search=fast", "--gptune-cache=tuning.jsonl")
    path: Path = planted.path / "tuning.jsonl"
    path.write_text(path.read_text().replace(written, instead))
    result = planted.run("--gptune-search=fast", "--gptune-cache=tuning.jsonl", "--gptune-continue")
    assert result.ret == 1
    assert f"written under other conditions: {said}" in " ".join(result.stdout.str().split())
