"""Quantisation as knobs: ``-quant:NAME=[off|int8]``, one for each node with weights, or for a group of them.

On the CUDA provider, which has kernels for fp16 and none for 8 bits, it is ``-quant:NAME=[off|fp16]``.

A knob belongs to a MatMul, Gemm or Conv of the model's main graph whose weights are float32 constants. Its
default is ``off``: the model as it is. Models with more such nodes than ``MOST_SINGLE`` get a knob for each
of at most ``GROUPS`` groups, neighbours in the order of the graph, unless ``options={"quantise": ...}`` says
which nodes belong together.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_gptune.engines.base import BuildRejectedError, RoutePairs
from pytest_gptune.errors import SettingsError

PREFIX = "-quant:"
OPTION = "quantise"
INT8, FP16 = "int8", "fp16"
MOST_SINGLE = 24
GROUPS = 12

_BITS = {INT8: "8 bits", FP16: "16 bits"}
_WHERE = f"options={{'{OPTION}': ...}} of the marker"
OPERATORS = frozenset({"Conv", "Gemm", "MatMul"})
# What separates things in a route, and what cannot be printed.
_NOT_PLAIN = re.compile(r"[\s\[\]|#,=]|[^ -~]")


@dataclass(frozen=True)
class QuantNode:
    """A node that can be quantised.

    Attributes:
        name: as knobs and patterns name it; unique within the model.
        position: of the node within the graph.
        operator: ``Conv``, ``Gemm`` or ``MatMul``.
    """

    name: str
    position: int
    operator: str


@dataclass(frozen=True)
class NodeGroup:
    """The nodes one knob quantises."""

    name: str
    nodes: tuple[QuantNode, ...]


def quantisable_nodes(model: Any) -> tuple[QuantNode, ...]:
    """The nodes of ``model``, an ``onnx.ModelProto``, that have knobs, in the order of the graph.

    Unnamed nodes are called by their operator and their place among the model's nodes of it, as ``Conv_3``;
    a name that is taken gets ``~2`` and so on.
    """
    weights = _float_matrices(model.graph)
    counts: dict[str, int] = {}
    taken: set[str] = set()
    found: list[QuantNode] = []
    for position, node in enumerate(model.graph.node):
        number = counts[node.op_type] = counts.get(node.op_type, -1) + 1
        if not _is_quantisable(node, weights):
            continue
        plain = _NOT_PLAIN.sub("_", node.name) or f"{node.op_type}_{number}"
        name, again = plain, 1
        while name in taken:
            again += 1
            name = f"{plain}~{again}"
        taken.add(name)
        found.append(QuantNode(name, position, node.op_type))
    return tuple(found)


def node_groups(nodes: Sequence[QuantNode], wanted: Any) -> tuple[NodeGroup, ...]:
    """The groups that have a knob.

    Args:
        nodes: as ``quantisable_nodes`` gives them.
        wanted: the option: None or ``"groups"`` for the default, ``"nodes"`` for each node by itself, or
            patterns as ``["encoder/*", "Conv:*"]``. A node belongs to the first pattern that matches its
            name, or its operator and its number among the nodes of it, as default groups count them.

    Raises:
        SettingsError: a pattern matches no node, or none that an earlier one has left.
    """
    if isinstance(wanted, (list, tuple)):
        return _patterned(nodes, wanted)
    if wanted == "nodes" or len(nodes) <= MOST_SINGLE:
        return tuple(NodeGroup(node.name, (node,)) for node in nodes)
    return _neighbours(nodes)


def knob_options(groups: Iterable[NodeGroup], *, on_request: bool, value: str = INT8) -> list[dict[str, Any]]:
    """The knobs in the form of ``IBuilderConfig.getAllBuildRoutes()``; ``value`` is theirs beside off."""
    return [
        {
            "option": PREFIX + group.name,
            "allowed_values": f"{PREFIX}{group.name}=[off|{value}]",
            "default_value": "off",
            "help": f"Weights and inputs of {_described(group)} in {_BITS[value]}. Changes numbers.",
            "on_request": on_request,
            "of_model": True,
        }
        for group in groups
    ]


def check_option(value: Any) -> None:
    """Raise SettingsError unless ``value`` can be the option."""
    is_list = isinstance(value, (list, tuple)) and bool(value) and all(isinstance(v, str) for v in value)
    if not is_list and value not in ("nodes", "groups"):
        raise SettingsError(
            f"option '{OPTION}' is {value!r}",
            where="options={...} of the marker",
            mend="write 'groups', 'nodes', or a list of patterns of node names, as ['encoder/*', 'head']",
        )


def split_route(route: RoutePairs) -> tuple[dict[str, frozenset[str]], RoutePairs]:
    """Names of the groups a route quantises, by the value they have, and the rest of the route.

    Raises:
        BuildRejectedError: a value is none that there is.
    """
    wanted: dict[str, set[str]] = {}
    for name, value in route:
        if name.startswith(PREFIX):
            if value != "off" and value not in _BITS:
                raise BuildRejectedError(f"there is no knob {name} with value '{value}'")
            if value != "off":
                wanted.setdefault(value, set()).add(name.removeprefix(PREFIX))
    rest = tuple(pair for pair in route if not pair[0].startswith(PREFIX))
    return {value: frozenset(names) for value, names in wanted.items()}, rest


def nodes_of(model: Any, names: Iterable[str], options: Mapping[str, Any]) -> tuple[QuantNode, ...]:
    """The nodes of the groups with these names, in the order of the graph.

    Raises:
        BuildRejectedError: the model has no such group.
    """
    groups = {g.name: g for g in node_groups(quantisable_nodes(model), options.get(OPTION))}
    missing = sorted(set(names) - set(groups))
    if missing:
        raise BuildRejectedError(f"the model has no knob {PREFIX}{missing[0]}")
    chosen = {node for name in names for node in groups[name].nodes}
    return tuple(sorted(chosen, key=lambda node: node.position))


def _described(group: NodeGroup) -> str:
    first, last = group.nodes[0], group.nodes[-1]
    if first is last:
        return f"{first.operator} '{first.name}'"
    return f"{len(group.nodes)} nodes from '{first.name}' to '{last.name}'"


def _patterned(nodes: Sequence[QuantNode], patterns: Sequence[str]) -> tuple[NodeGroup, ...]:
    left, groups = list(nodes), list[NodeGroup]()
    counts: dict[str, int] = {}
    labels: dict[QuantNode, str] = {}
    for node in nodes:
        counts[node.operator] = counts.get(node.operator, 0) + 1
        labels[node] = f"{node.operator}:{counts[node.operator]}"
    for pattern in patterns:
        members = tuple(
            node
            for node in left
            if fnmatch.fnmatchcase(node.name, pattern) or fnmatch.fnmatchcase(labels[node], pattern)
        )
        if not members:
            known = ", ".join(repr(node.name) for node in left[:5])
            more = f" and {len(left) - 5} more" if len(left) > 5 else ""
            raise SettingsError(
                f"pattern '{pattern}' matches no MatMul, Gemm or Conv that an earlier pattern has left",
                where=_WHERE,
                mend=f"correct it; left are {known}{more}" if left else "drop it; no node is left",
            )
        left = [node for node in left if node not in members]
        groups.append(NodeGroup(_NOT_PLAIN.sub("_", pattern), members))
    names = [group.name for group in groups]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise SettingsError(
            f"two patterns give the knob {PREFIX}{twice}", where=_WHERE, mend="write one of them otherwise"
        )
    return tuple(groups)


def _neighbours(nodes: Sequence[QuantNode]) -> tuple[NodeGroup, ...]:
    """Groups of equal operators that follow each other, each about as large as any other."""
    groups: list[NodeGroup] = []
    operators = [op for op in sorted(OPERATORS) if any(node.operator == op for node in nodes)]
    for operator in operators:
        members = [node for node in nodes if node.operator == operator]
        # An operator with few nodes still has a group; rounding down keeps the sum at GROUPS or below.
        spare = GROUPS - len(operators)
        count = 1 + spare * len(members) // len(nodes)
        bounds = [len(members) * part // count for part in range(count + 1)]
        for start, end in itertools.pairwise(bounds):
            if end > start:
                groups.append(NodeGroup(f"{operator}:{start + 1}-{end}", tuple(members[start:end])))
    return tuple(groups)


def constants_of(graph: Any) -> dict[str, Any]:
    """Tensors of a graph that are constant, by name: initialisers, and outputs of Constant."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            found.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    return found


def _float_matrices(graph: Any) -> set[str]:
    """Names of constant float32 tensors of two dimensions or more."""
    import onnx

    float32 = onnx.TensorProto.FLOAT
    return {n for n, t in constants_of(graph).items() if t.data_type == float32 and len(t.dims) >= 2}


def _is_quantisable(node: Any, weights: set[str]) -> bool:
    if node.op_type not in OPERATORS or node.domain not in ("", "ai.onnx") or len(node.input) < 2:
        return False
    if node.op_type == "Gemm":
        # onnxruntime.quantization takes a Gemm as MatMul and Add, and only where that is all it is.
        given = {a.name: a.f if a.name in ("alpha", "beta") else a.i for a in node.attribute}
        if given.get("alpha", 1.0) != 1.0 or given.get("beta", 1.0) != 1.0 or given.get("transA", 0):
            return False
    return node.input[1] in weights and node.input[0] not in weights
