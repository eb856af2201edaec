"""Nodes in fp16 among others: what is converted, where casts stand, and what it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from pytest_gptune.engines.base import BuildRejectedError, BuildRequest
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend
from pytest_gptune.engines.onnxruntime.half_precision import to_fp16
from pytest_gptune.engines.onnxruntime.quantised_model import quantised_request
from pytest_gptune.routes import KnobSpace

FLOAT = TensorProto.FLOAT
RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def weights(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / 8).astype(np.float32)


def net() -> onnx.ModelProto:
    """Two convolutions with Relu, a branch into Softmax that is not converted, a Gemm at the end."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="second", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["sum"], name="add"),
        helper.make_node("Softmax", ["sum"], ["soft"], name="softmax", axis=1),
        helper.make_node("Flatten", ["soft"], ["flat"], name="flatten"),
        helper.make_node("Gemm", ["flat", "w3", "b3"], ["y"], name="last", transB=1),
    ]
    return models.build(
        nodes,
        {"x": (FLOAT, ["n", 3, 8, 8])},
        {"y": (FLOAT, ["n", 5])},
        {
            "w1": weights(4, 3, 3, 3),
            "b1": weights(4),
            "w2": weights(4, 4, 3, 3),
            "w3": weights(5, 256),
            "b3": weights(5),
        },
        opset=13,
    )


def run(model: onnx.ModelProto, **inputs: np.ndarray) -> list[np.ndarray]:
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    outputs: list[np.ndarray] = session.run(None, inputs)
    return outputs


def casts(model: onnx.ModelProto) -> list[tuple[str, int]]:
    return [(node.input[0], node.attribute[0].i) for node in model.graph.node if node.op_type == "Cast"]


def test_casts_stand_where_values_enter_and_leave() -> None:
    """Relu and Add only follow the convolutions; Softmax does not, and Flatten behind it neither."""
    model = net()
    expected = run(model, x=X)[0]
    to_fp16(model, [0, 2])
    assert casts(model) == [("x", TensorProto.FLOAT16), ("sum_gptune_half", TensorProto.FLOAT)]
    halves = {t.name for t in model.graph.initializer if t.data_type == TensorProto.FLOAT16}
    assert halves == {"w1_gptune_fp16", "b1_gptune_fp16", "w2_gptune_fp16"}
    (got,) = run(model, x=X)
    assert got.dtype == np.float32
    assert 0 < np.abs(got - expected).max() < 1e-3


def test_a_value_that_others_read_too_leaves_by_a_cast_of_its_own() -> None:
    """The first convolution alone: its Relu is read by the second convolution and by Add, in float32."""
    model = net()
    expected = run(model, x=X)[0]
    to_fp16(model, [0])
    assert casts(model) == [("x", TensorProto.FLOAT16), ("r1_gptune_half", TensorProto.FLOAT)]
    assert np.abs(run(model, x=X)[0] - expected).max() < 1e-3


def test_outputs_of_the_model_stay_float32() -> None:
    model = net()
    expected = run(model, x=X)[0]
    to_fp16(model, [6])
    assert casts(model) == [("flat", TensorProto.FLOAT16), ("y_gptune_half", TensorProto.FLOAT)]
    (got,) = run(model, x=X)
    assert 0 < np.abs(got - expected).max() < 1e-2


