"""ONNX Runtime sessions as engines: inputs and outputs, errors while running, sampling, identity."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import models
import numpy as np
import pytest
from onnx import TensorProto, helper

from pytest_gptune.engines.base import (
    BuildRejectedError,
    Engine,
    EngineFailedError,
)
from pytest_gptune.engines.onnxruntime.session import SessionEngine

Build = Callable[..., SessionEngine]
NOT_ON_THE_CPU = ("int4", "uint4")
FLOAT = TensorProto.FLOAT


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(name) if hasattr(np, name) or name == "bool" else np.dtype(getattr(ml_dtypes, name))


def two_inputs(path: Path) -> Path:
    """``first`` [2], ``second`` [2] -> ``difference`` and ``sum``."""
    values = (FLOAT, [2])
    nodes = [
        helper.make_node("Sub", ["first", "second"], ["difference"]),
        helper.make_node("Add", ["first", "second"], ["sum"]),
    ]
    return models.write(
        models.build(nodes, {"first": values, "second": values}, {"difference": values, "sum": values}), path
    )


def test_it_is_an_engine(build: Build, fused: Path) -> None:
    engine: Engine = build(fused)
    assert engine.info.latency_kind == "host_wall"
    assert engine.info.build_seconds > 0
    assert not engine.info.graph
    assert len(engine.info.digest) == 64


def test_external_data_is_loaded(build: Build, tmp_path: Path) -> None:
    apart = models.external_data(tmp_path / "apart" / "m.onnx", seed=3)
    whole = models.mlp(tmp_path / "whole.onnx", layers=2, width=16, batch=2, seed=3)
    x = np.random.default_rng(0).standard_normal((2, 16)).astype(np.float32)
    assert (build(apart).run({"x": x})["y"] == build(whole).run({"x": x})["y"]).all()


def test_values_go_by_name_in_any_order(build: Build, tmp_path: Path) -> None:
    engine = build(two_inputs(tmp_path / "m.onnx"))
    first, second = np.array([5, 7], np.float32), np.array([2, 3], np.float32)
    for inputs in ({"first": first, "second": second}, {"second": second, "first": first}):
        outputs = engine.run(inputs)
        assert set(outputs) == {"difference", "sum"}
        assert outputs["difference"].tolist() == [3, 4]
        assert outputs["sum"].tolist() == [7, 10]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), ("missing ['first', 'second']", "unknown []")),
        (("first",), ("missing ['second']", "unknown []")),
        (("first", "second", "third"), ("missing []", "unknown ['third']")),
        (("first", "Second"), ("missing ['second']", "unknown ['Second']")),
    ],
)
def test_other_inputs_are_refused(
    build: Build, tmp_path: Path, given: tuple[str, ...], said: tuple[str, ...]
) -> None:
    engine = build(two_inputs(tmp_path / "m.onnx"))
    inputs = {name: np.zeros(2, np.float32) for name in given}
    for call in (engine.run, engine.load):
        with pytest.raises(EngineFailedError) as caught:
            call(inputs)
        assert all(part in caught.value.what for part in said)
        assert "['first', 'second']" in caught.value.mend


@pytest.mark.parametrize("shape", [(1, 1, 8), (2, 5, 8), (3, 64, 8), (1, 0, 8)])
def test_dynamic_shapes(build: Build, tmp_path: Path, shape: tuple[int, ...]) -> None:
    outputs = build(models.dynamic(tmp_path / "m.onnx")).run({"tokens": np.ones(shape, np.float32)})
    assert outputs["hidden"].shape == shape
    assert outputs["pooled"].shape == (shape[0], 8)


def test_one_engine_takes_one_shape_after_another(build: Build, tmp_path: Path) -> None:
    engine = build(models.dynamic(tmp_path / "m.onnx"))
    for batch in (1, 4, 2):
        tokens = np.full((batch, 3, 8), batch, np.float32)
        assert engine.run({"tokens": tokens})["hidden"].shape == tokens.shape
        engine.load({"tokens": tokens})
        assert len(engine.sample(0, at_most=1).latencies_s) == 1


@pytest.mark.parametrize("name", [name for name in models.TYPES if name not in NOT_ON_THE_CPU])
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3)], ids=["plain", "0-d", "empty"])
def test_every_type_passes_through(build: Build, tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    dtype = dtype_of(name)
    engine = build(models.identity(tmp_path / "m.onnx", name, shape))
    x = (np.arange(np.prod(shape, dtype=int)) - 2 * (dtype.kind in "if")).reshape(shape).astype(dtype)
    y = engine.run({"x": x})["y"]
    assert y.dtype == dtype
    assert y.shape == shape
    assert y.tobytes() == x.tobytes()
    assert not np.shares_memory(x, y)


@pytest.mark.parametrize("name", NOT_ON_THE_CPU)
def test_types_without_a_kernel_are_rejected(build: Build, tmp_path: Path, name: str) -> None:
    with pytest.raises(BuildRejectedError, match="Could not find an implementation for Identity"):
        build(models.identity(tmp_path / "m.onnx", name))


def test_extreme_values_pass_through(build: Build, tmp_path: Path) -> None:
    for name in ("float16", "float32", "float64", "bfloat16"):
        dtype = dtype_of(name)
        info = ml_dtypes.finfo(dtype)
        x = np.array([info.max, info.min, info.tiny, -0.0, np.inf, -np.inf], dtype).reshape(2, 3)
        assert build(models.identity(tmp_path / "m.onnx", name)).run({"x": x})["y"].tobytes() == x.tobytes()
    for name in ("int8", "int64", "uint64"):
        limits = np.iinfo(name)
        x = np.array([limits.max, limits.min, 0, 1, 2, 3], name).reshape(2, 3)
        assert (build(models.identity(tmp_path / "m.onnx", name)).run({"x": x})["y"] == x).all()


def test_arrays_in_any_layout(build: Build, tmp_path: Path) -> None:
    """ONNX Runtime reads bytes in C order and the machine's byte order, whatever an array says."""
    engine = build(models.identity(tmp_path / "m.onnx", "float32"))
    plain = np.arange(6, dtype=np.float32).reshape(2, 3)
    for x in (
        np.asfortranarray(plain),
        plain.astype(">f4"),
        plain.astype("<f4"),
        np.repeat(plain, 2, axis=1)[:, ::2],
        plain[::-1][::-1],
        np.broadcast_to(plain[0], (2, 3)),
    ):
        assert engine.run({"x": x})["y"].tolist() == x.tolist()


