"""Copies of inputs and outputs within what is timed, over the double."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from double_engines import Build, X, expected
from onnx import TensorProto, helper

from pytest_gptune.engines.base import (
    EngineFailedError,
    ShapeRange,
)
from pytest_gptune.engines.tensorrt.engine import TensorRtEngine


def copies_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Kinds and sizes of the copies from now on: 1 to the device, 2 to the host."""
    import cuda.bindings.runtime as runtime

    copies: list[tuple[int, int]] = []
    copy = runtime.cudaMemcpyAsync

    def counted(target: int, source: int, size: int, kind: int, stream: int) -> Any:
        copies.append((int(kind), size))
        return copy(target, source, size, kind, stream)

    monkeypatch.setattr(runtime, "cudaMemcpyAsync", counted)
    return copies


def test_transfers_are_timed_where_that_is_asked_for(
    build: Build, mlp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in and once out in each inference, from and to memory that is pinned."""
    engine = build(mlp, options={"transfers": True})
    engine.load({"x": X})
    copies = copies_of(monkeypatch)
    engine.sample(0.0, 1)
    y = expected(mlp, {"x": X})[0]
    assert copies[:2] == [(1, X.nbytes), (2, y.nbytes)]
    copies.clear()
    np.testing.assert_allclose(engine.run({"x": X})["y"], y, rtol=1e-6)
    engine.load({"x": 2 * X})
    engine.sample(0.0, 1)
    np.testing.assert_allclose(engine.run({"x": 2 * X})["y"], expected(mlp, {"x": 2 * X})[0], rtol=1e-6)
    engine.close()


def dynamic_engine(build: Build, folder: Path) -> tuple[Path, TensorRtEngine]:
    """A model for one to four times two to sixteen tokens of eight, and an engine that times transfers."""
    path = models.dynamic(folder / "dynamic.onnx", width=8)
    shapes = {"tokens": ShapeRange((1, 2, 8), (2, 4, 8), (4, 16, 8))}
    return path, build(path, shapes=shapes, options={"transfers": True})


def test_transfers_are_of_the_loaded_shape_and_not_of_the_largest(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All cases are run before one is timed, and buffers stay as large as the largest."""
    path, engine = dynamic_engine(build, tmp_path)
    small, large = (np.ones(shape, np.float32) for shape in ((1, 2, 8), (4, 16, 8)))
    engine.run({"tokens": large})
    engine.load({"tokens": small})
    outputs = sorted((2, array.nbytes) for array in expected(path, {"tokens": small}))
    copies = copies_of(monkeypatch)
    engine.sample(0.0, 1)
    assert [copies[0], *sorted(copies[1 : 1 + len(outputs)])] == [(1, small.nbytes), *outputs]
    engine.close()


def test_other_inputs_between_loading_and_sampling_change_no_sample(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are run in the buffers of the loaded ones, which had to grow for them."""
    path, engine = dynamic_engine(build, tmp_path)
    small, large = (np.full(shape, 2, np.float32) for shape in ((1, 2, 8), (4, 16, 8)))
    engine.load({"tokens": small})
    engine.run({"tokens": large})
    engine.sample(0.0, 1)
    copies = copies_of(monkeypatch)
    engine.sample(0.0, 1)
    assert copies[0] == (1, small.nbytes)
    loaded = engine._loaded
    assert loaded is not None
    for got, want in zip(loaded._bindings.outputs().values(), expected(path, {"tokens": small}), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    with pytest.raises(EngineFailedError, match="outside of what the engine"):
        engine.load({"tokens": np.zeros((5, 4, 8), np.float32)})
    with pytest.raises(EngineFailedError, match=r"sample\(\) before load\(\)"):
        engine.sample(0.0, 1)
    engine.close()


def test_an_output_that_a_run_allocates_is_transferred_too(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"x": (TensorProto.FLOAT, [8])}
    model = models.build(
        [helper.make_node("NonZero", ["x"], ["where"])], values, {"where": (TensorProto.INT64, [1, "n"])}
    )
    engine = build(models.write(model, tmp_path / "nonzero.onnx"), options={"transfers": True})
    engine.run({"x": np.ones(8, np.float32)})
    copies = copies_of(monkeypatch)
    for x, found in (([0, 1, 0, 2, 0, 0, 0, 3], 3), ([0] * 8, 0), ([1] * 8, 8)):
        engine.load({"x": np.array(x, np.float32)})
        copies.clear()
        engine.sample(0.0, 1)
        assert copies == [(1, 32), (2, 8 * found)][: 1 + bool(found)]
    engine.close()
