"""Which nodes have a knob, what the knobs are called, and how nodes are grouped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import models
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from pytest_gptune.engines.base import BuildRejectedError
from pytest_gptune.engines.onnxruntime.quantise import (
    GROUPS,
    MOST_SINGLE,
    QuantNode,
    check_option,
    knob_options,
    node_groups,
    nodes_of,
    quantisable_nodes,
    split_route,
)
from pytest_gptune.errors import SettingsError
from pytest_gptune.routes import KnobSpace, RouteExpression

FLOAT = TensorProto.FLOAT


def model_of(nodes: Sequence[onnx.NodeProto], **weights: np.ndarray) -> onnx.ModelProto:
    return models.build(nodes, {"x": (FLOAT, [2, 4])}, {"y": (FLOAT, [2, 4])}, weights)


def matmul(name: str, weight: str = "w", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("MatMul", ["x", weight], [f"{name}_out"], name=name, **attributes)


def space_of(model: onnx.ModelProto, wanted: Any = None) -> KnobSpace:
    import json

    options = knob_options(node_groups(quantisable_nodes(model), wanted), on_request=wanted is None)
    return KnobSpace.from_json(json.dumps({"tuner_version": "1", "tuner_options": options}))


W = np.ones((4, 4), np.float32)


def test_nodes_with_constant_float_weights_have_knobs() -> None:
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(W))
    nodes = [
        constant,
        matmul("of_initialiser"),
        matmul("of_constant", "c"),
        matmul("of_activations", "x"),
        matmul("of_doubles", "d"),
        matmul("of_a_vector", "v"),
        helper.make_node("MatMul", ["w", "c"], ["folded"], name="of_two_constants"),
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("MatMul", ["x", "w"], ["custom"], name="of_another_domain", domain="com.example"),
    ]
    model = model_of(nodes, w=W, d=W.astype(np.float64), v=np.ones(4, np.float32))
    assert [node.name for node in quantisable_nodes(model)] == ["of_initialiser", "of_constant"]


@pytest.mark.parametrize(
    ("attributes", "has_knob"),
    [
        ({}, True),
        ({"transB": 1, "alpha": 1.0, "beta": 1.0}, True),
        ({"alpha": 0.5}, False),
        ({"beta": 2.0}, False),
        ({"transA": 1}, False),
    ],
)
def test_a_gemm_that_is_more_than_matmul_and_add_has_no_knob(
    attributes: dict[str, Any], has_knob: bool
) -> None:
    gemm = helper.make_node("Gemm", ["x", "w"], ["y"], name="gemm", **attributes)
    assert bool(quantisable_nodes(model_of([gemm], w=W))) == has_knob


def test_names_are_plain_and_stable() -> None:
    nodes = [matmul("a b[0]|#,=é"), matmul(""), matmul("twice"), matmul("twice"), matmul("")]
    names = [node.name for node in quantisable_nodes(model_of(nodes, w=W))]
    assert names == ["a_b_0______", "MatMul_1", "twice", "twice~2", "MatMul_4"]


@given(st.lists(st.text(max_size=12), min_size=1, max_size=8))
def test_any_names_give_a_knob_space(names: list[str]) -> None:
    model = model_of([matmul("")] * len(names), w=W)
    for node, name in zip(model.graph.node, names, strict=True):
        try:
            node.name = name
        except (UnicodeEncodeError, ValueError):  # protobuf refuses surrogates, so no model has them
            node.name = "x"
    space = space_of(model)
    assert len(space) == len(names)
    assert KnobSpace.from_json(space.to_json()) == space
    text = " ".join(knob.allowed_values for knob in space)
    assert RouteExpression.parse(text, space).full().count == 2 ** len(names)


def named(*names: str, operator: str = "MatMul") -> list[QuantNode]:
    return [QuantNode(name, position, operator) for position, name in enumerate(names)]


@given(st.lists(st.sampled_from(["Conv", "Gemm", "MatMul"]), min_size=1, max_size=300))
def test_default_groups_cover_each_node_once_and_are_few(operators: list[str]) -> None:
    nodes = [QuantNode(f"n{i}", i, operator) for i, operator in enumerate(operators)]
    groups = node_groups(nodes, None)
    assert sorted(node.position for group in groups for node in group.nodes) == list(range(len(nodes)))
    assert len({group.name for group in groups}) == len(groups)
    if len(nodes) <= MOST_SINGLE:
        assert [group.name for group in groups] == [node.name for node in nodes]
        return
    assert len(groups) <= GROUPS
    for group in groups:
        assert len({node.operator for node in group.nodes}) == 1
        assert group.name.startswith(f"{group.nodes[0].operator}:")
    assert len(node_groups(nodes, "nodes")) == len(nodes)


def test_groups_are_named_by_their_place() -> None:
    nodes = [QuantNode(f"c{i}", i, "Conv") for i in range(60)]
    assert [group.name for group in node_groups(nodes, None)][:3] == ["Conv:1-5", "Conv:6-10", "Conv:11-15"]


def test_a_node_belongs_to_the_first_pattern_that_matches_it() -> None:
    nodes = named("encoder/q", "encoder/k", "encoder/v", "head")
    first, second, third = node_groups(nodes, ["encoder/[qk]", "encoder/*", "*"])
    assert first.name == "encoder/_qk_"
    assert [[n.name for n in g.nodes] for g in (first, second, third)] == [
        ["encoder/q", "encoder/k"],
        ["encoder/v"],
        ["head"],
    ]


def test_a_pattern_may_name_operators() -> None:
    nodes = [*named("a", "b", operator="Conv"), *named("c", "d")]
    groups = node_groups(nodes, ["Conv:2", "MatMul:*", "Conv:*"])
    assert [[n.name for n in g.nodes] for g in groups] == [["b"], ["c", "d"], ["a"]]


@pytest.mark.parametrize(
    ("patterns", "said", "mend"),
    [
        (["decoder/*"], "'decoder/*' matches no", "'a', 'b'"),
        (["*", "b"], "'b' matches no", "drop it"),
        (["[a]", "?a?"], "'?a?' matches no", "'b'"),
    ],
)
def test_a_pattern_for_nothing_is_a_mistake(patterns: list[str], said: str, mend: str) -> None:
    with pytest.raises(SettingsError) as caught:
        node_groups(named("a", "b"), patterns)
    assert said in caught.value.what
    assert mend in caught.value.mend


def test_two_patterns_that_give_one_knob() -> None:
    with pytest.raises(SettingsError, match="two patterns give the knob -quant:_a_"):
        node_groups(named("a", "_a_"), ["[a]", "_a_"])


@pytest.mark.parametrize("value", [True, "all", [], [1], 3, None])
def test_bad_options_are_refused(value: Any) -> None:
    with pytest.raises(SettingsError, match=f"option 'quantise' is {value!r}".replace("[", r"\[")):
        check_option(value)


@pytest.mark.parametrize("value", ["nodes", "groups", ["a*"], ("a", "b")])
def test_good_options_are_taken(value: Any) -> None:
    check_option(value)


def test_routes_are_split() -> None:
    route = (("-ort:a", "1"), ("-quant:m", "int8"), ("-quant:n", "off"))
    assert split_route(route) == ({"int8": {"m"}}, (("-ort:a", "1"),))
    assert split_route((("-quant:m", "fp16"),)) == ({"fp16": {"m"}}, ())
    assert split_route((("-quant:m", "off"),)) == ({}, ())
    with pytest.raises(BuildRejectedError, match="no knob -quant:m with value 'int4'"):
        split_route((("-quant:m", "int4"),))


def test_a_group_the_model_lacks_is_rejected() -> None:
    model = model_of([matmul("m")], w=W)
    with pytest.raises(BuildRejectedError, match="no knob -quant:n"):
        nodes_of(model, {"n"}, {})
    assert [node.name for node in nodes_of(model, {"m"}, {})] == ["m"]


def test_knobs_are_searched_only_where_asked_for() -> None:
    model = model_of([matmul("m"), matmul("n")], w=W)
    silent, asked = space_of(model), space_of(model, "nodes")
    assert silent.expression().terms == ()
    assert RouteExpression.parse("-quant:m=[off|int8]", silent).full().count == 2
    assert asked.expression().full().count == 4
    assert str(asked.expression().full()[0]) == "-quant:m=off -quant:n=off"


def test_knobs_of_the_model_leave_the_digest_of_defaults() -> None:
    assert space_of(model_of([matmul("m")], w=W)).defaults_digest == KnobSpace("1", ()).defaults_digest
