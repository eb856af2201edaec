"""Arrays on their way to a worker and back: the same bytes and dtypes, or a clear refusal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import models
import numpy as np
import pytest
from onnx import TensorProto, helper

from pytest_gptune.engines.base import BuildRequest, EngineFailedError
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.worker import WorkerBackend
from pytest_gptune.engines.worker.messages import dtype_named, sendable

NUMBERS = [
    *(np.dtype(name) for name in models.TYPES if hasattr(np, name) or name == "bool"),
    *(np.dtype(getattr(ml_dtypes, name)) for name in models.TYPES if hasattr(ml_dtypes, name)),
]


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerBackend]:
    backend = WorkerBackend("onnxruntime", route_timeout_s=300)
    yield backend
    backend.close()


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_arrays_of_numbers_cross_as_they_are(dtype: np.dtype) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    (crossing,) = sendable({"x": array}).values()
    assert crossing.dtype == dtype == dtype_named(dtype.name)
    assert crossing.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8", ">i2", ">u4", ">i8"])
def test_the_byte_order_becomes_the_machines(dtype: str) -> None:
    array = np.arange(6, dtype=dtype)
    (crossing,) = sendable({"x": array}).values()
    assert crossing.dtype == dtype_named(crossing.dtype.name)
    assert crossing.dtype.isnative
    assert crossing.tolist() == array.tolist()


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a"]),
        np.array([b"a"]),
        np.array([None]),
        np.array([1, "a"], object),
        np.zeros(1, [("a", "f4")]),
        "text",
        None,
    ],
    ids=["text", "bytes", "none", "objects", "records", "a string", "nothing"],
)
def test_anything_else_is_refused(array: np.ndarray) -> None:
    with pytest.raises(EngineFailedError) as caught:
        sendable({"good": np.zeros(1), "bad": array})
    assert "'bad' has element type" in caught.value.what
    assert caught.value.mend


def test_a_worker_reads_any_byte_order_and_survives_a_refusal(worker: WorkerBackend, tmp_path: Path) -> None:
    path = models.identity(tmp_path / "m.onnx", "float32")
    engine = worker.build(BuildRequest(str(path), inspect_model(path).sha256))
    plain = np.arange(6, dtype=np.float32).reshape(2, 3)
    with pytest.raises(EngineFailedError, match="'x' has element type"):
        engine.run({"x": np.full((2, 3), "a")})
    for x in (plain, plain.astype(">f4"), np.asfortranarray(plain)):
        assert engine.run({"x": x})["y"].tolist() == plain.tolist()
    engine.close()


def test_a_workers_text_is_refused(worker: WorkerBackend, tmp_path: Path) -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.STRING)
    model = models.build([node], {"x": (TensorProto.FLOAT, [2])}, {"y": (TensorProto.STRING, [2])})
    path = models.write(model, tmp_path / "m.onnx")
    engine = worker.build(BuildRequest(str(path), inspect_model(path).sha256))
    with pytest.raises(EngineFailedError, match="'y' is text"):
        engine.run({"x": np.zeros(2, np.float32)})
    engine.close()
