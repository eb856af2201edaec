"""Some nodes of a model in fp16, all others as they are.

ONNX Runtime's own converter (``onnxruntime.transformers.float16``) casts every value between the nodes it is
told to leave, so that their numbers change as well. Here casts stand only where values enter or leave the
chosen nodes; the weights are converted by its function for tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pytest_gptune.engines.onnxruntime.quantise import constants_of

# Nodes that only pass on or combine what they are given stay in fp16 behind a chosen node: a cast to float32
# and back around each of them would cost more than the chosen node gains.
_FOLLOWING = frozenset(
    [
        "Add",
        "AveragePool",
        "BatchNormalization",
        "Clip",
        "Concat",
        "Div",
        "Dropout",
        "Flatten",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "LeakyRelu",
        "MaxPool",
        "Mul",
        "PRelu",
        "Pad",
        "Relu",
        "Reshape",
        "Sigmoid",
        "Slice",
        "Split",
        "Squeeze",
        "Sub",
        "Tanh",
        "Transpose",
        "Unsqueeze",
    ]
)

# Their outputs stay small whatever comes in, and so do those of the others behind them with constants alone.
_BOUNDED = frozenset(["Clip", "HardSigmoid", "Sigmoid", "Tanh"])


# Which input of BatchNormalization it is.
_VARIANCE = 4


def to_fp16(model: Any, chosen: Collection[int]) -> None:
    """Convert the nodes at these positions of the main graph, and those that only follow them, in place.

    Args:
        model: an ``onnx.ModelProto``, its weights in it.
        chosen: positions of nodes whose inputs are float32.
    """
    import onnx

    graph, half = model.graph, onnx.TensorProto.FLOAT16
    types, constants = _types(model), constants_of(graph)
    nodes = _with_followers(graph, chosen, types, constants)
    inside = {name for position in nodes for name in graph.node[position].output}
    casts: dict[int, list[Any]] = {}
    made: dict[str, str] = {}
    for position in sorted(nodes):
        node = graph.node[position]
        for index, name in enumerate(node.input):
            if types.get(name) != onnx.TensorProto.FLOAT or name in inside:
                continue
            if name not in made:
                made[name] = f"{name}_gptune_fp16"
                if name in constants:
                    graph.initializer.append(_in_fp16(constants[name], made[name]))
                else:
                    cast = onnx.helper.make_node("Cast", [name], [made[name]], to=half)
                    casts.setdefault(position, []).append(cast)
            node.input[index] = made[name]
    outputs = {item.name for item in graph.output}
    wanted = outputs | {
        name for position, node in enumerate(graph.node) if position not in nodes for name in _reads(node)
    }
    for position in sorted(nodes):
        node = graph.node[position]
        for index, name in enumerate(node.output):
            if types.get(name) != onnx.TensorProto.FLOAT:
                continue
            # What lies between nodes in fp16 gets a name of its own: the old one has an old type.
            node.output[index] = f"{name}_gptune_half"
            if name in wanted:
                cast = onnx.helper.make_node(
                    "Cast", [f"{name}_gptune_half"], [name], to=onnx.TensorProto.FLOAT
                )
                casts.setdefault(position + 1, []).insert(0, cast)
            for reader in nodes:
                _rename(graph.node[reader], name, f"{name}_gptune_half")
    ordered: list[Any] = []
    for position, node in enumerate(graph.node):
        ordered += [*casts.get(position, ()), node]
    ordered += casts.get(len(graph.node), ())
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ordered]
    del graph.node[:]
    graph.node.extend(kept)


def _with_followers(
    graph: Any, chosen: Collection[int], types: Mapping[str, int], constants: Mapping[str, Any]
) -> set[int]:
    """The chosen positions and those of nodes that read floats of theirs, or constants, and of no others.

    Products of two values follow where one is bounded, as a gate is, and quotients by a constant. Squares and
    cubes, of a normalisation or of GELU, do not: beyond 256 and 40 they are infinite in fp16. Nor does a node
    with a constant that fp16 does not hold: a variance of 1e8 would be clamped, and all it divides wrong.
    """
    import onnx

    nodes = set(chosen)
    inside = {name for position in nodes for name in graph.node[position].output}
    bounded: set[str] = set()
    for position, node in enumerate(graph.node):
        if position in nodes or node.op_type not in _FOLLOWING or node.domain not in ("", "ai.onnx"):
            continue
        floats = [name for name in node.input if types.get(name) == onnx.TensorProto.FLOAT]
        known = all(name in types for name in (*node.input, *node.output) if name)
        given = [name for name in floats if name in inside]
        small = _is_bounded(node) or all(name in bounded or name in constants for name in floats)
        if node.op_type == "Mul" and not any(name in bounded or name in constants for name in floats):
            continue
        if node.op_type == "Div" and node.input[1] not in constants:
            continue
        read = all(name in inside or name in constants for name in floats)
        if known and given and read and _held_by_fp16(node, constants):
            nodes.add(position)
            inside.update(node.output)
            bounded.update(node.output if small else ())
    return nodes


def _is_bounded(node: Any) -> bool:
    """Whether its outputs stay small whatever comes in; a Clip without one of its limits is a Relu."""
    limits = [name for name in node.input[1:] if name] or [attribute.name for attribute in node.attribute]
    return node.op_type in _BOUNDED and (node.op_type != "Clip" or len(limits) == 2)


def _held_by_fp16(node: Any, constants: Mapping[str, Any]) -> bool:
    """Whether fp16 holds the constants of a node: none is clamped, and no factor rounded to a few bits.

    A limit of a Clip may be clamped: nothing in fp16 lies beyond it.
    """
    import numpy as np
    import onnx

    limits = np.finfo(np.float16)
    for index, name in enumerate(node.input):
        tensor = constants.get(name)
        if tensor is None or tensor.data_type != onnx.TensorProto.FLOAT or node.op_type == "Clip":
            continue
        sizes = np.abs(onnx.numpy_helper.to_array(tensor))
        factor = node.op_type in ("Div", "Mul") or (
            node.op_type == "BatchNormalization" and index == _VARIANCE
        )
        if (sizes > limits.max).any() or (factor and ((sizes > 0) & (sizes < limits.smallest_normal)).any()):
            return False
    return True


def _types(model: Any) -> dict[str, int]:
    """Element types of what is known: inputs, outputs, weights, and what shape inference finds."""
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model).graph
    values = (*inferred.value_info, *inferred.input, *inferred.output)
    found = {value.name: value.type.tensor_type.elem_type for value in values}
    found |= {name: tensor.data_type for name, tensor in constants_of(model.graph).items()}
    return found


def _in_fp16(tensor: Any, name: str) -> Any:
    import onnx
    from onnxruntime.transformers.float16 import convert_tensor_float_to_float16

    half = onnx.TensorProto.FromString(tensor.SerializeToString())
    half = convert_tensor_float_to_float16(half)
    half.name = name
    return half


def _reads(node: Any) -> set[str]:
    """Names that a node reads, those that its subgraphs take from around it included."""
    found = set(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            found |= {name for inner in graph.node for name in _reads(inner)}
            found |= {item.name for item in graph.output}
    return found


def _rename(node: Any, before: str, after: str) -> None:
    for index, name in enumerate(node.input):
        if name == before:
            node.input[index] = after
