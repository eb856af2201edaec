"""Engines over the double: built, run, captured, timed, kept and loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from double_engines import Build, X, expected, request_for
from onnx import TensorProto, helper
from trt_projects import DOUBLE

from pytest_gptune.engines.base import (
    BuildRejectedError,
    EngineFailedError,
    EngineOutOfMemoryError,
    ShapeRange,
)
from pytest_gptune.engines.cuda import ClockReading, DeviceSamples
from pytest_gptune.engines.host_pace import CoreTurns
from pytest_gptune.engines.tensorrt import TensorRtBackend
from pytest_gptune.engines.tensorrt.bindings import make_output_allocator
from pytest_gptune.engines.worker import WorkerBackend
from pytest_gptune.errors import GptuneError, ModelError, SettingsError
from pytest_gptune.routes import KnobSpace


def test_it_computes_and_is_replayed_from_a_graph(build: Build, mlp: Path) -> None:
    engine = build(mlp)
    assert engine.info.graph
    assert engine.info.warnings == ()
    assert engine.info.latency_kind == "device_queued"
    for x in (X, -X, 2 * X):
        np.testing.assert_allclose(engine.run({"x": x})["y"], expected(mlp, {"x": x})[0], rtol=1e-6)
    engine.close()
    with pytest.raises(EngineFailedError, match="it was closed"):
        engine.run({"x": X})


def test_it_is_timed_on_the_devices_clock(build: Build, mlp: Path) -> None:
    """The double's clock moves by 100 us for each run, and 80 where a route says so."""
    latencies = []
    for route in ((), (("-copy_ppg", "off"),)):
        engine = build(mlp, *route)
        with pytest.raises(EngineFailedError, match=r"sample\(\) before load\(\)"):
            engine.sample(0.01, 1)
        engine.load({"x": X})
        block = engine.sample(0.02, 1000, batch=3)
        assert block.enqueue_share is not None
        latencies.append(float(np.median(block.latencies_s)))
        engine.close()
    assert latencies == pytest.approx([100e-6, 80e-6], rel=0.01)


def test_a_changed_shape_is_captured_anew(build: Build, tmp_path: Path) -> None:
    path = models.dynamic(tmp_path / "dynamic.onnx", width=8)
    shapes = {"tokens": ShapeRange((1, 2, 8), (2, 4, 8), (4, 16, 8))}
    engine = build(path, shapes=shapes)
    assert engine.info.graph
    rng = np.random.default_rng(1)
    for shape in ((2, 4, 8), (4, 16, 8), (1, 2, 8), (4, 16, 8)):
        tokens = rng.standard_normal(shape).astype(np.float32)
        got, want = engine.run({"tokens": tokens}), expected(path, {"tokens": tokens})
        for array, reference in zip(got.values(), want, strict=True):
            assert array.shape == reference.shape
            np.testing.assert_allclose(array, reference, rtol=1e-5, atol=1e-6)
    with pytest.raises(EngineFailedError, match=r"'tokens' of shape .5, 4, 8. is outside of what the engine"):
        engine.run({"tokens": np.zeros((5, 4, 8), np.float32)})


def test_inputs_that_do_not_fit_are_named(build: Build, mlp: Path) -> None:
    engine = build(mlp)
    with pytest.raises(EngineFailedError, match=r"missing \['x'\], unknown \['z'\]"):
        engine.run({"z": X})
    with pytest.raises(
        EngineFailedError, match="an array of float64 is given where the engine reads float32"
    ):
        engine.run({"x": X.astype(np.float64)})


def test_an_output_whose_shape_depends_on_data(build: Build, tmp_path: Path) -> None:
    values = {"x": (TensorProto.FLOAT, [8])}
    model = models.build(
        [helper.make_node("NonZero", ["x"], ["where"])], values, {"where": (TensorProto.INT64, [1, "n"])}
    )
    engine = build(models.write(model, tmp_path / "nonzero.onnx"))
    assert not engine.info.graph
    assert engine.info.warnings == ("no CUDA graph: the shape of an output depends on data",)
    for x in ([0, 1, 0, 2, 0, 0, 0, 3], [0] * 8, [1] * 8):
        array = np.array(x, np.float32)
        np.testing.assert_array_equal(engine.run({"x": array})["where"], np.array(np.nonzero(array)))


