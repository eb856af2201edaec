"""The engine of the CUDA provider without a GPU: ONNX Runtime on the CPU, its buffers those of a fake device.

A fake device's memory is the host's, so a session on the CPU reads and writes the buffers that are bound.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import models
import numpy as np
import onnxruntime
import pytest
from fake_cuda import Error, FakeRuntime
from onnx import TensorProto, helper

from pytest_gptune.engines.base import (
    BuildRejectedError,
    EngineFailedError,
    EngineInfo,
    EngineOutOfMemoryError,
)
from pytest_gptune.engines.cuda import CudaError, Device, Stream, sampling
from pytest_gptune.engines.host_pace import CoreTurns
from pytest_gptune.engines.onnxruntime.cuda_engine import CudaSessionEngine

INFO = EngineInfo("digest", "device_queued", 0.1)
WITH_GRAPH = EngineInfo("digest", "device_queued", 0.1, graph=True)

Make = Callable[..., CudaSessionEngine]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    runtime = FakeRuntime()
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", runtime)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return runtime


@pytest.fixture
def make(fake: FakeRuntime) -> Iterator[Make]:
    made: list[CudaSessionEngine] = []

    def make(path: Path, info: EngineInfo = INFO, wrap: Any = None, **options: Any) -> CudaSessionEngine:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        made.append(
            CudaSessionEngine(
                wrap(session) if wrap else session,
                info,
                lambda: b"optimised",
                Device.find("0"),
                Stream(),
                memory="cpu",
                **options,
            )
        )
        return made[-1]

    yield make
    for engine in made:
        engine.close()
    assert not fake.memory
    assert not fake.pinned
    assert fake.living_events == 0


class Wrapped:
    """A session, but for what a test has it do otherwise."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.runs = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