def test_scalars_and_empty_outputs(build: Build, tmp_path: Path) -> None:
    outputs = build(models.scalar_and_empty(tmp_path / "m.onnx")).run({"x": np.ones((2, 3), np.float32)})
    assert outputs["total"].shape == ()
    assert outputs["total"] == 6
    assert outputs["empty"].shape == (0, 3)
    assert outputs["empty"].dtype == np.float32


def test_outputs_of_several_types(build: Build, tmp_path: Path) -> None:
    outputs = build(models.several_outputs(tmp_path / "m.onnx")).run({"x": np.ones((3, 6), np.float32)})
    assert {name: array.dtype.name for name, array in outputs.items()} == {
        "scores": "float32",
        "label": "int64",
        "positive": "bool",
    }


def test_loops_and_branches(build: Build, tmp_path: Path) -> None:
    engine = build(models.if_loop(tmp_path / "m.onnx"))
    x = np.ones((2, 3), np.float32)
    for times, negate, want in ((0, False, 1), (3, True, -8)):
        inputs = {"x": x, "times": np.array(times, np.int64), "negate": np.array(negate)}
        assert (engine.run(inputs)["y"] == want).all()


def test_nan_passes_through(build: Build, tmp_path: Path) -> None:
    outputs = build(models.nan_output(tmp_path / "m.onnx")).run({"x": np.ones((2, 3), np.float32)})
    assert np.isnan(outputs["y"]).all()


def test_outputs_own_their_data(build: Build, fused: Path) -> None:
    engine = build(fused)
    first = engine.run({"x": np.ones((4, 64), np.float32)})["y"]
    kept = first.copy()
    engine.run({"x": np.full((4, 64), 9, np.float32)})
    assert (first == kept).all()
    first[:] = 0  # writable
    engine.close()
    assert (first == 0).all()


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn"])
def test_loaded_inputs_are_a_copy(build: Build, tmp_path: Path, name: str) -> None:
    dtype = dtype_of(name)
    engine = build(models.identity(tmp_path / "m.onnx", name))
    x = np.ones((2, 3), dtype)
    engine.load({"x": x})
    x[:] = 3
    engine.sample(0, at_most=1)
    from pytest_gptune.engines.onnxruntime.tensors import from_ort_value

    assert (from_ort_value(engine._binding.get_outputs()[0], "y").astype(float) == 1).all()


def test_a_sequence_is_refused(build: Build, tmp_path: Path) -> None:
    node = helper.make_node("SequenceConstruct", ["x", "x"], ["pair"])
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", FLOAT, [2])],
        [helper.make_tensor_sequence_value_info("pair", FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    engine = build(models.write(model, tmp_path / "m.onnx"))
    with pytest.raises(EngineFailedError) as caught:
        engine.run({"x": np.zeros(2, np.float32)})
    assert "'pair' is not a tensor" in caught.value.what
    assert "zipmap=False" in caught.value.mend


@pytest.mark.parametrize(
    ("kind", "said"), [(TensorProto.STRING, "'y' is text"), (TensorProto.INT4, "int4, which cannot be read")]
)
def test_outputs_that_are_no_numbers_are_refused(build: Build, tmp_path: Path, kind: int, said: str) -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=kind)
    model = models.build([node], {"x": (FLOAT, [2])}, {"y": (kind, [2])}, opset=21, ir_version=10)
    try:
        engine = build(models.write(model, tmp_path / "m.onnx"))
    except BuildRejectedError:
        pytest.skip("this version of ONNX Runtime makes no such output")
    with pytest.raises(EngineFailedError, match=said):
        engine.run({"x": np.zeros(2, np.float32)})


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((4, 63), np.float32),
        np.zeros((5, 64), np.float32),
        np.zeros(64, np.float32),
        np.zeros((4, 64)),
        np.zeros((4, 64), np.complex64),
        np.full((4, 64), "a"),
        np.full((4, 64), None),
        [[1.0, 2.0]],
    ],
    ids=["shape", "batch", "rank", "dtype", "complex", "text", "objects", "list"],
)
def test_unfit_arrays_fail_the_engine(build: Build, fused: Path, x: Any) -> None:
    engine = build(fused)
    with pytest.raises(EngineFailedError, match="ONNX Runtime raised"):
        engine.run({"x": x})
    assert engine.run({"x": np.zeros((4, 64), np.float32)})["y"].shape == (4, 64)