def test_what_is_not_chosen_keeps_its_numbers_to_the_bit() -> None:
    """A second output beside the converted branch, weights shared by both."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="a"),
        helper.make_node("MatMul", ["x", "w"], ["b"], name="b"),
        helper.make_node("Exp", ["b"], ["c"], name="c"),
    ]
    model = models.build(
        nodes, {"x": (FLOAT, [2, 8])}, {"a": (FLOAT, [2, 8]), "c": (FLOAT, [2, 8])}, {"w": weights(8, 8)}
    )
    x = X.reshape(-1)[:16].reshape(2, 8)
    before = run(model, x=x)
    to_fp16(model, [0])
    after = run(model, x=x)
    assert (after[0] != before[0]).any()
    np.testing.assert_array_equal(after[1], before[1])


def test_weights_of_a_constant_node_and_a_reader_in_a_subgraph() -> None:
    """The branch of an If reads what the converted node gives, by its old name."""
    then = helper.make_graph(
        [helper.make_node("Identity", ["m"], ["t"])],
        "then",
        [],
        [helper.make_tensor_value_info("t", FLOAT, None)],
    )
    otherwise = helper.make_graph(
        [helper.make_node("Neg", ["m"], ["e"])], "else", [], [helper.make_tensor_value_info("e", FLOAT, None)]
    )
    nodes = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weights(8, 8))),
        helper.make_node("MatMul", ["x", "w"], ["m"], name="m"),
        helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=otherwise),
    ]
    model = models.build(
        nodes, {"x": (FLOAT, [2, 8]), "flag": (TensorProto.BOOL, [])}, {"y": (FLOAT, [2, 8])}
    )
    x = X.reshape(-1)[:16].reshape(2, 8)
    for flag in (True, False):
        expected = run(model, x=x, flag=np.array(flag))[0]
        halved = onnx.ModelProto.FromString(model.SerializeToString())
        to_fp16(halved, [1])
        np.testing.assert_allclose(run(halved, x=x, flag=np.array(flag))[0], expected, atol=1e-2)


def test_a_weight_beyond_fp16_is_clamped_and_judged_by_its_loss() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="m")]
    model = models.build(
        nodes, {"x": (FLOAT, [1, 2])}, {"y": (FLOAT, [1, 2])}, {"w": np.diag([1e6, 1.0]).astype(np.float32)}
    )
    to_fp16(model, [0])
    (got,) = run(model, x=np.ones((1, 2), np.float32))
    assert got.tolist() == [[65504.0, 1.0]]


@pytest.mark.parametrize(
    ("operator", "constants", "follows"),
    [
        ("Mul", [[1e5]], False),
        ("Mul", [[1e-6]], False),
        ("Mul", [[1e-6, 1.0]], False),
        ("Mul", [[0.0]], True),
        ("Mul", [[10.0]], True),
        ("Mul", [[11.0]], False),
        ("Div", [[1e-4]], False),
        ("Div", [[0.125]], True),
        ("Div", [[1e5]], False),
        ("Add", [[1e5]], False),
        ("Add", [[1e-6]], False),
        ("Add", [[1e-6, 1.0]], True),
        ("Add", [[-np.inf, 0.0]], True),
        ("Add", [[-3.4e38, 0.0]], False),
        ("Clip", [[0.0], [6.0]], True),
        ("Clip", [[0.0], [3.4e38]], True),
        ("Clip", [[-3.4e38], [6.0]], True),
        ("Clip", [[1e-7], [6.0]], False),
        ("Clip", [[0.0], [1 - 1e-7]], False),
        ("Clip", [[1e5], [2e5]], False),
        ("BatchNormalization", [[1e4], [0.0], [100.0], [1e8]], False),
        ("BatchNormalization", [[1e-2], [0.0], [0.0], [1e-6]], False),
        ("BatchNormalization", [[1.0], [0.0], [0.0], [4.0]], True),
    ],
)
def test_a_constant_beyond_fp16_keeps_a_follower_in_float32(
    operator: str, constants: list[list[float]], follows: bool
) -> None:
    """A variance of 1e8 behind a convolution made text of the whole page, when it was clamped to 65504."""
    scalar = operator == "Clip"
    names = [f"k{number}" for number in range(len(constants))]
    values = {n: np.array(k[0] if scalar else k, np.float32) for n, k in zip(names, constants, strict=True)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node(operator, ["c", *names], ["y"], name="follower"),
    ]
    model = models.build(
        nodes,
        {"x": (FLOAT, [1, 1, 2, 2])},
        {"y": (FLOAT, [1, 1, 2, 2])},
        {"w": np.full((1, 1, 1, 1), 100, np.float32), **values},
        opset=15,
    )
    x = np.array([[[[3, 1], [0.25, 0.02]]]], np.float32)
    (exact,) = run(model, x=x)
    to_fp16(model, [0])
    follower = next(node for node in model.graph.node if node.name == "follower")
    assert follower.output[0].endswith("_gptune_half") == follows
    with np.errstate(all="ignore"):
        (rounded,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(rounded, exact, rtol=5e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("limits", "follows"), [((0.0, 6.0), True), ((0.0, 3.4e38), True), ((1e-7, 6.0), False)]
)
def test_limits_of_a_clip_may_be_attributes(limits: tuple[float, float], follows: bool) -> None:
    """Before opset 11; what is clipped at 3.4e38 is a Relu, and no small factor."""
    low, high = limits
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Clip", ["c"], ["clipped"], name="clip", min=low, max=high),
        helper.make_node("Mul", ["c", "clipped"], ["y"], name="product"),
    ]
    values = (FLOAT, [1, 1, 2, 2])
    weight = {"w": np.full((1, 1, 1, 1), 100, np.float32)}
    model = models.build(nodes, {"x": values}, {"y": values}, weight, opset=10)
    to_fp16(model, [0])
    half = {node.name for node in model.graph.node if node.output[0].endswith("_gptune_half")}
    assert ("clip" in half) == follows
    assert ("product" in half) == (follows and high == 6.0)


def test_gates_follow_and_squares_do_not() -> None:
    """300 squared is beyond fp16: a normalisation behind it would divide by infinity."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Mul", ["c", "s"], ["silu"], name="silu"),
        helper.make_node("Add", ["c", "three"], ["c3"]),
        helper.make_node("Clip", ["c3", "zero", "six"], ["c6"]),
        helper.make_node("Mul", ["c6", "sixth"], ["gate"], name="scale"),
        helper.make_node("Mul", ["c", "gate"], ["hardswish"], name="hardswish"),
        helper.make_node("Mul", ["c", "c6"], ["six_times"], name="six_times"),
        helper.make_node("Div", ["six_times", "six"], ["divided"], name="divided"),
        helper.make_node("Div", ["six", "c3"], ["inverse"], name="inverse"),
        helper.make_node("Clip", ["c", "zero", "largest"], ["clipped"]),
        helper.make_node("Mul", ["c", "clipped"], ["relu_square"], name="relu_square"),
        helper.make_node("Mul", ["s", "six"], ["s6"], name="s6"),
        helper.make_node("Mul", ["s6", "six"], ["s36"], name="s36"),
        helper.make_node("Mul", ["c", "s36"], ["large_gate"], name="large_gate"),
        helper.make_node("Mul", ["c", "c"], ["squared"], name="square"),
        helper.make_node("Mul", ["squared", "c"], ["cubed"], name="cube"),
        helper.make_node("Clip", ["c", "zero"], ["relu"]),
        helper.make_node("Mul", ["c", "relu"], ["half_square"], name="half_square"),
    ]
    constants = {"three": 3.0, "zero": 0.0, "six": 6.0, "sixth": 1 / 6, "largest": 3.4e38}
    model = models.build(
        nodes,
        {"x": (FLOAT, [1, 1, 2, 2])},
        {
            name: (FLOAT, [1, 1, 2, 2])
            for name in (
                *("silu", "hardswish", "divided", "inverse", "squared", "cubed", "half_square"),
                *("relu_square", "large_gate"),
            )
        },
        {"w": np.full((1, 1, 1, 1), 100, np.float32), **{k: np.float32(v) for k, v in constants.items()}},
    )
    x = np.array([[[[3, -3], [0.25, -0.02]]]], np.float32)
    exact = run(model, x=x)
    to_fp16(model, [0])
    half = {node.name for node in model.graph.node if node.output[0].endswith("_gptune_half")}
    assert half >= {"silu", "scale", "hardswish", "six_times", "divided", "s6", "s36"}
    assert not half & {"square", "cube", "half_square", "inverse", "relu_square", "large_gate"}
    # ONNX's own evaluator rounds each value to fp16, which ONNX Runtime on a CPU does not.
    with np.errstate(all="ignore"):
        rounded = ReferenceEvaluator(model).run(None, {"x": x})
    for got, expected in zip(rounded, exact, strict=True):
        np.testing.assert_allclose(got, expected, rtol=5e-3, atol=1e-3)