class Replaying(Wrapped):
    """Does with graphs what the CUDA provider does: a replay has the addresses of its capture."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self.captured: dict[str, Any] = {}
        self.replays = 0

    def run_with_iobinding(self, io: Any, options: Any) -> None:
        graph = options.get_run_config_entry("gpu_graph_id")
        if graph != "-1":
            self.replays += graph in self.captured
            io = self.captured.setdefault(graph, io)
        self._session.run_with_iobinding(io, options)


def reference(path: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    results: list[np.ndarray] = session.run(None, inputs)
    return results


def test_outputs_are_those_of_the_session(make: Make, tmp_path: Path) -> None:
    path = models.dynamic(tmp_path / "m.onnx")
    engine = make(path)
    generator = np.random.default_rng(0)
    for shape in ((2, 5, 8), (1, 3, 8), (2, 5, 8)):
        inputs = {"tokens": generator.standard_normal(shape).astype(np.float32)}
        got = engine.run(inputs)
        assert list(got) == ["hidden", "pooled"]
        for array, expected in zip(got.values(), reference(path, inputs), strict=True):
            np.testing.assert_array_equal(array, expected)
            assert array.flags.owndata
    assert engine.info is INFO
    assert engine.serialize() == b"optimised"


def test_outputs_whose_shape_depends_on_values(make: Make, tmp_path: Path) -> None:
    node = helper.make_node("NonZero", ["x"], ["y"])
    floats = (TensorProto.FLOAT, [6])
    model = models.build([node], {"x": floats}, {"y": (TensorProto.INT64, [1, "n"])})
    engine = make(models.write(model, tmp_path / "m.onnx"))
    for values in ([1, 0, 0, 2, 0, 3], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]):
        x = np.array(values, np.float32)
        np.testing.assert_array_equal(engine.run({"x": x})["y"], [np.flatnonzero(x)])


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.bool_, np.int64, np.uint8])
def test_element_types(make: Make, tmp_path: Path, dtype: Any) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node("Identity", ["x"], ["y"])
    model = models.build([node], {"x": (kind, [2, 3])}, {"y": (kind, [2, 3])})
    x = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    y = make(models.write(model, tmp_path / "m.onnx")).run({"x": x})["y"]
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x)


def test_a_sequence_is_refused(make: Make, tmp_path: Path) -> None:
    node = helper.make_node("SequenceConstruct", ["x"], ["y"])
    value = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, [2])
    model = models.build([node], {"x": (TensorProto.FLOAT, [2])}, {"y": (TensorProto.FLOAT, [2])})
    model.graph.output[0].CopyFrom(value)
    with pytest.raises(EngineFailedError, match="'y' is not a tensor"):
        make(models.write(model, tmp_path / "m.onnx")).run({"x": np.ones(2, np.float32)})


def test_an_output_that_is_not_written_is_poison(make: Make, fused: Path) -> None:
    """The run that is read is another than the one that tells shapes."""

    class Lazy(Wrapped):
        def run_with_iobinding(self, io: Any, options: Any) -> None:
            self.runs += 1
            if self.runs == 1:
                self._session.run_with_iobinding(io, options)

    assert np.isnan(make(fused, wrap=Lazy).run({"x": np.ones((4, 64), np.float32)})["y"]).all()


def test_wrong_inputs_are_named(make: Make, fused: Path) -> None:
    engine = make(fused)
    with pytest.raises(EngineFailedError, match=r"missing \['x'\], unknown \['z'\]"):
        engine.run({"z": np.ones((4, 64), np.float32)})
    with pytest.raises(EngineFailedError, match=r"ONNX Runtime raised .* invalid dimensions for input: x"):
        engine.run({"x": np.ones((4, 65), np.float32)})
    with pytest.raises(EngineFailedError, match="before load"):
        engine.sample(0.01, 10)


def test_a_graph_is_replayed_with_new_inputs(make: Make, fused: Path) -> None:
    sessions: list[Replaying] = []

    def wrap(session: Any) -> Replaying:
        sessions.append(Replaying(session))
        return sessions[-1]

    engine = make(fused, WITH_GRAPH, wrap)
    for seed in range(3):
        inputs = {"x": np.random.default_rng(seed).standard_normal((4, 64)).astype(np.float32)}
        np.testing.assert_array_equal(engine.run(inputs)["y"], reference(fused, inputs)[0])
    assert len(sessions[0].captured) == 1
    assert sessions[0].replays == 4  # one that proves the graph, and each run


def test_each_shape_has_a_graph_of_its_own(make: Make, tmp_path: Path) -> None:
    sessions: list[Replaying] = []

    def wrap(session: Any) -> Replaying:
        sessions.append(Replaying(session))
        return sessions[-1]

    path = models.dynamic(tmp_path / "m.onnx")
    engine = make(path, WITH_GRAPH, wrap)
    for length in (*range(1, 13), 1):
        inputs = {"tokens": np.full((1, length, 8), length, np.float32)}
        np.testing.assert_array_equal(engine.run(inputs)["pooled"], reference(path, inputs)[1])
    # The first shape was let go for the ninth to twelfth, so it was captured again under another number.
    assert list(sessions[0].captured) == [str(number) for number in range(13)]


def test_a_graph_that_is_not_replayed_is_refused(make: Make, fused: Path) -> None:
    """A session on the CPU has no graphs, and says nothing."""
    engine = make(fused, WITH_GRAPH)
    with pytest.raises(BuildRejectedError, match="asks for a CUDA graph, but ONNX Runtime ran without"):
        engine.load({"x": np.ones((4, 64), np.float32)})


def test_the_loaded_inputs_outlive_other_shapes(make: Make, fake: FakeRuntime, tmp_path: Path) -> None:
    engine = make(models.dynamic(tmp_path / "m.onnx"))
    engine.load({"tokens": np.ones((1, 1, 8), np.float32)})
    for length in range(2, 30):
        engine.run({"tokens": np.ones((1, length, 8), np.float32)})
    assert len(fake.memory) <= 3 * 9  # an input and two outputs each
    assert engine.sample(0.001, 3).latencies_s


def test_a_block_knows_its_conditions(make: Make, fused: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make(fused)
    engine.load({"x": np.ones((4, 64), np.float32)})
    block = engine.sample(0.01, 5)
    assert 1 <= len(block.latencies_s) <= 5
    assert block.enqueue_share is not None
    assert block.sm_clock_hz is None  # there is no NVML
    assert block.conditions == ()


def test_what_the_session_has_on_the_host_stays_there(make: Make, fake: FakeRuntime, tmp_path: Path) -> None:
    class Split(Wrapped):
        """Says that the second input and output are read and written on the host."""

        def get_input_memory_infos(self) -> list[Any]:
            return [SimpleNamespace(name="Cpu"), SimpleNamespace(name="CudaPinned")]

        get_output_memory_infos = get_input_memory_infos

    values = (TensorProto.FLOAT, [2])
    nodes = [helper.make_node("Add", ["x", "w"], ["s"]), helper.make_node("Sub", ["x", "w"], ["d"])]
    model = models.build(nodes, {"x": values, "w": values}, {"s": values, "d": values})
    engine = make(models.write(model, tmp_path / "m.onnx"), wrap=Split)
    for number in (1, 2):
        x, w = np.full(2, number, np.float32), np.ones(2, np.float32) * 10
        got = engine.run({"x": x, "w": w})
        assert list(got) == ["s", "d"]
        np.testing.assert_array_equal(got["s"], x + w)
        np.testing.assert_array_equal(got["d"], x - w)
        assert len(fake.memory) == 2
    with pytest.raises(BuildRejectedError, match="asks for a CUDA graph, but d, w lie on the host"):
        make(tmp_path / "m.onnx", WITH_GRAPH, Split)


def test_a_failure_of_the_device_keeps_its_name(make: Make, fake: FakeRuntime, fused: Path) -> None:
    engine = make(fused)
    engine.load({"x": np.ones((4, 64), np.float32)})
    fake.failing["cudaEventSynchronize"] = Error.cudaErrorIllegalAddress
    with pytest.raises(CudaError, match=r"^cudaEventSynchronize failed: cudaErrorIllegalAddress"):
        engine.sample(0.01, 10)
    fake.failing = {"cudaMalloc": Error.cudaErrorMemoryAllocation}
    with pytest.raises(EngineOutOfMemoryError, match=r"^cudaMalloc failed"):
        make(fused).run({"x": np.ones((4, 64), np.float32)})


def test_what_failed_first_is_told_where_nothing_can_be_released_either(
    make: Make, fake: FakeRuntime, fused: Path
) -> None:
    engine = make(fused)
    fake.failing = {
        "cudaMemcpyAsync": Error.cudaErrorIllegalAddress,
        "cudaFree": Error.cudaErrorIllegalAddress,
    }
    with pytest.raises(CudaError, match=r"^cudaMemcpyAsync failed: cudaErrorIllegalAddress"):
        engine.load({"x": np.ones((4, 64), np.float32)})
    fake.failing = {}
    fake.memory.clear()


def test_a_session_is_released_when_the_device_has_done_all(
    make: Make, fake: FakeRuntime, fused: Path
) -> None:
    """A callback that outlives its session would end the process."""

    class Watched(Wrapped):
        def __del__(self) -> None:
            fake.called.append("released")

    engine = make(fused, wrap=Watched)
    engine.load({"x": np.ones((4, 64), np.float32)})
    fake.called.clear()
    engine.close()
    gc.collect()
    assert fake.called.index("cudaDeviceSynchronize") < fake.called.index("released")


class Noting(Wrapped):
    """Notes how each run was asked for, and fails if it is told to."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self.asked: list[tuple[str, str]] = []
        self.broken = False

    def run_with_iobinding(self, io: Any, options: Any) -> None:
        keys = "gpu_graph_id", "disable_synchronize_execution_providers"
        self.asked.append((options.get_run_config_entry(keys[0]), options.get_run_config_entry(keys[1])))
        if self.broken:
            raise RuntimeError("it broke")
        self._session.run_with_iobinding(io, options)


