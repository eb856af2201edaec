"""``--gptune-save-engine``, ``--gptune-save-all-engines`` and ``--gptune-engine``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from planted_project import PlantedProject, statuses
from projects import MEASURE, MODEL, Project

KNOBS = {"-a": ["off", "on"], "-b": ["off", "on"]}
FACTORS = {"-a=on": 0.8, "-b=on": 0.9}
KEPT = "kept/test_model/test_model.planted.engine"


@pytest.fixture
def saved(planted: PlantedProject) -> PlantedProject:
    """A project whose baseline and engine a mixed search has written."""
    planted.plant(knobs=KNOBS, factors=FACTORS)
    planted.search("--gptune-search=mixed", "--gptune-update-baseline", "--gptune-save-engine=kept")
    return planted


def sidecar(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.with_name(path.name + ".json").read_text()))


def loads(project: PlantedProject) -> int:
    """How often an engine was loaded."""
    lines = (project.path / "builds.log").read_text().splitlines()
    return sum(line.startswith("load ") for line in lines)


def test_the_winners_engine_is_kept_with_a_sidecar(saved: PlantedProject) -> None:
    path = saved.path / KEPT
    assert path.read_bytes() == b"-a=on -b=on"
    facts = sidecar(path)
    assert facts["route"] == "-a=on -b=on"
    assert facts["tuning"] == "test_model.py::test_model"
    assert facts["latency_s"] == pytest.approx(72e-6, rel=0.01)
    assert facts["loss"] == 0.0
    assert (facts["backend"], facts["device_class"], facts["tuner_version"]) == (
        "planted",
        "planted:one",
        "1.0",
    )
    assert {p.name for p in (saved.path / "kept").rglob("*") if p.is_file()} == {
        "test_model.planted.engine",
        "test_model.planted.engine.json",
    }


def test_the_digest_in_the_baseline_is_the_kept_engines(saved: PlantedProject) -> None:
    (entry,) = json.loads(saved.baseline_path().read_text())["entries"]
    assert entry["engine_sha256"] == sidecar(saved.path / KEPT)["engine_digest"]


def test_all_engines_are_kept_apart(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=FACTORS, moved={"-b=on": 1.0})
    planted.search("--gptune-search=full", "--gptune-save-engine=kept", "--gptune-save-all-engines")
    folder = planted.path / "kept/test_model/test_model"
    kept = {path.name: path.read_bytes() for path in folder.glob("*.engine")}
    # Those with -b=on are inaccurate.
    assert kept == {"default.planted.engine": b"", "a=on.planted.engine": b"-a=on"} or set(kept.values()) == {
        b"",
        b"-a=on",
    }
    assert (planted.path / KEPT).read_bytes() == b"-a=on"


def test_late_routes_overwrite_nothing(planted: PlantedProject) -> None:
    planted.plant(knobs=KNOBS, factors=FACTORS)
    planted.search("--gptune-search=mixed", "--gptune-save-engine=kept", "--gptune-save-all-engines")
    folder = planted.path / "kept/test_model/test_model"
    kept = sorted(path.read_bytes() for path in folder.glob("*.engine"))
    assert kept == [b"", b"-a=on", b"-a=on -b=on", b"-b=on"]
    for path in folder.glob("*.engine"):
        assert sidecar(path)["route"].encode() == path.read_bytes()


def test_a_failed_verdict_keeps_nothing(saved: PlantedProject) -> None:
    saved.plant(knobs=KNOBS, factors={**FACTORS, "-a=on -b=on": 2.0})
    _, test = saved.search("--gptune-search=full", "--gptune-gate=relative", "--gptune-save-engine=new")
    assert test["verdict"]["outcome"] == "fail"
    assert not list((saved.path / "new").rglob("*.engine"))


def test_a_kept_engine_is_gated_as_it_is(saved: PlantedProject) -> None:
    before = saved.builds()["-a=on -b=on"]
    result, test = saved.search(f"--gptune-engine={KEPT}")
    assert statuses(test) == {"default": "passed", "a=on,b=on": "passed"}
    assert test["winner"] == "a=on,b=on"
    assert test["search"] == "engine"
    assert test["verdict"]["outcome"] == "pass"
    assert result.ret == 0
    # Loaded, and loaded again for each build of the finals.
    assert saved.builds()["-a=on -b=on"] == before
    assert loads(saved) == 2


def test_a_kept_engine_that_is_inaccurate_fails(saved: PlantedProject) -> None:
    saved.plant(knobs=KNOBS, factors=FACTORS, moved={"-a=on -b=on": 1.0})
    result, test = saved.search(f"--gptune-engine={KEPT}")
    assert (test["verdict"]["outcome"], test["verdict"]["reason"]) == ("fail", "no_route_passes")
    assert "the kept engine: inaccurate" in test["verdict"]["message"]
    assert result.ret == 1


def test_no_baseline_is_written_from_a_kept_engine(saved: PlantedProject) -> None:
    _, test = saved.search(f"--gptune-engine={KEPT}", "--gptune-update-baseline")
    assert test["verdict"]["reason"] == "partial_run"


def test_replay_takes_the_baselines_own_engine_out_of_a_folder(saved: PlantedProject) -> None:
    before = saved.builds()["-a=on -b=on"]
    saved.ini(gptune_engine="kept")
    _, test = saved.search()
    assert statuses(test) == {"default": "passed", "a=on,b=on": "passed"}
    assert saved.builds()["-a=on -b=on"] == before


def test_replay_builds_where_the_kept_engine_is_another(saved: PlantedProject) -> None:
    path = saved.path / KEPT
    facts = sidecar(path) | {"engine_digest": "0" * 64}
    path.with_name(path.name + ".json").write_text(json.dumps(facts))
    before = saved.builds()["-a=on -b=on"]
    _, test = saved.search("--gptune-engine=kept")
    assert saved.builds()["-a=on -b=on"] > before
    assert any("is not the engine of the baseline" in note for note in test["notes"])


def test_it_is_said_whether_an_engine_was_loaded(saved: PlantedProject) -> None:
    _, test = saved.search("--gptune-engine=kept")
    assert any(note.startswith("engine:  a=on,b=on: loaded ") for note in test["notes"])
    assert {route["id"]: bool(route["kept"]) for route in test["routes"]} == {
        "default": False,
        "a=on,b=on": True,
    }
    (saved.path / "empty").mkdir()
    _, test = saved.search("--gptune-engine=empty")
    assert any(note.startswith("engine:  a=on,b=on: built, for there is no empty") for note in test["notes"])


@pytest.mark.parametrize("name", [KEPT, "kept"])
def test_a_kept_engine_is_not_searched(saved: PlantedProject, name: str) -> None:
    result = saved.run(f"--gptune-engine={name}", "--gptune-search=fast")
    assert result.ret == 4
    assert "--gptune-engine and --gptune-search fast exclude each other" in result.stderr.str()


def test_the_sidecar_is_not_the_engine(saved: PlantedProject) -> None:
    result = saved.run(f"--gptune-engine={KEPT}.json")
    result.stdout.fnmatch_lines(["*that is the sidecar of an engine*"])


def damaged(project: PlantedProject, **changes: Any) -> None:
    path = project.path / KEPT
    path.with_name(path.name + ".json").write_text(json.dumps(sidecar(path) | changes))


def test_a_file_that_is_not_the_recorded_one_is_never_loaded(saved: PlantedProject) -> None:
    (saved.path / KEPT).write_bytes(b"-a=on")
    result, _ = saved.search(f"--gptune-engine={KEPT}")
    assert result.ret == 1
    said = " ".join(result.stdout.str().split())
    assert "the kept engine is not the one that was recorded: SHA-256" in said
    assert "it was not loaded" in said
    assert loads(saved) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": "other"}, "backend other, here planted"),
        ({"device_class": "planted:two"}, "device_class planted:two, here planted:one"),
        ({"tuner_version": "0.9"}, "tuner_version 0.9, here 1.0"),
        ({"model_sha256": "0" * 64}, "model_sha256 000"),
        ({"options": {"seed": 3}}, "options {'seed': 3}, here {}"),
        ({"loss": "x"}, "the sidecar has no usable loss"),
        ({"facts": {"a": 5}}, "the sidecar has no usable facts"),
        ({"schema": 7}, "the sidecar has schema 7"),
        ({"route": 5}, "the sidecar has no usable route"),
        ({"surplus": 5}, "the sidecar is not one of an engine"),
        ({"route": "-nonsense=on"}, "-nonsense"),
        ({"engine_digest": "0" * 64}, "the kept engine loads as another one"),
    ],
)
def test_what_does_not_match_is_said_before_anything_is_loaded(
    saved: PlantedProject, changes: dict[str, Any], message: str
) -> None:
    damaged(saved, **changes)
    result, _ = saved.search(f"--gptune-engine={KEPT}")
    assert result.ret == 1
    assert message in " ".join(result.stdout.str().split())
    assert loads(saved) == (1 if "engine_digest" in changes else 0)
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_a_sidecar_that_is_missing_or_no_json(saved: PlantedProject) -> None:
    path = saved.path / (KEPT + ".json")
    path.write_text("{")
    saved.run(f"--gptune-engine={KEPT}").stdout.fnmatch_lines(["*the sidecar cannot be read*"])
    path.unlink()
    saved.run(f"--gptune-engine={KEPT}").stdout.fnmatch_lines(["*the kept engine has no sidecar*"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gptune-save-all-engines",), "--gptune-save-all-engines does not say where"),
        (("--gptune-save-engine=pytest.ini",), "--gptune-save-engine is a file"),
        (("--gptune-engine=nowhere.engine",), "nowhere.engine does not exist"),
        (("--gptune-engine=pytest.ini", "--gptune-route=-a=on"), "exclude each other"),
    ],
)
def test_mistakes(planted: PlantedProject, arguments: tuple[str, ...], message: str) -> None:
    planted.plant(knobs=KNOBS)
    result = planted.run(*arguments)
    assert result.ret == 4
    assert message in result.stderr.str()


def test_a_real_engine_is_kept_and_gated(project: Project) -> None:
    """ONNX Runtime's: the optimised model, loaded in a worker without optimising it again."""
    project.ini(gptune_isolation="process")
    project.tests(MEASURE)
    arguments = ("--gptune-search=full", "--gptune-update-baseline", "--gptune-save-engine=kept")
    project.run(*arguments).assert_outcomes(passed=2, xfailed=2, skipped=1)
    (path,) = (project.path / "kept").rglob("*.onnxruntime.engine")
    assert path.stat().st_size > 100
    assert b"Erf" in (project.path / MODEL).read_bytes()
    assert b"Gelu" in path.read_bytes()  # optimised
    result = project.run(f"--gptune-engine={path}")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*search engine: *"])


def test_no_engine_of_a_loser_is_left(
    planted: PlantedProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    planted.plant(knobs=KNOBS, factors=FACTORS)
    planted.search("--gptune-search=full", "--gptune-save-engine=kept")
    assert not list(tmp_path.rglob("*.engine"))
