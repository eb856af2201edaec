"""Some nodes of a model in fp16, all others as they are.

ONNX Runtime's own converter (``onnxruntime.transformers.float16``) casts every value between the nodes it is
told to leave, so that their numbers change as well. Here casts stand only where values enter or leave the
chosen nodes; the weights are converted by its function for tensors.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pytest_gptune.engines.onnxruntime.half_followers import with_followers
from pytest_gptune.engines.onnxruntime.quantise import constants_of


def to_fp16(model: Any, chosen: Collection[int]) -> None:
    """Convert the nodes at these positions of the main graph, and those that only follow them, in place.

    Args:
        model: an ``onnx.ModelProto``, its weights in it.
        chosen: positions of nodes whose inputs are float32.
    """
    import onnx

    graph, half = model.graph, onnx.TensorProto.FLOAT16
    types, constants = _types(model), constants_of(graph)
    nodes = with_followers(graph, chosen, types, constants)
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