def test_an_error_inside_the_graph_fails_the_engine(build: Build, tmp_path: Path) -> None:
    """A Reshape to a shape that is an input: only the run knows that it does not fit."""
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    inputs = {"x": (FLOAT, ["n"]), "shape": (TensorProto.INT64, [2])}
    path = models.write(models.build([node], inputs, {"y": (FLOAT, ["a", "b"])}), tmp_path / "m.onnx")
    engine = build(path, log_severity=4)
    x = np.zeros(6, np.float32)
    assert engine.run({"x": x, "shape": np.array([2, 3])})["y"].shape == (2, 3)
    wrong = {"x": x, "shape": np.array([4, 4])}
    with pytest.raises(EngineFailedError, match="Reshape") as caught:
        engine.run(wrong)
    assert "\n" not in caught.value.what
    engine.load(wrong)
    with pytest.raises(EngineFailedError, match="Reshape"):
        engine.sample(1, at_most=5)


def test_sampling_before_loading_is_refused(build: Build, fused: Path) -> None:
    with pytest.raises(EngineFailedError, match="before load"):
        build(fused).sample(0.01, at_most=1)


@pytest.fixture
def loaded(build: Build, fused: Path) -> SessionEngine:
    engine = build(fused, {"-ort:intra_op_num_threads": "1"})
    engine.load({"x": np.ones((4, 64), np.float32)})
    return engine


def test_sampling_takes_at_most(loaded: SessionEngine) -> None:
    for at_most in (1, 2, 7):
        samples = loaded.sample(60, at_most=at_most).latencies_s
        assert len(samples) == at_most
        assert all(isinstance(sample, float) and sample > 0 for sample in samples)


def test_sampling_ends_with_its_time(loaded: SessionEngine) -> None:
    assert len(loaded.sample(0, at_most=1000).latencies_s) == 1
    counts: dict[float, list[int]] = {0.01: [], 0.1: []}
    for seconds in list(counts) * 3:
        samples = loaded.sample(seconds, at_most=10**9).latencies_s
        # The last sample ends at or after the deadline; all but it ended before.
        assert sum(samples[:-1]) < seconds
        counts[seconds].append(len(samples))
    assert min(counts[0.01]) < max(counts[0.1])


def test_a_sample_is_the_mean_of_its_batch(loaded: SessionEngine) -> None:
    calls = 0
    session = loaded._session

    class Counting:
        def run_with_iobinding(self, binding: Any) -> None:
            nonlocal calls
            calls += 1
            session.run_with_iobinding(binding)

    loaded._session = Counting()
    samples = loaded.sample(60, at_most=3, batch=50).latencies_s
    assert calls == 150
    loaded._session = session
    single = sorted(loaded.sample(60, at_most=150).latencies_s)[75]
    # A mean of 50, not their sum: within an order of magnitude even on a machine that is busy.
    assert min(samples) < 25 * single


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_tracing_and_collection_rest_while_sampling(
    loaded: SessionEngine, collects: bool, fails: bool
) -> None:
    seen: list[tuple[bool, bool]] = []

    class Watching:
        def run_with_iobinding(self, binding: Any) -> None:
            seen.append((gc.isenabled(), sys.gettrace() is None and sys.getprofile() is None))
            if fails:
                raise RuntimeError("on purpose")

    def trace(frame: Any, event: str, argument: Any) -> None:
        return None

    loaded._session = Watching()
    before = gc.isenabled(), sys.gettrace(), sys.getprofile()
    try:
        gc.enable() if collects else gc.disable()
        sys.settrace(trace)
        sys.setprofile(trace)
        if fails:
            with pytest.raises(EngineFailedError, match="on purpose"):
                loaded.sample(0, at_most=1)
        else:
            loaded.sample(0, at_most=1)
        after = gc.isenabled(), sys.gettrace(), sys.getprofile()
    finally:
        sys.settrace(before[1])
        sys.setprofile(before[2])
        gc.enable() if before[0] else gc.disable()
    assert seen == [(False, True)]
    assert after == (collects, trace, trace)


def test_closing_twice_is_harmless(loaded: SessionEngine) -> None:
    loaded.close()
    loaded.close()
