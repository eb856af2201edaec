"""The model a route with quantised nodes is built from, made by ``onnxruntime.quantization`` and kept.

MatMul and Gemm are quantised dynamically: weights to int8 by column, inputs to uint8 as each run finds them.
Conv is quantised statically: weights to int8 by channel, inputs to uint8 by the range that the golden's
inputs span. On the CUDA provider all are converted to fp16.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gptune.engines.base import BuildRejectedError, BuildRequest
from pytest_gptune.engines.golden_inputs import read_golden_inputs
from pytest_gptune.engines.onnxruntime.half_precision import to_fp16
from pytest_gptune.engines.onnxruntime.quantise import FP16, INT8, QuantNode, nodes_of, split_route
from pytest_gptune.storage import cache_folder, locked, scratch_folder, write_atomically

if TYPE_CHECKING:
    import numpy as np

# Part of every digest: another number whenever the same nodes would be quantised otherwise.
_METHODS = {INT8: "1", FP16: "fp16 5"}
# Protobuf's limit, less what quantisation adds.
_MOST_BYTES = 2**31 - 2**26
# The oldest go first; a search of 16 routes over a model of 100 MB stays.
_KEPT_BYTES = 4 * 2**30


def quantised_request(request: BuildRequest) -> BuildRequest:
    """The request for the same engine from the quantised model; unchanged where the route quantises nothing.

    Its digest stands for the model, the nodes, and what they were calibrated on.

    Raises:
        BuildRejectedError: the model is too large, there is no golden to calibrate on, onnx is not installed,
            or onnxruntime.quantization refuses the nodes or leaves them as they are.
        StorageError: the cache folder cannot be written.
    """
    groups, route = split_route(request.route)
    if not groups:
        return replace(request, route=route)
    if len(groups) > 1:
        raise BuildRejectedError(f"a route quantises to one of {', '.join(groups)}, not to several")
    ((value, names),) = groups.items()
    model = _load(request)
    nodes = nodes_of(model, names, request.options)
    calibrates = value == INT8 and any(node.operator == "Conv" for node in nodes)
    cases = read_golden_inputs(request.golden) if calibrates else []
    told = {"nodes": ",".join(node.name for node in nodes), "method": _METHODS[value]}
    if calibrates:
        told["calibration"] = _digest_of_cases(cases)
    digest = _digest(request, told)
    path = cache_folder() / "quantised" / f"{digest}.onnx"
    with locked(path.with_suffix(".making")):
        if path.is_file():
            with contextlib.suppress(OSError):
                path.touch()
        else:
            made = _quantise(model, nodes, cases) if value == INT8 else _halve(model, nodes)
            write_atomically(path, made)
            _drop_oldest(path.parent, keep=path)
    return replace(request, model=str(path), model_sha256=digest, route=route)


def _digest(request: BuildRequest, told: Mapping[str, str]) -> str:
    import onnx
    import onnxruntime as ort

    parts = [request.model_sha256, ort.__version__, onnx.__version__, told]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _digest_of_cases(cases: Sequence[Mapping[str, np.ndarray]]) -> str:
    import numpy as np

    digest = hashlib.sha256()
    for case in cases:
        for name, array in sorted(case.items()):
            digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _load(request: BuildRequest) -> Any:
    """The model, external data included."""
    try:
        import onnx
        from onnx.external_data_helper import load_external_data_for_model
    except ImportError as error:
        raise BuildRejectedError(
            f"quantising needs the package onnx: {error}", mend="python -m pip install onnx"
        ) from error
    path = Path(request.model)
    model = onnx.load(path, load_external_data=False)
    size = path.stat().st_size + sum(_external_bytes(model, path.parent).values())
    if size > _MOST_BYTES:
        raise BuildRejectedError(
            f"the model has {size / 2**30:.1f} GiB with its weights; more than 2 GB cannot be quantised here",
            where=request.model,
            mend="quantise the model before the test, and give it as model= with the original as reference=",
        )
    load_external_data_for_model(model, str(path.parent))
    return model


def _external_bytes(model: Any, folder: Path) -> dict[str, int]:
    """Sizes of the files with external data."""
    names = {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return {name: (folder / name).stat().st_size for name in names}


def _halve(model: Any, nodes: Sequence[QuantNode]) -> bytes:
    try:
        to_fp16(model, [node.position for node in nodes])
    except Exception as error:  # what shape inference raises on a model that ONNX Runtime may still run
        raise BuildRejectedError(
            f"the nodes cannot be converted to fp16: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
    data: bytes = model.SerializeToString()
    return data


def _quantise(model: Any, nodes: Sequence[QuantNode], cases: Sequence[Mapping[str, np.ndarray]]) -> bytes:
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    names = _prepare(model, nodes)
    convs = [name for name, node in zip(names, nodes, strict=True) if node.operator == "Conv"]
    others = [name for name, node in zip(names, nodes, strict=True) if node.operator != "Conv"]
    with scratch_folder() as folder:
        # By paths: ONNX Runtime 1.20 loses the weights of a model that is given as an object.
        path = folder / "prepared.onnx"
        onnx.save(model, path)
        try:
            # In this order: the tool takes what it has quantised statically for a model of the user's that is
            # quantised already, and warns.
            if others:
                source, path = path, folder / "dynamic.onnx"
                quantize_dynamic(
                    source,
                    path,
                    op_types_to_quantize=["MatMul"],
                    # A Gemm becomes a MatMul of its name and "_MatMul", and an Add.
                    nodes_to_quantize=[*others, *(f"{name}_MatMul" for name in others)],
                    per_channel=True,
                    weight_type=QuantType.QInt8,
                )
            if convs:
                source, path = path, folder / "static.onnx"
                quantize_static(
                    source,
                    path,
                    _reader(cases),
                    # QLinearConv by itself: pairs of QuantizeLinear and DequantizeLinear run in 8 bits only
                    # where the session fuses them, and need opset 13 for weights by channel.
                    quant_format=QuantFormat.QOperator,
                    op_types_to_quantize=["Conv"],
                    nodes_to_quantize=convs,
                    per_channel=True,
                    activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt8,
                )
        except Exception as error:  # onnxruntime.quantization raises whatever its steps raise
            raise BuildRejectedError(
                f"onnxruntime.quantization cannot quantise the nodes: "
                f"{type(error).__name__}: {' '.join(str(error).split())}"
            ) from error
        _check_quantised(onnx.load(path), dict(zip(names, nodes, strict=True)))
        return path.read_bytes()


def _prepare(model: Any, nodes: Sequence[QuantNode]) -> list[str]:
    """Name the nodes apart and make initialisers of constant weights, as the tool needs; the nodes' names."""
    import onnx

    graph = model.graph
    for position, node in enumerate(graph.node):
        # Names need not be unique in ONNX, and the tool finds nodes by them.
        node.name = f"gptune_{position}_{node.op_type}"
    names = [graph.node[node.position].name for node in nodes]
    weights = {graph.node[node.position].input[1] for node in nodes}
    weights |= {name for node in nodes for name in graph.node[node.position].input[2:]}
    kept = []
    for node in graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if node.op_type == "Constant" and value is not None and node.output[0] in weights:
            tensor = graph.initializer.add()
            tensor.CopyFrom(value)
            tensor.name = node.output[0]
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)
    _separate_weights(graph, names)
    # Keeps the tool from warning that the graph should be optimised first: other nodes are to stay.
    onnx.helper.set_model_props(
        model,
        {**{p.key: p.value for p in model.metadata_props}, "onnx.quant.pre_process": "onnxruntime.quant"},
    )
    return names


