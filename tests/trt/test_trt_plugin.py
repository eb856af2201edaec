"""The whole plugin over the double of TensorRT: searches, gate, crashes and hangs, as a user sees them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from projects import MODEL, Project
from trt_projects import TrtProject

TEST = f"""
    @pytest.mark.gptune(model="{MODEL}", epsilon=1e-5, routes={{"tensorrt": "ROUTES"}})
    def test_model(gptune):
        gptune.check()
"""


def write(trt_project: TrtProject, routes: str, **ini: Any) -> None:
    trt_project.project.ini(**ini)
    trt_project.project.tests(TEST.replace("ROUTES", routes))


def statuses(report: dict[str, Any]) -> dict[str, str]:
    return {route["id"]: route["status"] for route in report["tests"][0]["routes"]}


def route_of(report: dict[str, Any], route_id: str) -> dict[str, Any]:
    found: dict[str, Any] = next(r for r in report["tests"][0]["routes"] if r["id"] == route_id)
    return found


def test_a_full_search_finds_the_fastest_accurate_route(trt_project: TrtProject) -> None:
    write(trt_project, "-copy_ppg=[on|off] -slice_fusion=[on|off]", gptune_final_builds=2)

    result, report = trt_project.run("--gptune-search=full")

    assert statuses(report) == {
        "default": "passed",
        "slice_fusion=off": "inaccurate",
        "copy_ppg=off": "passed",
        "copy_ppg=off,slice_fusion=off": "inaccurate",
    }
    test = report["tests"][0]
    assert test["winner"] == "copy_ppg=off"
    assert test["latency_kind"] == "device_queued"
    assert test["verdict"]["outcome"] == "new"
    best = route_of(report, "copy_ppg=off")
    assert best["graph"] is True
    assert best["latency"]["median"] == pytest.approx(80e-6, rel=0.01)
    assert best["speedup"] == pytest.approx(1.25, rel=0.01)
    assert best["engine_digest"] != route_of(report, "default")["engine_digest"]
    assert best["device_memory_bytes"]["context"] == 1 << 20
    times = {row["layer"]: (row["default"], row["winner"]) for row in test["layer_times"]}
    assert times["y"] == (pytest.approx(100e-6, rel=0.01), pytest.approx(80e-6, rel=0.01))
    result.stdout.fnmatch_lines(["*layers:  the winner spends most in y 50%, *"])
    assert result.ret == 0


@pytest.mark.long
def test_an_engine_without_a_graph_is_not_compared_with_those_that_have_one(trt_project: TrtProject) -> None:
    write(trt_project, "-builder:optimization_level=[3|5] -copy_ppg=[on|off]", gptune_final_builds=2)

    result, report = trt_project.run("--gptune-search=full", "--gptune-update-baseline")

    assert statuses(report) == {
        "default": "passed",
        "copy_ppg=off": "passed",
        "builder:optimization_level=5": "rejected",
        "builder:optimization_level=5,copy_ppg=off": "rejected",
    }
    assert report["tests"][0]["winner"] == "copy_ppg=off"
    without = route_of(report, "builder:optimization_level=5")
    assert str(without["error"]).startswith("no CUDA graph: TensorRT does not enqueue the engine")
    assert without["speedup"] is None
    assert result.ret == 0


@pytest.mark.long
def test_engines_that_all_lack_a_graph_compare(trt_project: TrtProject) -> None:
    write(trt_project, "-builder:optimization_level=5 -copy_ppg=[on|off]", gptune_final_builds=2)

    _, report = trt_project.run("--gptune-search=mixed")

    assert statuses(report) == {"default": "passed", "copy_ppg=off": "passed"}
    assert report["tests"][0]["winner"] == "copy_ppg=off"
    assert report["tests"][0]["finalists"] == ["default", "copy_ppg=off"]


@pytest.mark.long
def test_a_baseline_that_had_a_graph_is_not_compared_with_an_engine_that_has_none(
    trt_project: TrtProject,
) -> None:
    """As after an upgrade that takes it from all engines; and the new entry stands beside the old one."""
    write(trt_project, "-copy_ppg=[on|off]", gptune_final_builds=1)
    trt_project.run("--gptune-search=fast", "--gptune-update-baseline")
    write(trt_project, "-builder:optimization_level=5 -copy_ppg=[on|off]", gptune_final_builds=1)

    _, report = trt_project.run("--gptune-search=fast")

    verdict = report["tests"][0]["verdict"]
    assert (verdict["outcome"], verdict["reason"]) == ("incomparable", "kind")
    assert verdict["message"] == "the baseline has other kind: device_queued."

    trt_project.run("--gptune-search=fast", "--gptune-update-baseline")
    (baseline,) = trt_project.project.path.rglob("*.baseline.json")
    kinds = [entry["latency_kind"] for entry in json.loads(baseline.read_text())["entries"]]
    assert kinds == ["device_queued", "device_queued, no graph"]
    _, report = trt_project.run("--gptune-search=fast")
    assert report["tests"][0]["verdict"]["reason"] == "unchanged"


@pytest.mark.long
def test_layers_that_cannot_be_timed_cost_no_finals(trt_project: TrtProject) -> None:
    write(trt_project, "-builder:tiling_optimization_level=full -copy_ppg=[on|off]", gptune_final_builds=2)

    result, report = trt_project.run("--gptune-search=fast")

    (test,) = report["tests"]
    assert test["winner"] == "copy_ppg=off"
    assert route_of(report, "copy_ppg=off")["builds"] == 3  # one of the search
    assert test["layer_times"] == []
    assert test["layers"]
    said = "layers:  could not be timed: TensorRT makes no execution context, as where memory runs out"
    assert test["notes"].count(said) == 1
    assert result.ret == 0


@pytest.mark.long
def test_finals_that_an_earlier_run_began_tell_the_layers_of_both(trt_project: TrtProject) -> None:
    """Those of the builds of this run; a layer that has no time would be one that is not there."""
    write(trt_project, "-copy_ppg=[on|off]", gptune_final_builds=3)
    cached = ("--gptune-search=fast", f"--gptune-cache={trt_project.project.path / 'tuning.jsonl'}")
    trt_project.run(*cached)
    write(trt_project, "-copy_ppg=[on|off]", gptune_final_builds=4)

    _, report = trt_project.run(*cached, "--gptune-continue")

    (test,) = report["tests"]
    assert any("3 rounds of builds are of an earlier run" in note for note in test["notes"])
    assert len(test["layer_times"]) == 5
    assert all(row["default"] and row["winner"] for row in test["layer_times"])
    assert test["layers"]

    _, report = trt_project.run(*cached, "--gptune-continue")

    assert report["tests"][0]["layer_times"] == report["tests"][0]["layers"] == []


@pytest.mark.long
def test_the_finals_build_without_the_timing_cache_of_the_search(trt_project: TrtProject) -> None:
    write(trt_project, "-copy_ppg=[on|off]", gptune_final_builds=2)

    trt_project.run("--gptune-search=fast")

    rows = [(row["route"], row["cached"]) for row in trt_project.builds()]
    assert rows[:2] == [("", []), ("-copy_ppg=off", [""])]
    assert len(rows) >= 2 + 2 * 2
    assert all(cached is None for _, cached in rows[2:])


@pytest.mark.long
def test_routes_that_fail_cost_themselves_alone(trt_project: TrtProject) -> None:
    write(
        trt_project,
        "-copy_ppg=[on|off] -conv_use_long_w=[on|off] -match_ragged_mha=[on|off] -reshape_ppg=[on|off]"
        " -transpose_ppg=[on|off] -kgen:codegen:cuda_tile=[1|0|3] -builder:max_aux_streams=[auto|0]",
    )

    result, report = trt_project.run("--gptune-search=fast", "--gptune-route-timeout=8", "-rx")

    assert statuses(report) == {
        "default": "passed",
        "copy_ppg=off": "passed",
        "conv_use_long_w=off": "rejected",
        "match_ragged_mha=off": "rejected",
        "reshape_ppg=off": "crashed",
        "transpose_ppg=off": "timeout",
        "kgen:codegen:cuda_tile=0": "passed",
        "kgen:codegen:cuda_tile=3": "crashed",
        "builder:max_aux_streams=0": "rejected",
    }
    assert report["tests"][0]["winner"] == "copy_ppg=off"
    assert "asked for '-conv_use_long_w=off', read back '-conv_use_long_w=on'" in str(
        route_of(report, "conv_use_long_w=off")["error"]
    )
    crashed = str(route_of(report, "reshape_ppg=off")["error"])
    assert "the worker died of SIGABRT" in crashed
    assert "Assertion failed: reshape" in crashed
    # The last word of the progress says in which phase the builder hangs.
    assert "TensorRT builds: Timing tactics begins" in str(route_of(report, "transpose_ppg=off")["error"])
    result.stdout.fnmatch_lines(["XFAIL *transpose_ppg=off* - timeout: no answer within 8 s*"])


@pytest.mark.long
def test_a_mixed_search_combines_what_was_faster(trt_project: TrtProject) -> None:
    write(
        trt_project,
        "-copy_ppg=[on|off] -slice_fusion=[on|off] -kgen:codegen:cuda_tile=[1|0]",
        gptune_final_builds=2,
    )

    _, report = trt_project.run("--gptune-search=mixed")

    assert report["tests"][0]["winner"] == "copy_ppg=off"
    assert statuses(report)["kgen:codegen:cuda_tile=0"] == "passed"


@pytest.mark.long
def test_a_baseline_is_written_and_held(trt_project: TrtProject) -> None:
    write(trt_project, "-copy_ppg=[on|off]", gptune_final_builds=2)
    trt_project.run("--gptune-search=fast", "--gptune-update-baseline")

    result, report = trt_project.run()

    assert report["tests"][0]["verdict"]["outcome"] == "pass"
    assert report["tests"][0]["verdict"]["reason"] == "unchanged"
    assert set(statuses(report)) == {"default", "copy_ppg=off"}
    assert result.ret == 0


@pytest.mark.long
def test_a_dynamic_model_is_built_for_all_its_cases(trt_project: TrtProject) -> None:
    import models

    models.dynamic(trt_project.project.path / "dynamic.onnx")
    trt_project.project.tests(
        """
        @pytest.mark.gptune(
            model="dynamic.onnx", epsilon=1e-5, routes="-copy_ppg=[on|off]",
            shapes=[{"tokens": (2, 8, 8)}, {"tokens": (1, 3, 8)}, {"tokens": (4, 2, 8)}],
        )
        def test_model(gptune):
            gptune.check()
        """,
        golden=None,
    )

    result, report = trt_project.run("--gptune-search=fast", "--gptune-update-goldens")

    assert statuses(report) == {"default": "passed", "copy_ppg=off": "passed"}
    assert report["tests"][0]["shapes"] == {"tokens": [2, 8, 8]}
    assert len(report["tests"][0]["cases"]) == 3
    assert result.ret == 0


def test_the_knobs_are_printed_with_what_cannot_be_seen(trt_project: TrtProject) -> None:
    result = trt_project.project.run_apart(
        "--gptune-backend=tensorrt", "--gptune-isolation=process", "--gptune-knobs"
    )

    result.stdout.fnmatch_lines(
        ["tensorrt 2.19.15: * knobs", "*conv_use_long_w*", "*A build route is a request:*"]
    )
    assert "copy_ppg" in result.stdout.str()
    assert result.ret == 0


def test_the_builder_without_a_gpu_gives_knobs_and_plans(project: Project) -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT RTX is not installed", exc_type=ImportError)
    project.tests(TEST.replace('{"tensorrt": "ROUTES"}', '"-builder:TF32=[on|off]"'))
    isolated = ("--gptune-backend=tensorrt_rtx", "--gptune-isolation=process")

    knobs = project.run_apart(*isolated, "--gptune-knobs=TF32")
    planned = project.run_apart(*isolated, "--gptune-dry-run", "--gptune-search=fast")

    assert knobs.ret == planned.ret == 0
    knobs.stdout.fnmatch_lines(
        ["tensorrt_rtx *", "-builder:TF32*", "No build routes: TensorRT RTX has no tuner:*"]
    )
    planned.stdout.fnmatch_lines(["*test_model: 2 routes*", "*-builder:TF32=on", "*-builder:TF32=off"])


@pytest.mark.long
def test_a_route_that_changes_nothing_is_inert(trt_project: TrtProject) -> None:
    """Equal layers are not enough: outputs equal to the bit and an equal latency complete the proof."""
    write(trt_project, "-kgen:codegen:cuda_tile=[1|2|0]", gptune_final_builds=1)

    _, report = trt_project.run("--gptune-search=fast")

    assert statuses(report) == {
        "default": "passed",
        "kgen:codegen:cuda_tile=2": "inert",
        "kgen:codegen:cuda_tile=0": "passed",
    }
    twin, default = route_of(report, "kgen:codegen:cuda_tile=2"), route_of(report, "default")
    assert twin["engine_digest"] == default["engine_digest"]


@pytest.mark.long
def test_the_winners_engine_is_kept_and_gated(trt_project: TrtProject) -> None:
    write(trt_project, "-copy_ppg=[on|off]", gptune_final_builds=2)
    kept = trt_project.project.path / "kept"
    trt_project.run("--gptune-search=fast", f"--gptune-save-engine={kept}", "--gptune-update-baseline")
    (engine,) = [path for path in kept.rglob("*") if path.is_file() and path.suffix != ".json"]
    assert b'"-copy_ppg": "off"' in engine.read_bytes()
    builds = len(trt_project.builds())

    result, report = trt_project.run(f"--gptune-engine={engine}")

    assert report["tests"][0]["winner"] == "copy_ppg=off"
    assert result.ret == 0
    # The default is built, to be compared with; the kept one is not.
    assert all(row["route"] == "" for row in trt_project.builds()[builds:])

    engine.write_bytes(engine.read_bytes().replace(b'"off"', b'"on!"'))
    result, _ = trt_project.run(f"--gptune-engine={engine}")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*the kept engine is not the one that was recorded*"])
