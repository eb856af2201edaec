"""What makes two graphs the same: not how their values are called, and not the order of their nodes."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from pytest_gptune.engines.base import BuildRequest
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend
from pytest_gptune.engines.onnxruntime.graph_digest import graph_digest
from pytest_gptune.errors import ModelError

SHAPE = [1, 16, 12, 12]


def convolutions(path: Path, layers: int = 8) -> Path:
    """Convolutions that ONNX Runtime lays out anew for the CPU, with nodes that it inserts between them."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], {}, "x"
    for layer in range(layers):
        weights[f"w{layer}"] = (rng.standard_normal((16, 16, 3, 3)) / 12).astype(np.float32)
        nodes.append(helper.make_node("Conv", [last, f"w{layer}"], [f"c{layer}"], pads=[1, 1, 1, 1]))
        last = f"e{layer}"
        nodes.append(helper.make_node("Elu", [f"c{layer}"], [last]))
    values = (TensorProto.FLOAT, SHAPE)
    return models.write(models.build(nodes, {"x": values}, {last: values}, weights), path)


def small() -> onnx.ModelProto:
    """Two branches of equal form, an If whose branch reads a value around it, and a weight used twice."""
    inner = helper.make_graph(
        [helper.make_node("Add", ["b", "w"], ["then"])], "then", [], [_value("then", [2, 2])]
    )
    otherwise = helper.make_graph(
        [helper.make_node("Sub", ["b", "w"], ["else"])], "else", [], [_value("else", [2, 2])]
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("MatMul", ["x", "v"], ["b"], name="second"),
        helper.make_node("If", ["c"], ["d"], then_branch=inner, else_branch=otherwise),
        helper.make_node("LeakyRelu", ["a"], ["e"], alpha=0.25),
        helper.make_node("Sub", ["d", "e"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.eye(2, dtype=np.float32), "w"),
        numpy_helper.from_array(2 * np.eye(2, dtype=np.float32), "v"),
    ]
    inputs = [_value("x", [2, 2]), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", inputs, [_value("y", [2, 2])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _value(name: str, shape: list[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def rename(model: onnx.ModelProto, names: dict[str, str]) -> None:
    """Give inner values and weights other names, in the graph and in those within."""

    def within(graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            tensor.name = names.get(tensor.name, tensor.name)
        for item in graph.output:
            item.name = names.get(item.name, item.name)
        for number, node in enumerate(graph.node):
            node.name = f"{node.op_type}_token_{number}"
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    within(attribute.g)

    within(model.graph)


@given(seed=st.integers(0, 10_000))
def test_names_and_order_are_not_in_it(seed: int) -> None:
    model, rng = small(), random.Random(seed)
    inner = ["a", "b", "d", "e", "w", "v", "then", "else"]
    numbers = rng.sample(range(100), len(inner))
    rename(model, {name: f"t_token_{number}" for name, number in zip(inner, numbers, strict=True)})
    nodes = list(model.graph.node)
    done, order = {"x", "c", *(tensor.name for tensor in model.graph.initializer)}, []
    reads = {
        id(node): {*node.input, *(n for a in node.attribute for inner in a.g.node for n in inner.input)}
        for node in nodes
    }
    while nodes:
        node = rng.choice([node for node in nodes if reads[id(node)] <= done])
        nodes.remove(node)
        order.append(node)
        done.update(node.output)
    del model.graph.node[:]
    model.graph.node.extend(order)
    onnx.checker.check_model(model)
    assert graph_digest(model.SerializeToString()) == graph_digest(small().SerializeToString())


def _weight(model: onnx.ModelProto) -> None:
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(3 * np.eye(2, dtype=np.float32), "v"))


def _attribute(model: onnx.ModelProto) -> None:
    model.graph.node[3].attribute[0].f = 0.5


def _edge(model: onnx.ModelProto) -> None:
    model.graph.node[3].input[0] = "b"


def _order_of_inputs(model: onnx.ModelProto) -> None:
    model.graph.node[4].input[:] = ["e", "d"]


def _within(model: onnx.ModelProto) -> None:
    model.graph.node[2].attribute[0].g.node[0].op_type = "Mul"


def _around(model: onnx.ModelProto) -> None:
    model.graph.node[2].attribute[0].g.node[0].input[0] = "a"


def _twice(model: onnx.ModelProto) -> None:
    """A node computed again, by which the value does not change."""
    again = model.graph.node.add()
    again.CopyFrom(model.graph.node[3])
    again.output[0] = "again"
    model.graph.node[4].input[1] = "again"


def _signature(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"


def _opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 18


@pytest.mark.parametrize(
    "change",
    [_weight, _attribute, _edge, _order_of_inputs, _within, _around, _twice, _signature, _opset],
)
def test_what_is_computed_is_in_it(change: Callable[[onnx.ModelProto], None]) -> None:
    model = small()
    change(model)
    assert graph_digest(model.SerializeToString()) != graph_digest(small().SerializeToString())


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not an ONNX model"):
        graph_digest(b"\xff not a model")


def test_without_onnx_it_is_of_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under the interpreter of a reference engine, which has the backend and NumPy alone."""
    model, named = small(), small()
    named.graph.node[0].name = "another"
    monkeypatch.setitem(sys.modules, "onnx", None)
    plain = model.SerializeToString()
    assert graph_digest(plain) == graph_digest(plain) != graph_digest(named.SerializeToString())


def test_sessions_of_one_model_are_one_engine(tmp_path: Path) -> None:
    """They write other bytes, which the digest has to see through."""
    info = inspect_model(convolutions(tmp_path / "net.onnx"))
    request = BuildRequest(info.path, info.sha256, (("-ort:intra_op_num_threads", "1"),))
    backends = [OnnxRuntimeBackend() for _ in range(8)]
    digests = {backend.engine_digest(request) for backend in backends}
    assert len(digests) == 1
    engine = backends[0].build(request)
    written = {engine.serialize() for _ in range(8)}
    assert None not in written
    kept = [backends[1].load(request, data) for data in written if data is not None]
    assert {each.info.digest for each in (engine, *kept)} == digests
    x = {"x": np.ones(SHAPE, np.float32)}
    assert all(np.array_equal(each.run(x)["e7"], engine.run(x)["e7"]) for each in kept)
    inert = (*request.route, ("-ort:optimization.enable_gelu_approximation", "1"))
    assert backends[0].engine_digest(BuildRequest(info.path, info.sha256, inert)) in digests
    basic = (*request.route, ("-ort:graph_optimization_level", "basic"))
    assert backends[0].engine_digest(BuildRequest(info.path, info.sha256, basic)) not in digests