def test_an_engine_that_cannot_be_captured_says_why(build: Build, mlp: Path) -> None:
    engine = build(mlp, ("-builder:optimization_level", "5"))
    assert not engine.info.graph
    assert engine.info.warnings[0].startswith("no CUDA graph: TensorRT does not enqueue the engine")
    np.testing.assert_allclose(engine.run({"x": X})["y"], expected(mlp, {"x": X})[0], rtol=1e-6)
    off = build(mlp, options={"cuda_graph": False})
    assert not off.info.graph
    assert "switched off" in off.info.warnings[0]
    assert [item.info.graph_missing for item in (engine, off, build(mlp))] == [True, True, False]


def test_a_shape_that_cannot_be_captured_as_others_can_is_not_measured_without(
    double: TensorRtBackend, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is recorded as one that is captured, and compared with such."""
    import cuda.bindings.runtime as runtime

    contexts = double._trt.IExecutionContext
    run = contexts.execute_async_v3

    def refuse_long_ones(self: Any, stream: int) -> Any:
        return not (stream in runtime._device.captures and self._shapes["tokens"][1] == 16) and run(
            self, stream
        )

    monkeypatch.setattr(contexts, "execute_async_v3", refuse_long_ones)
    path = models.dynamic(tmp_path / "dynamic.onnx", width=8)
    shapes = {"tokens": ShapeRange((1, 2, 8), (2, 4, 8), (4, 16, 8))}
    long = {"tokens": np.ones((4, 16, 8), np.float32)}
    engine = build(path, shapes=shapes)
    assert engine.info.graph
    with pytest.raises(EngineFailedError, match="no CUDA graph can be captured at these shapes") as caught:
        engine.load(long)
    assert "'cuda_graph': False" in caught.value.mend
    engine.close()
    without = build(path, shapes=shapes, options={"cuda_graph": False})
    without.load(long)
    assert without.sample(0.0, 1).latencies_s
    without.close()


def test_what_failed_first_is_told_where_nothing_can_be_released_either(
    build: Build, mlp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an illegal address: every later call of CUDA fails as well."""
    import cuda.bindings.runtime as runtime

    failed = (runtime.cudaError_t.cudaErrorInvalidValue,)
    monkeypatch.setattr(runtime, "cudaFree", lambda address: failed)
    monkeypatch.setattr("pytest_gptune.engines.tensorrt.backend._warm", lambda *args: None)
    with pytest.raises(EngineFailedError, match="TensorRT does not enqueue the engine"):
        build(mlp, ("-kgen:codegen:cuda_tile", "3"))


def test_a_graph_that_computes_something_else_is_found(build: Build, mlp: Path) -> None:
    engine = build(mlp, ("-builder:optimization_level", "0"))
    with pytest.raises(EngineFailedError, match="the replayed CUDA graph gives other values of y than a run"):
        engine.run({"x": X})


def test_an_engine_that_does_not_run_fails(build: Build, mlp: Path) -> None:
    with pytest.raises(EngineFailedError, match="TensorRT does not enqueue the engine"):
        build(mlp, ("-kgen:codegen:cuda_tile", "3"))


@pytest.mark.parametrize(
    ("route", "said"),
    [
        (("-match_ragged_mha", "off"), "asked for '-match_ragged_mha=off', read back ''"),
        (("-conv_use_long_w", "off"), "asked for '-conv_use_long_w=off', read back '-conv_use_long_w=on'"),
        (("-builder:max_aux_streams", "0"), "builds no engine: no implementation without auxiliary streams"),
        (("-builder:optimization_level", "7"), "has no knob -builder:optimization_level with value '7'"),
    ],
)
def test_a_route_that_was_not_taken_is_rejected(
    build: Build, mlp: Path, route: tuple[str, str], said: str
) -> None:
    with pytest.raises(BuildRejectedError) as caught:
        build(mlp, route)
    assert said in caught.value.what


def test_the_knob_space_has_both_kinds_of_knobs(double: TensorRtBackend) -> None:
    space = KnobSpace.from_json(double.knob_space(None, {}))
    names = [knob.name for knob in space]
    assert space.tuner_version == "2.19.15"
    assert names[0] == "-conv_use_long_w"
    assert {"-copy_ppg", "-builder:optimization_level", "-builder:TF32"} <= set(names)
    assert "not what the compiler overrides later" in space.notes[0]
    assert double.environment({}).tuner_version == "2.19.15"


def test_the_environment_is_of_the_device(double: TensorRtBackend, tmp_path: Path) -> None:
    (tmp_path / "mine.so").write_bytes(b"plugin")
    environment = double.environment({"plugins": [str(tmp_path / "mine.so")]})
    assert environment.device_class == "cuda:Double GPU:4"
    assert environment.device["compute_capability"] == "9.0"
    assert environment.software["backend"] == "tensorrt 11.1.0.106"
    assert len(environment.software["plugins"]["mine.so"]) == 64
    double.check_available({})
    double.check_buildable({})


def test_digests_are_of_layers_and_tactics_and_prove_nothing_alone(build: Build, mlp: Path) -> None:
    """No two plans of the double are equal, as no two of TensorRT are."""
    routes = [(), (), (("-kgen:codegen:cuda_tile", "2"),), (("-copy_ppg", "off"),)]
    engines = [build(mlp, *route) for route in routes]
    first, again, inert, other = (engine.info.digest for engine in engines)
    assert first == again == inert != other
    assert engines[0].serialize() != engines[1].serialize()
    assert not engines[0].info.digest_proves
    assert len(engines[0].info.layers) == 8
    assert engines[0].info.layers == engines[2].info.layers != engines[3].info.layers


def test_routes_share_a_timing_cache_and_replicates_do_not(build: Build, mlp: Path, tmp_path: Path) -> None:
    build(mlp)
    build(mlp, ("-copy_ppg", "off"))
    build(mlp, fresh=True)
    build(mlp, options={"timing_cache": False})
    build(mlp)
    rows = [json.loads(line) for line in (tmp_path / "builds.jsonl").read_text().splitlines()]
    assert [row["cached"] for row in rows] == [[], [""], None, None, ["", "-copy_ppg=off"]]


def test_a_damaged_timing_cache_is_discarded_with_a_warning(build: Build, mlp: Path, tmp_path: Path) -> None:
    build(mlp)
    (file,) = (tmp_path / "cache").rglob("*.timing")
    file.write_bytes(file.read_bytes()[:-1])
    engine = build(mlp)
    assert engine.info.warnings == (f"the timing cache {file.name} is damaged and was discarded",)
    assert build(mlp).info.warnings == ()


def test_a_kept_engine_is_loaded_where_everything_recorded_agrees(
    double: TensorRtBackend, build: Build, mlp: Path
) -> None:
    engine = build(mlp, ("-copy_ppg", "off"))
    data, facts = engine.serialize(), engine.info.facts
    assert data is not None
    loaded = double.load(request_for(mlp, ("-copy_ppg", "off"), kept=facts), data)
    np.testing.assert_array_equal(loaded.run({"x": X})["y"], engine.run({"x": X})["y"])
    assert loaded.info.digest == engine.info.digest
    assert loaded.serialize() == data
    with pytest.raises(EngineFailedError, match="plan sha256 is"):
        double.load(request_for(mlp, ("-copy_ppg", "off"), kept=facts), data + b" ")
    with pytest.raises(EngineFailedError, match="route is -copy_ppg=off, here it is default"):
        double.load(request_for(mlp, kept=facts), data)


def test_memory_can_be_limited(build: Build, mlp: Path) -> None:
    """The context takes 1 MiB, weights come on top of it."""
    assert build(mlp, options={"device_memory_mib": 2, "workspace_mib": 16}).info.graph
    said = r"needs 1\.0 MiB for its context and 0\.\d MiB for its weights of .*, 1 MiB are allowed"
    with pytest.raises(EngineOutOfMemoryError, match=said):
        build(mlp, options={"device_memory_mib": 1})
    with pytest.raises(EngineOutOfMemoryError, match=r"needs 64\.0 MiB for its context"):
        build(models.mlp(mlp.with_name("wide.onnx"), width=65), options={"device_memory_mib": 64})


def test_mistakes(build: Build, mlp: Path, tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"tensorrt 11.1.0.106 does not build for compute capability 8\.9"
    ):
        build(mlp, options={"compute_capabilities": ["8.9"]})
    values = (TensorProto.FLOAT, [2, 8])
    node = helper.make_node("Fuse", ["x"], ["y"], name="f", domain="acme")
    path = models.write(
        models.build([node], {"x": values}, {"y": values}, domains=["acme"]), tmp_path / "f.onnx"
    )
    with pytest.raises(ModelError, match=r"node 'f' \(Fuse of acme\): INVALID_NODE: the operator is unknown"):
        build(path)


def test_an_input_that_holds_a_shape(build: Build, tmp_path: Path) -> None:
    nodes = [helper.make_node("Expand", ["x", "size"], ["y"])]
    inputs = {"x": (TensorProto.FLOAT, [1, 4]), "size": (TensorProto.INT64, [2])}
    model = models.build(nodes, inputs, {"y": (TensorProto.FLOAT, ["a", 4])})
    path = models.write(model, tmp_path / "expand.onnx")
    sizes = {"min": [1, 4], "opt": [3, 4], "max": [8, 4]}
    engine = build(path, options={"shape_values": {"size": sizes}})
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    for rows in (3, 1, 8, 3):
        got = engine.run({"x": x, "size": np.array([rows, 4], np.int64)})["y"]
        np.testing.assert_array_equal(got, np.repeat(x, rows, axis=0))


def test_an_engine_crosses_to_a_worker_and_back(
    double: TensorRtBackend, mlp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(DOUBLE))
    worker = WorkerBackend("tensorrt", route_timeout_s=60)
    try:
        engine = worker.build(request_for(mlp))
        data = engine.serialize()
        assert data is not None
        assert not engine.info.digest_proves
        assert len(engine.info.layers) == 8
        loaded = worker.load(request_for(mlp, kept=engine.info.facts), data)
        np.testing.assert_array_equal(loaded.run({"x": X})["y"], engine.run({"x": X})["y"])
        with pytest.raises(EngineFailedError, match="plan sha256 is"):
            worker.load(request_for(mlp, kept=engine.info.facts), data + b" ")
    finally:
        worker.close()


@pytest.mark.parametrize("fresh", [False, True])
def test_only_a_process_of_several_engines_is_watched(
    build: Build, mlp: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    """A module, a graph and events are in it then, before the first engine."""
    watched: list[object] = []
    monkeypatch.setattr("pytest_gptune.engines.cuda.process.LaunchPace", watched.append)
    engine = build(mlp, fresh=fresh)
    build(mlp, fresh=fresh).close()
    assert len(watched) == (0 if fresh else 1)
    assert engine.run({"x": np.zeros((4, 64), np.float32)})


def test_engines_that_are_measured_in_turns_have_a_process_each(
    double: TensorRtBackend, mlp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(DOUBLE))
    worker = WorkerBackend("tensorrt", route_timeout_s=60)
    try:
        shared = [worker.build(request_for(mlp))._worker.pid for _ in range(2)]
        apart = [worker.build(request_for(mlp, fresh=True))._worker.pid for _ in range(2)]
        assert len(set(shared)) == 1
        assert len({*shared, *apart}) == 3
    finally:
        worker.close()


def test_plugins_are_loaded_by_the_builder_and_by_the_runtime(
    build: Build, mlp: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.so").write_bytes(b"double plugins")
    build(mlp, options={"plugins": [str(tmp_path / "mine.so")]})
    rows = [json.loads(line) for line in (tmp_path / "builds.jsonl").read_text().splitlines()]
    assert [row["of"] for row in rows if row.get("plugin") == "mine.so"] == ["builder", "runtime"]
    (tmp_path / "other.so").write_bytes(b"another library")
    with pytest.raises(SettingsError, match=r"other\.so' cannot be loaded: TensorRT does not say why"):
        build(mlp, options={"plugins": [str(tmp_path / "other.so")]})


def test_an_output_that_does_not_fit_into_memory(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"x": (TensorProto.FLOAT, [8])}
    model = models.build(
        [helper.make_node("NonZero", ["x"], ["where"])], values, {"where": (TensorProto.INT64, [1, "n"])}
    )
    engine = build(models.write(model, tmp_path / "nonzero.onnx"))
    import cuda.bindings.runtime as runtime

    monkeypatch.setattr(
        runtime, "cudaMalloc", lambda size: (runtime.cudaError_t.cudaErrorMemoryAllocation, 0)
    )
    with pytest.raises(EngineOutOfMemoryError, match="cudaMalloc failed"):
        engine.run({"x": np.ones(8, np.float32)})


def test_a_knob_that_cannot_be_read_is_left_out_and_named(
    double: TensorRtBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = json.loads(double._trt.IBuilderConfig().all_build_routes)
    whole = len(document["tuner_options"])
    document["tuner_options"][1:1] = [{"option": "-odd", "allowed_values": "[a|b]", "default_value": "c"}, 3]
    monkeypatch.setattr(double._trt.IBuilderConfig, "all_build_routes", json.dumps(document))
    space = KnobSpace.from_json(double.knob_space(None, {}))
    assert sum(not knob.name.startswith("-builder:") for knob in space) == whole
    assert space.notes[1].startswith("Left out, since they cannot be read: -odd (")
    monkeypatch.setattr(double._trt.IBuilderConfig, "all_build_routes", "[]")
    with pytest.raises(GptuneError, match=r"lists build routes in a form that cannot be read"):
        double.knob_space(None, {})


class ScriptedClocks:
    """Clocks of a device that is slowed down for the first readings."""

    def __init__(self, slowed: int) -> None:
        self.slowed = slowed
        self.readings = 0

    def read(self) -> ClockReading:
        self.readings += 1
        slow = self.readings <= self.slowed
        return ClockReading(sm_hz=1e9 if slow else 2e9, throttle=("hw_thermal_slowdown",) if slow else ())

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("slowed", "blocks", "conditions"),
    [(0, 1, ()), (1, 2, ()), (2, 3, ()), (9, 3, ("throttled: hw_thermal_slowdown",))],
)
def test_samples_of_a_slowed_device_are_dropped_within_limits(
    build: Build, mlp: Path, slowed: int, blocks: int, conditions: tuple[str, ...]
) -> None:
    engine = build(mlp)
    engine.load({"x": X})
    loaded: Any = engine._loaded
    loaded._clocks = clocks = ScriptedClocks(slowed)
    block = engine.sample(0.005, 100)
    assert clocks.readings == blocks
    assert block.conditions == conditions
    assert block.sm_clock_hz == (1e9 if conditions else 2e9)


@pytest.mark.parametrize(("share", "moves"), [(0.97, True), (0.3, False)])
def test_an_engine_that_keeps_the_device_waiting_moves_from_core_to_core(
    build: Build, mlp: Path, monkeypatch: pytest.MonkeyPatch, share: float, moves: bool
) -> None:
    """Before each block that follows one in which the host was too slow."""
    asked: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: asked.append(cores), raising=False)
    monkeypatch.setattr(
        "pytest_gptune.engines.tensorrt.engine.sample_queued",
        lambda *args, observe, **options: observe() or DeviceSamples((1e-3,), share * 1e-3),
    )
    engine = build(mlp)
    engine.load({"x": X})
    loaded: Any = engine._loaded
    loaded._cores = CoreTurns(lambda: 1e-4)
    engine.sample(0.0, 1)
    assert asked == []
    for _ in range(3):
        engine.sample(0.0, 1)
    # Both were asked before the first of these blocks, and one before each of the others.
    assert sorted(asked[4::2], key=sorted) == ([{0}, {1}] if moves else [])
    assert asked[3::2] == ([{0, 1}] * 3 if moves else [])


def test_a_sample_is_of_many_runs_unless_the_cache_is_emptied_before(build: Build, mlp: Path) -> None:
    """Of 100 us each, so that ten make a millisecond; the double counts its runs."""
    for options, runs in (({}, 10), ({"l2_flush": True}, 1)):
        engine = build(mlp, options=options)
        engine.load({"x": X})
        engine.sample(0.0, 1)
        context: Any = engine._loaded._context  # type: ignore[union-attr]
        before = context._runs
        assert len(engine.sample(0.0, 1).latencies_s) == 1
        assert context._runs - before == pytest.approx(runs, abs=1)


def test_values_that_decide_shapes_are_captured_anew(build: Build, tmp_path: Path) -> None:
    """Shapes and addresses of all inputs and outputs stay as they are: what changes is in between."""
    nodes = [
        helper.make_node("Expand", ["x", "size"], ["wide"]),
        helper.make_node("ReduceSum", ["wide"], ["y"], keepdims=1),
    ]
    inputs = {"x": (TensorProto.FLOAT, [1, 4]), "size": (TensorProto.INT64, [2])}
    path = models.write(
        models.build(nodes, inputs, {"y": (TensorProto.FLOAT, [1, 1])}), tmp_path / "sum.onnx"
    )
    sizes = {"min": [1, 4], "opt": [3, 4], "max": [8, 4]}
    engine = build(path, options={"shape_values": {"size": sizes}})
    assert engine.info.graph
    for rows in (3, 8, 1, 8):
        got = engine.run({"x": np.ones((1, 4), np.float32), "size": np.array([rows, 4], np.int64)})["y"]
        assert got.item() == 4 * rows


def test_a_builder_knob_that_is_ignored_is_rejected(
    double: TensorRtBackend, build: Build, mlp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(double._trt.IBuilderConfig, "clear_flag", lambda self, flag: None)
    with pytest.raises(BuildRejectedError) as caught:
        build(mlp, ("-builder:TF32", "off"))
    assert "asked for '-builder:TF32=off', read back '-builder:TF32=on'" in caught.value.what


def test_an_allocator_lets_no_exception_out(double: TensorRtBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """What calls it is C++ that does not expect one."""
    allocator = make_output_allocator(double._trt)
    address = allocator.reallocate_output_async("y", 0, 64, 256, 0)
    assert address == allocator.reallocate_output("y", address, 32, 256) != 0
    import cuda.bindings.runtime as runtime

    monkeypatch.setattr(
        runtime, "cudaMalloc", lambda size: (runtime.cudaError_t.cudaErrorMemoryAllocation, 0)
    )
    assert allocator.reallocate_output_async("y", address, 128, 256, 0) == 0
    assert isinstance(allocator.refusal, EngineOutOfMemoryError)


def test_all_engines_of_a_process_run_on_one_stream(build: Build, mlp: Path) -> None:
    """A device is slower for good from the second stream on, whatever comes of that."""
    first, second = build(mlp), build(mlp, ("-copy_ppg", "off"))
    streams = {id(engine._loaded._stream) for engine in (first, second)}  # type: ignore[union-attr]
    assert len(streams) == 1
    first.close()
    np.testing.assert_allclose(second.run({"x": X})["y"], expected(mlp, {"x": X})[0], rtol=1e-6)
    assert first._loaded is None