def test_a_route_builds_it_once_and_by_a_digest_of_its_own(tmp_path: Path) -> None:
    """The CPU computes fp16 by casting: it is the CUDA provider that offers the knob."""
    path = models.write(net(), tmp_path / "net.onnx")
    sha256 = inspect_model(path).sha256
    request = BuildRequest(str(path), sha256, (("-quant:first", "fp16"), ("-ort:a", "1")))
    made = quantised_request(request)
    assert made.route == (("-ort:a", "1"),)
    assert made.model_sha256 not in (
        sha256,
        quantised_request(BuildRequest(str(path), sha256, (("-quant:second", "fp16"),))).model_sha256,
    )
    assert quantised_request(request) == made
    assert casts(onnx.load(made.model)) == [("x", TensorProto.FLOAT16), ("r1_gptune_half", TensorProto.FLOAT)]
    with pytest.raises(BuildRejectedError, match="to one of fp16, int8, not to several"):
        quantised_request(
            BuildRequest(str(path), sha256, (("-quant:first", "fp16"), ("-quant:last", "int8")))
        )


@pytest.mark.parametrize(("provider", "value"), [("cpu", "int8"), ("cuda", "fp16")])
def test_the_provider_decides_what_the_knob_offers(tmp_path: Path, provider: str, value: str) -> None:
    path = models.write(net(), tmp_path / "net.onnx")
    options: dict[str, Any] = {"provider": provider, "quantise": "nodes"}
    space = KnobSpace.from_json(OnnxRuntimeBackend().knob_space(inspect_model(path), options))
    assert {knob.name: knob.values for knob in space}["-quant:first"] == ("off", value)
