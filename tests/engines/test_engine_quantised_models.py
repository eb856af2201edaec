"""Routes with quantised nodes: real engines, what they compute, and the models that are kept for them."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pytest_gptune.accuracy import Case, Golden, Provenance, save_golden
from pytest_gptune.engines.base import BuildRejectedError, BuildRequest
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend, quantised_model
from pytest_gptune.engines.onnxruntime.session import SessionEngine
from pytest_gptune.engines.worker import WorkerBackend
from pytest_gptune.errors import SettingsError
from pytest_gptune.routes import KnobSpace
from pytest_gptune.storage import cache_folder

FLOAT = TensorProto.FLOAT
RNG = np.random.default_rng(0)
X = RNG.standard_normal((1, 3, 8, 8)).astype(np.float32)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def mixed_model(*, opset: int = 13) -> onnx.ModelProto:
    """Conv, MatMul by a Constant's weights, Gemm; ``x`` [n, 3, 8, 8] -> ``y`` [n, 5]."""

    def weights(*shape: int) -> np.ndarray:
        return (RNG.standard_normal(shape) / 8).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["x", "wc", "bc"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("Constant", [], ["wm"], value=numpy_helper.from_array(weights(256, 16))),
        helper.make_node("MatMul", ["f", "wm"], ["m"], name="matmul"),
        helper.make_node("Gemm", ["m", "wg", "bg"], ["y"], name="gemm", transB=1),
    ]
    return models.build(
        nodes,
        {"x": (FLOAT, ["n", 3, 8, 8])},
        {"y": (FLOAT, ["n", 5])},
        {"wc": weights(4, 3, 3, 3), "bc": weights(4), "wg": weights(5, 16), "bg": weights(5)},
        opset=opset,
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return models.write(mixed_model(), tmp_path / "model.onnx")


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return write_golden(tmp_path / "golden.npz", X)


def write_golden(path: Path, *arrays: np.ndarray) -> Path:
    cases = tuple(
        Case(f"case{i}", {"x": array}, {"y": np.zeros((1, 5), np.float32)}) for i, array in enumerate(arrays)
    )
    save_golden(path, Golden(cases, Provenance("0" * 64, "test")))
    return path


@pytest.fixture
def build(backend: OnnxRuntimeBackend) -> Callable[..., SessionEngine]:
    def build(path: Path, *names: str, golden: Path | str = "", **options: Any) -> SessionEngine:
        route = tuple((f"-quant:{name}", "int8") for name in names)
        sha256 = inspect_model(path).sha256
        return backend.build(BuildRequest(str(path), sha256, route, options=options, golden=str(golden)))

    return build


Build = Callable[..., SessionEngine]


def kept() -> list[Path]:
    return sorted((cache_folder() / "quantised").glob("*"))


def test_the_knobs_of_a_model(backend: OnnxRuntimeBackend, model: Path) -> None:
    space = KnobSpace.from_json(backend.knob_space(inspect_model(model), {}))
    names = [knob.name for knob in space if knob.of_model]
    assert names == ["-quant:conv", "-quant:matmul", "-quant:gemm"]
    searched = {term.knob.name for term in space.expression().terms}
    assert not searched & set(names)
    asked = KnobSpace.from_json(backend.knob_space(inspect_model(model), {"quantise": ["*m*"]}))
    assert [k.name for k in asked if k.of_model] == ["-quant:*m*"]
    assert "-quant:*m*" in {term.knob.name for term in asked.expression().terms}
    assert asked.defaults_digest == space.defaults_digest
    assert not [k for k in KnobSpace.from_json(backend.knob_space(None, {})) if k.of_model]


@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize("names", [("conv",), ("matmul",), ("gemm",), ("conv", "matmul", "gemm")])
def test_each_node_can_be_quantised(
    build: Build, tmp_path: Path, golden: Path, names: tuple[str, ...], opset: int
) -> None:
    path = models.write(mixed_model(opset=opset), tmp_path / "m.onnx")
    exact = build(path).run({"x": X})["y"]
    engine = build(path, *names, golden=golden)
    close = engine.run({"x": X})["y"]
    assert not np.array_equal(close, exact)
    np.testing.assert_allclose(close, exact, atol=0.1)
    operators = [node.op_type for node in onnx.load(kept()[0]).graph.node]
    assert operators.count("QLinearConv") == ("conv" in names)
    assert operators.count("MatMulInteger") == len({"matmul", "gemm"} & set(names))
    wide = np.concatenate([X, X])
    assert engine.run({"x": wide})["y"].shape == (2, 5)  # the open dimension stays open


def test_off_is_the_model_itself(build: Build, backend: OnnxRuntimeBackend, model: Path) -> None:
    plain = build(model)
    off = backend.build(BuildRequest(str(model), inspect_model(model).sha256, (("-quant:matmul", "off"),)))
    assert off.info.digest == plain.info.digest
    assert np.array_equal(off.run({"x": X})["y"], plain.run({"x": X})["y"])
    assert kept() == []


def test_digests_tell_what_was_quantised(build: Build, model: Path, golden: Path, tmp_path: Path) -> None:
    other = write_golden(tmp_path / "other.npz", X * 2)
    digests = {
        "none": build(model).info.digest,
        "matmul": build(model, "matmul").info.digest,
        "gemm": build(model, "gemm").info.digest,
        "both": build(model, "matmul", "gemm").info.digest,
        "conv": build(model, "conv", golden=golden).info.digest,
        "conv, calibrated otherwise": build(model, "conv", golden=other).info.digest,
    }
    assert len(set(digests.values())) == len(digests)
    assert build(model, "gemm", "matmul").info.digest == digests["both"]
    # Dynamic quantisation reads no golden, so that a new one changes no engine.
    assert build(model, "matmul", golden=golden).info.digest == digests["matmul"]
    assert build(model, "*m*", quantise=["*m*"]).info.digest == digests["both"]


def test_the_model_is_quantised_once(build: Build, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(model, "matmul").run({"x": X})["y"]
    content = [path.read_bytes() for path in kept()]
    monkeypatch.setattr(quantised_model, "_quantise", None)
    assert np.array_equal(build(model, "matmul").run({"x": X})["y"], first)
    assert [path.read_bytes() for path in kept()] == content
    assert len(content) == 1


def test_two_that_want_it_at_once_quantise_it_once(
    build: Build, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, calls = quantised_model._quantise, []

    def slowly(*arguments: Any) -> bytes:
        calls.append(1)
        time.sleep(0.2)
        return really(*arguments)

    monkeypatch.setattr(quantised_model, "_quantise", slowly)
    with ThreadPoolExecutor(2) as pool:
        engines = list(pool.map(lambda _: build(model, "matmul"), range(2)))
    assert len(calls) == 1
    assert engines[0].info.digest == engines[1].info.digest


def test_the_range_is_that_of_the_golden(build: Build, model: Path, tmp_path: Path) -> None:
    narrow = write_golden(tmp_path / "narrow.npz", X / 100)
    exact = build(model).run({"x": X})["y"]

    def loss(golden: Path) -> float:
        return float(np.abs(build(model, "conv", golden=golden).run({"x": X})["y"] - exact).max())

    both = write_golden(tmp_path / "both.npz", X / 100, X)
    assert loss(both) < loss(narrow) / 5


def test_constant_weights_of_many_users_stay(build: Build, tmp_path: Path) -> None:
    """Two nodes share their weights, and one of them is left as it is."""
    weights = (RNG.standard_normal((8, 8)) / 4).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="a"),
        helper.make_node("MatMul", ["a", "w"], ["y"], name="b"),
    ]
    values = (FLOAT, [2, 8])
    path = models.write(
        models.build(nodes, {"x": values}, {"y": values}, {"w": weights}), tmp_path / "m.onnx"
    )
    x = RNG.standard_normal((2, 8)).astype(np.float32)
    losses = [
        float(np.abs(build(path, *names).run({"x": x})["y"] - x @ weights @ weights).max())
        for names in ((), ("a",), ("b",), ("a", "b"))
    ]
    assert losses[0] < 1e-5
    assert all(1e-5 < loss < 0.1 for loss in losses[1:])


def test_a_model_inside_of_a_subgraph_is_passed_over(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    value = helper.make_tensor_value_info("z", FLOAT, [2, 4])

    def branch(name: str) -> onnx.GraphProto:
        node = helper.make_node("MatMul", ["x", "w"], ["z"], name=f"in_{name}")
        return helper.make_graph([node], name, [], [value], [weights])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("t"), else_branch=branch("e"))
    path = models.write(
        models.build([node], {"x": (FLOAT, [2, 4]), "c": (TensorProto.BOOL, [])}, {"y": (FLOAT, [2, 4])}),
        tmp_path / "m.onnx",
    )
    space = KnobSpace.from_json(backend.knob_space(inspect_model(path), {"quantise": "nodes"}))
    assert not [knob for knob in space if knob.of_model]


def test_external_data_is_taken(build: Build, tmp_path: Path) -> None:
    inline = models.write(mixed_model(), tmp_path / "inline.onnx")
    path = tmp_path / "external.onnx"
    onnx.save_model(
        onnx.load(inline), path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    assert inspect_model(path).data_files
    close = build(path, "gemm").run({"x": X})["y"]
    assert np.array_equal(close, build(inline, "gemm").run({"x": X})["y"])


def test_a_model_too_large_is_rejected(build: Build, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised_model, "_MOST_BYTES", 1000)
    with pytest.raises(BuildRejectedError, match="more than 2 GB cannot be quantised") as caught:
        build(model, "matmul")
    assert "reference=" in caught.value.mend
    assert build(model).run({"x": X})


@pytest.mark.parametrize("content", [None, b"", b"PK nothing"])
def test_a_conv_needs_a_golden(build: Build, model: Path, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "golden.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BuildRejectedError, match="golden") as caught:
        build(model, "conv", golden=path)
    assert "--gptune-update-goldens" in caught.value.mend
    with pytest.raises(BuildRejectedError, match="there is no golden"):
        build(model, "conv")


def test_an_archive_of_something_else_is_no_golden(build: Build, model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", x=X)
    with pytest.raises(BuildRejectedError, match="cannot be read for calibration: KeyError"):
        build(model, "conv", golden=tmp_path / "other.npz")


def test_a_golden_that_is_compressed_is_not_expanded(build: Build, model: Path, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "large.npz", x=np.zeros(10**6))
    with pytest.raises(BuildRejectedError, match="its members are compressed"):
        build(model, "conv", golden=tmp_path / "large.npz")


def test_a_knob_that_is_not_there(build: Build, model: Path) -> None:
    with pytest.raises(BuildRejectedError, match="no knob -quant:nothing"):
        build(model, "nothing")


def test_a_node_the_tool_leaves_alone_is_rejected(
    build: Build, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A route is a request: what the tool made of it is read back."""
    import onnxruntime.quantization as tool

    def pretend(given: Path, out: Path, **_: Any) -> None:
        out.write_bytes(given.read_bytes())

    monkeypatch.setattr(tool, "quantize_dynamic", pretend)
    with pytest.raises(BuildRejectedError, match="leaves 2 of 2 nodes as they are: 'matmul', 'gemm'"):
        build(model, "matmul", "gemm")
    assert kept() == []


def test_what_the_tool_raises_is_the_routes_failure(
    build: Build, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime.quantization as tool

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no  such\nthing")

    monkeypatch.setattr(tool, "quantize_dynamic", fail)
    with pytest.raises(BuildRejectedError, match="cannot quantise the nodes: ValueError: no such thing"):
        build(model, "matmul")


def test_the_tool_is_silent(
    build: Build, model: Path, golden: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It writes warnings to the root logger, which a user would take for ours."""
    with caplog.at_level(logging.WARNING):
        build(model, "conv", "matmul", "gemm", golden=golden)
    assert not caplog.records


def test_models_used_longest_ago_are_dropped(
    build: Build, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(model, "matmul")
    first = kept()
    monkeypatch.setattr(quantised_model, "_KEPT_BYTES", 0)
    build(model, "gemm")
    assert len(kept()) == 1
    assert kept() != first


def test_patterns_are_checked_with_the_model(backend: OnnxRuntimeBackend, model: Path) -> None:
    with pytest.raises(SettingsError, match="'nothing' matches no"):
        backend.knob_space(inspect_model(model), {"quantise": ["nothing"]})


def test_it_works_in_a_worker(model: Path, golden: Path) -> None:
    backend = WorkerBackend("onnxruntime", route_timeout_s=120)
    try:
        request = BuildRequest(
            str(model), inspect_model(model).sha256, (("-quant:conv", "int8"),), golden=str(golden)
        )
        close = backend.build(request).run({"x": X})["y"]
        with pytest.raises(SettingsError, match=re.escape("'*z' matches no")):
            backend.knob_space(inspect_model(model), {"quantise": ["*z"]})
    finally:
        backend.close()
    assert close.shape == (1, 5)