@pytest.mark.parametrize(("host_s", "moves"), [(1.2e-3, True), (1e-4, False)])
def test_an_engine_that_keeps_the_device_waiting_moves_from_core_to_core(
    make: Make, fake: FakeRuntime, fused: Path, monkeypatch: pytest.MonkeyPatch, host_s: float, moves: bool
) -> None:
    """Before each block that follows one in which the host was too slow."""
    monkeypatch.setattr(sampling, "time", SimpleNamespace(perf_counter=fake.perf_counter))
    asked: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: asked.append(cores), raising=False)

    class OnCores(Wrapped):
        def run_with_iobinding(self, io: Any, options: Any) -> None:
            fake.kernel(1e-3, host_s)
            self._session.run_with_iobinding(io, options)

    engine = make(fused, wrap=OnCores)
    engine._cores = CoreTurns(lambda: 1e-4)
    engine.load({"x": np.ones((4, 64), np.float32)})
    engine.sample(0.005, 3)
    assert asked == []
    engine.sample(0.005, 3)  # all are asked before the first of these blocks
    asked.clear()
    for _ in range(3):
        engine.sample(0.005, 3)
    assert sorted(asked[::2], key=sorted) == ([{0}, {1}, {2}] if moves else [])
    assert asked[1::2] == ([{0, 1, 2}] * 3 if moves else [])


def test_the_last_run_before_a_session_goes_is_one_that_waits(
    make: Make, fake: FakeRuntime, fused: Path
) -> None:
    """Queued runs leave memory for such a run to release; the session's end would do it too late."""
    sessions: list[Noting] = []

    def noting(session: Any) -> Noting:
        sessions.append(Noting(session))
        return sessions[-1]

    x = np.ones((4, 64), np.float32)
    engine = make(fused, wrap=noting)
    engine.load({"x": x})
    engine.sample(0.001, 3)
    asked = sessions[0].asked
    assert asked[-1] == ("-1", "1")
    engine.close()
    assert asked[-1] == ("-1", "0")
    runs = len(asked)
    engine.close()
    assert len(asked) == runs

    broken = make(fused, wrap=noting)
    broken.load({"x": x})
    sessions[1].broken = True
    fake.called.clear()
    broken.close()
    assert "cudaDeviceSynchronize" in fake.called
    never_loaded = make(fused, wrap=noting)
    never_loaded.close()
    assert sessions[2].asked == []