def _separate_weights(graph: Any, names: Sequence[str]) -> None:
    """Give a node weights of its own where others read them too: the tool may take them away from those."""
    users = Counter(name for node in graph.node for name in node.input)
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.name in names and users[node.input[1]] > 1:
            own = graph.initializer.add()
            own.CopyFrom(tensors[node.input[1]])
            own.name = node.input[1] = f"{node.name}_weights"


def _reader(cases: Sequence[Mapping[str, np.ndarray]]) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """Gives the cases one after another."""

        def __init__(self) -> None:
            self._left = iter(cases)

        def get_next(self) -> Any:
            return next(self._left, None)

    return Reader()


def _check_quantised(model: Any, nodes: Mapping[str, QuantNode]) -> None:
    """The tool passes over nodes it cannot quantise in silence."""
    made = {node.name for node in model.graph.node}
    left = [node.name for name, node in nodes.items() if not {f"{name}_quant", f"{name}_MatMul_quant"} & made]
    if left:
        shown = ", ".join(map(repr, left[:3])) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
        raise BuildRejectedError(
            f"onnxruntime.quantization leaves {len(left)} of {len(nodes)} nodes as they are: {shown}",
            mend="leave these nodes out of the group",
        )


def _drop_oldest(folder: Path, *, keep: Path) -> None:
    """Remove models used longest ago, beyond what is kept."""
    files: list[tuple[float, int, Path]] = []
    for path in folder.glob("*.onnx"):
        with contextlib.suppress(OSError):
            stat = path.stat()
            files.append((stat.st_mtime, stat.st_size, path))
    total = 0
    for _, size, path in sorted(files, reverse=True):
        total += size
        if total > _KEPT_BYTES and path != keep:
            with contextlib.suppress(OSError):
                path.unlink()
