"""Tiny ONNX models for the tests: each function writes one to ``path`` and returns that path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8
TYPES = {
    "bool": TensorProto.BOOL,
    "int8": TensorProto.INT8,
    "int16": TensorProto.INT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16,
    "uint32": TensorProto.UINT32,
    "uint64": TensorProto.UINT64,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8_e4m3fnuz": TensorProto.FLOAT8E4M3FNUZ,
    "float8_e5m2": TensorProto.FLOAT8E5M2,
    "float8_e5m2fnuz": TensorProto.FLOAT8E5M2FNUZ,
    "int4": TensorProto.INT4,
    "uint4": TensorProto.UINT4,
}
"""ONNX types by the name that NumPy and ml_dtypes give them.

ONNX Runtime's CPU provider passes all but the last two through Identity; it takes bfloat16 and the eight-bit
floats only as ``OrtValue``.
"""

Shape = Sequence[int | str] | None
Values = Mapping[str, tuple[int, Shape]]


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Values,
    outputs: Values,
    weights: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = OPSET,
    ir_version: int = IR_VERSION,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """Return a model of these nodes; inputs and outputs map names to ``(type, shape)``, None for any rank."""

    def values(of: Values) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(name, kind, None if shape is None else list(shape))
            for name, (kind, shape) in of.items()
        ]

    graph = helper.make_graph(
        list(nodes),
        "graph",
        values(inputs),
        values(outputs),
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset), *(helper.make_opsetid(name, 1) for name in domains)],
        ir_version=ir_version,
        producer_name="pytest-gptune tests",
    )


def write(model: onnx.ModelProto, path: Path) -> Path:
    """Write the model in one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def _mlp(
    layers: int, width: int, batch: int, seed: int, extra: int = 0, bias: bool = False
) -> onnx.ModelProto:
    generator = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {}
    data = "x"
    for index in range(layers + extra):
        matrix, offset = np.eye(width), np.zeros(width)
        if index < layers:
            matrix = generator.standard_normal((width, width)) * np.sqrt(2 / width)
            offset = generator.standard_normal(width) * 0.1
        weights[f"w{index}"] = matrix.astype(np.float32)
        nodes.append(helper.make_node("MatMul", [data, f"w{index}"], [f"m{index}"]))
        data = f"m{index}"
        if bias:
            weights[f"b{index}"] = offset.astype(np.float32)
            nodes.append(helper.make_node("Add", [data, f"b{index}"], [f"a{index}"]))
            data = f"a{index}"
        output = "y" if index == layers + extra - 1 else f"r{index}"
        nodes.append(helper.make_node("Relu", [data], [output]))
        data = output
    float_values = (TensorProto.FLOAT, [batch, width])
    return build(nodes, {"x": float_values}, {"y": float_values}, weights)


def mlp(
    path: Path, layers: int = 4, width: int = 64, batch: int = 4, seed: int = 0, *, bias: bool = False
) -> Path:
    """``x`` -> ``y``, float32 [batch, width]: MatMul and Relu.

    Without ``bias`` every optimisation level gives the same bits; with it the levels that fuse may not.
    """
    return write(_mlp(layers, width, batch, seed, bias=bias), path)


def slowed(
    path: Path,
    layers: int = 9,
    width: int = 64,
    batch: int = 4,
    seed: int = 0,
    *,
    extra: int = 1,
    bias: bool = False,
) -> Path:
    """The ``mlp`` of the same arguments with ``extra`` more layers of real work and the same output bits.

    The additional layers multiply by the identity; nine layers and one more are 11 % more work.
    """
    return write(_mlp(layers, width, batch, seed, extra, bias), path)


def conv(path: Path, channels: int = 8, size: int = 8, batch: int = 1, seed: int = 0) -> Path:
    """``image`` [batch, 3, size, size] -> ``logits`` [batch, 5]: one Conv, BatchNormalization, Relu, Gemm."""
    generator = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 0.1) -> np.ndarray:
        return (generator.standard_normal(shape) * scale).astype(np.float32)

    weights = {
        "kernel": normal(channels, 3, 3, 3, scale=0.3),
        "gamma": 1 + normal(channels),
        "beta": normal(channels),
        "mean": normal(channels),
        "variance": 1 + np.abs(normal(channels)),
        "matrix": normal(channels, 5, scale=channels**-0.5),
        "offset": normal(5),
    }
    nodes = [
        helper.make_node("Conv", ["image", "kernel"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "gamma", "beta", "mean", "variance"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "matrix", "offset"], ["logits"]),
    ]
    return write(
        build(
            nodes,
            {"image": (TensorProto.FLOAT, [batch, 3, size, size])},
            {"logits": (TensorProto.FLOAT, [batch, 5])},
            weights,
        ),
        path,
    )


def dynamic(path: Path, width: int = 8, seed: int = 0) -> Path:
    """``tokens`` [batch, sequence, width] -> ``hidden`` of the same shape and ``pooled`` [batch, width]."""
    generator = np.random.default_rng(seed)
    weights = {"w": (generator.standard_normal((width, width)) * width**-0.5).astype(np.float32)}
    nodes = [
        helper.make_node("MatMul", ["tokens", "w"], ["product"]),
        helper.make_node("Tanh", ["product"], ["hidden"]),
        helper.make_node("ReduceMean", ["hidden"], ["pooled"], axes=[1], keepdims=0),
    ]
    sequence: tuple[int, Shape] = (TensorProto.FLOAT, ["batch", "sequence", width])
    pooled: tuple[int, Shape] = (TensorProto.FLOAT, ["batch", width])
    return write(build(nodes, {"tokens": sequence}, {"hidden": sequence, "pooled": pooled}, weights), path)