def test_a_flush_comes_before_each_inference(make: Make, fake: FakeRuntime, fused: Path) -> None:
    engine = make(fused, l2_flush=True)
    engine.load({"x": np.ones((4, 64), np.float32)})
    fake.called.clear()
    engine.sample(60.0, 7, batch=5)
    assert fake.called.count("cudaMemsetAsync") == 7


def test_transfers_are_part_of_each_inference_where_that_is_asked_for(
    make: Make, fake: FakeRuntime, fused: Path
) -> None:
    engine = make(fused, transfers=True, l2_flush=True)  # one inference a sample
    engine.load({"x": np.ones((4, 64), np.float32)})
    assert len(fake.pinned) == 2
    fake.called.clear()
    engine.sample(60.0, 7, batch=5)
    assert fake.called.count("cudaMemcpyAsync") == 7 * 2
    engine.load({"x": np.zeros((4, 64), np.float32)})
    assert len(fake.pinned) == 2
    with_zeros = engine.run({"x": np.zeros((4, 64), np.float32)})["y"]
    engine.sample(60.0, 1)
    np.testing.assert_array_equal(engine.run({"x": np.zeros((4, 64), np.float32)})["y"], with_zeros)


@pytest.mark.parametrize("declared", [[1, "n"], [3, "a", "b"], [2, 5, 2]])
def test_an_output_of_another_shape_than_declared_is_allocated_by_each_run(
    make: Make, tmp_path: Path, declared: list[Any]
) -> None:
    """ONNX Runtime refuses a buffer for it."""
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    inputs: Any = {"x": (TensorProto.FLOAT, ["n", 4]), "shape": (TensorProto.INT64, ["r"])}
    outputs: Any = {"same": (TensorProto.FLOAT, ["n", 4]), "y": (TensorProto.FLOAT, declared)}
    path = models.write(models.build(nodes, inputs, outputs), tmp_path / "m.onnx")
    engine = make(path)
    for scale in (1.0, 2.0):
        x = np.full((2, 4), scale, np.float32)
        given = {"x": x, "shape": np.array([2, 2, 2])}
        engine.load(given)
        assert len(engine.sample(10.0, 5).latencies_s) == 5
        got = engine.run(given)
        np.testing.assert_array_equal(got["y"], x.reshape(2, 2, 2))
        np.testing.assert_array_equal(got["same"], x)
    with pytest.raises(BuildRejectedError, match="but y are of another shape than the model declares"):
        make(path, WITH_GRAPH).load(given)


def test_outputs_that_a_run_allocates_are_transferred_too(
    make: Make, fake: FakeRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    inputs: Any = {"x": (TensorProto.FLOAT, ["n", 4]), "shape": (TensorProto.INT64, ["r"])}
    path = models.write(
        models.build(nodes, inputs, {"y": (TensorProto.FLOAT, [1, "n"])}), tmp_path / "m.onnx"
    )
    engine = make(path, transfers=True, l2_flush=True)  # one inference a sample
    x, shape = np.ones((2, 4), np.float32), np.array([2, 2, 2])
    engine.load({"x": x, "shape": shape})
    copies: list[tuple[int, int]] = []
    copy = ctypes.memmove
    monkeypatch.setattr(ctypes, "memmove", lambda *args: copies.append((args[0], args[2])) or copy(*args))
    engine.sample(60.0, 1)
    assert [size for _, size in copies] == [x.nbytes, shape.nbytes, x.nbytes]
    pinned = fake.pinned[copies[-1][0]]
    np.testing.assert_array_equal(np.frombuffer(pinned, np.float32), x.ravel())


def test_a_refusal_that_has_nothing_to_do_with_declared_shapes_is_told(make: Make, tmp_path: Path) -> None:
    class Refusing(Wrapped):
        """All outputs are of the shapes that are declared."""

        def run_with_iobinding(self, io: Any, options: Any) -> None:
            self.runs += 1
            if self.runs > 1:
                raise RuntimeError("Got invalid dimensions for output: y")
            self._session.run_with_iobinding(io, options)

    path = models.mlp(tmp_path / "m.onnx")
    with pytest.raises(EngineFailedError, match="invalid dimensions for output: y"):
        make(path, wrap=Refusing).run({"x": np.ones((4, 64), np.float32)})
