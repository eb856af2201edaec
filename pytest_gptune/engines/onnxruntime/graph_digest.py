"""The digest of a model's graph: of what it computes, however its nodes and inner values are called.

ONNX Runtime names what its optimisers insert (``ReorderOutput_token_31``, ``reorder_token_7``) by a count
that follows the order of containers in memory: two sessions of one model write other names, and now and then
nodes in another order. So a value is known by what it is made of, as in a Merkle tree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from pytest_gptune.errors import ModelError


def graph_digest(model: bytes) -> str:
    """The digest of a serialised ONNX model.

    Equal for models whose graphs have the same nodes (operator, attributes, inputs, number of outputs),
    weights and signature: names of nodes, of inner values and of weights, the order of nodes, documentation
    and inferred shapes are not in it. Of weights in external files only their places are.

    Without the package onnx, as under the interpreter of a reference engine, the digest is that of the bytes:
    engines are then taken for others more often than they are.

    Raises:
        ModelError: these are not the bytes of a model.
    """
    try:
        import onnx
    except ImportError:
        return _of("bytes", model).hex()
    try:
        proto = onnx.load_model_from_string(model)
    except Exception as error:  # protobuf's errors have no common base across its implementations
        raise ModelError(
            f"not an ONNX model, or a truncated one ({type(error).__name__})", mend="have it written again"
        ) from None
    graph = proto.graph
    given = {item.name: _of("input", item.name, _plain(item.type)) for item in graph.input}
    opsets = sorted(f"{item.domain} {item.version}" for item in proto.opset_import)
    functions = sorted(_plain(function).hex() for function in proto.functions)
    signature = [*given.values(), *(_of("output", item.name, _plain(item.type)) for item in graph.output)]
    return _of("model", *opsets, *functions, *signature, _of_graph(graph, given, depth=0)).hex()


def _of_graph(graph: Any, given: Mapping[str, bytes], depth: int) -> bytes:
    """Of a graph whose inputs, and values around it, have the digests in ``given``."""
    values = dict(given)
    for tensor in graph.initializer:
        # A weight that is an input as well may be fed instead.
        values[tensor.name] = _of("weight", values.get(tensor.name, b""), _plain(tensor, "name"))
    for sparse in graph.sparse_initializer:
        values[sparse.values.name] = _of("sparse", _plain(sparse))
    nodes = []
    for node in graph.node:
        attributes = sorted(_of_attribute(attribute, values, depth) for attribute in node.attribute)
        inputs = [values.get(name, _of("unknown", name)) if name else b"" for name in node.input]
        outputs = "".join("1" if name else "0" for name in node.output)
        operator = (node.domain, node.op_type, getattr(node, "overload", ""), outputs)
        told = sorted(f"{item.key}={item.value}" for item in getattr(node, "metadata_props", ()))
        made = _of("node", *operator, len(inputs), *inputs, len(told), *told, *attributes)
        nodes.append(made)
        values.update((name, _of("value", made, index)) for index, name in enumerate(node.output) if name)
    # Nodes that compute the same twice are two.
    return _of("graph", *sorted(nodes), *(values.get(item.name, b"") for item in graph.output))


def _of_attribute(attribute: Any, around: Mapping[str, bytes], depth: int) -> bytes:
    graphs = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
    if not graphs:
        return _of("attribute", attribute.name, _plain(attribute, "doc_string"))
    return _of("graphs", attribute.name, *(_of_inner(graph, around, depth + 1) for graph in graphs))


def _of_inner(graph: Any, around: Mapping[str, bytes], depth: int) -> bytes:
    """Of a graph within a node, whose inputs are known by their place."""
    own = {item.name: _of("inner", depth, index, _plain(item.type)) for index, item in enumerate(graph.input)}
    return _of_graph(graph, {**around, **own}, depth)


def _plain(message: Any, *without: str) -> bytes:
    """The bytes of a message, without some of its fields."""
    if any(message.HasField(name) for name in without):
        copy = type(message)()
        copy.CopyFrom(message)
        for name in without:
            copy.ClearField(name)
        message = copy
    return bytes(message.SerializeToString(deterministic=True))


def _of(kind: str, *parts: str | int | bytes) -> bytes:
    digest = hashlib.sha256(kind.encode())
    for part in _as_bytes(parts):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def _as_bytes(parts: Iterable[str | int | bytes]) -> Iterable[bytes]:
    return (part if isinstance(part, bytes) else str(part).encode() for part in parts)