def several_outputs(path: Path, batch: int = 3, width: int = 6, seed: int = 0) -> Path:
    """``x`` [batch, width] -> ``scores`` float32, ``label`` int64 [batch] (ArgMax), ``positive`` bool."""
    generator = np.random.default_rng(seed)
    weights = {
        "w": generator.standard_normal((width, width)).astype(np.float32),
        "zero": np.array(0, np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0),
        helper.make_node("Greater", ["scores", "zero"], ["positive"]),
    ]
    outputs = {
        "scores": (TensorProto.FLOAT, [batch, width]),
        "label": (TensorProto.INT64, [batch]),
        "positive": (TensorProto.BOOL, [batch, width]),
    }
    return write(build(nodes, {"x": (TensorProto.FLOAT, [batch, width])}, outputs, weights), path)


def external_data(path: Path, layers: int = 2, width: int = 16, batch: int = 2, seed: int = 0) -> Path:
    """An ``mlp`` whose weights lie in the file ``NAME.data`` beside the model ``NAME``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = path.with_name(f"{path.name}.data")
    data.unlink(missing_ok=True)  # onnx appends to a file that is there
    onnx.save_model(
        _mlp(layers, width, batch, seed),
        str(path),
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=data.name,
        size_threshold=0,
    )
    return path


def identity(path: Path, dtype: str, shape: Shape = (2, 3)) -> Path:
    """``x`` -> ``y``, both of the type that ``TYPES`` names, through Identity."""
    values = (TYPES[dtype], shape)
    # 21 and 10: the first with the four-bit types and with an Identity for them.
    node = helper.make_node("Identity", ["x"], ["y"])
    return write(build([node], {"x": values}, {"y": values}, opset=21, ir_version=10), path)


def scalar_and_empty(path: Path) -> Path:
    """``x`` [2, 3] -> ``total`` of no dimension and ``empty`` [0, 3]."""
    weights = {"starts": np.array([0], np.int64), "ends": np.array([0], np.int64)}
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Slice", ["x", "starts", "ends"], ["empty"]),
    ]
    outputs = {"total": (TensorProto.FLOAT, []), "empty": (TensorProto.FLOAT, [0, 3])}
    return write(build(nodes, {"x": (TensorProto.FLOAT, [2, 3])}, outputs, weights), path)


def nan_output(path: Path) -> Path:
    """``x`` [2, 3] -> ``y``, all not-a-number: 0/0 of the input's differences with itself."""
    nodes = [helper.make_node("Sub", ["x", "x"], ["zero"]), helper.make_node("Div", ["zero", "zero"], ["y"])]
    values = (TensorProto.FLOAT, [2, 3])
    return write(build(nodes, {"x": values}, {"y": values}), path)


def unknown_operator(path: Path) -> Path:
    """An operator of a domain that no engine knows."""
    node = helper.make_node("Mystery", ["x"], ["y"], domain="com.example.mystery")
    values = (TensorProto.FLOAT, [2, 3])
    return write(build([node], {"x": values}, {"y": values}, domains=["com.example.mystery"]), path)


def future_opset(path: Path) -> Path:
    """A model of operator set 999."""
    node = helper.make_node("Identity", ["x"], ["y"])
    values = (TensorProto.FLOAT, [2, 3])
    return write(build([node], {"x": values}, {"y": values}, opset=999), path)


def future_ir(path: Path) -> Path:
    """A model of ONNX's file format version 99."""
    node = helper.make_node("Identity", ["x"], ["y"])
    values = (TensorProto.FLOAT, [2, 3])
    return write(build([node], {"x": values}, {"y": values}, ir_version=99), path)


def if_loop(path: Path) -> Path:
    """Loop and If: ``x`` [2, 3], doubled ``times`` (int64, 0-d) times, negated if ``negate`` (bool, 0-d)."""
    values = (TensorProto.FLOAT, [2, 3])
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Add", ["state", "state"], ["doubled"]),
        ],
        "body",
        [
            info("step", TensorProto.INT64, []),
            info("go", TensorProto.BOOL, []),
            info("state", values[0], values[1]),
        ],
        [info("go_on", TensorProto.BOOL, []), info("doubled", values[0], values[1])],
    )
    then = helper.make_graph(
        [helper.make_node("Neg", ["looped"], ["negated"])],
        "then",
        [],
        [info("negated", values[0], values[1])],
    )
    otherwise = helper.make_graph(
        [helper.make_node("Identity", ["looped"], ["kept"])], "else", [], [info("kept", values[0], values[1])]
    )
    nodes = [
        helper.make_node("Loop", ["times", "", "x"], ["looped"], body=body),
        helper.make_node("If", ["negate"], ["y"], then_branch=then, else_branch=otherwise),
    ]
    inputs = {"x": values, "times": (TensorProto.INT64, []), "negate": (TensorProto.BOOL, [])}
    return write(build(nodes, inputs, {"y": values}), path)
