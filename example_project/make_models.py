"""Write the example's three ONNX models, the same bytes on every run.

``python make_models.py`` writes ``models/convnet.onnx``, ``models/encoder.onnx`` and ``models/mlp.onnx``.
``python make_models.py --slow mlp`` writes them with about 11 % more real work in the MLP and the same
outputs, which is what a performance regression looks like; running it again without the option restores the
model byte for byte.

The weights are drawn on a grid of exact binary fractions, from a generator whose stream NumPy has frozen, so
that neither the platform's mathematical library nor NumPy's version can change a bit.
"""

from __future__ import annotations

import argparse
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8
PRODUCER = "pytest-gptune example"
MODELS = Path(__file__).resolve().parent / "models"

Shape = list[int | str]


def uniform(name: str, shape: tuple[int, ...], deviation: float) -> np.ndarray:
    """Float32 weights of the given standard deviation; the tensor's name is the seed."""
    integers = np.random.RandomState(zlib.crc32(name.encode())).randint(0, 1 << 16, size=shape)
    unit = (2 * integers + 1 - (1 << 16)).astype(np.float32) / np.float32(1 << 16)
    scaled: np.ndarray = unit * np.float32(deviation * math.sqrt(3.0))
    return scaled


class Graph:
    """Collects nodes and weights in order; each method returns the name of the tensor it makes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, values: np.ndarray) -> str:
        """Add an initializer."""
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def node(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node with one output, named like that output."""
        self.nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def model(self, name: str, inputs: dict[str, Shape], outputs: dict[str, Shape]) -> onnx.ModelProto:
        """Return the checked model; inputs and outputs are float32."""
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info(key, TensorProto.FLOAT, shape) for key, shape in inputs.items()],
            [helper.make_tensor_value_info(key, TensorProto.FLOAT, shape) for key, shape in outputs.items()],
            self.weights,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name=PRODUCER,
        )
        onnx.checker.check_model(model, full_check=True)
        return model


def make_convnet(
    blocks: int = 9, channels: int = 32, size: int = 64, *, percent: float = 0
) -> onnx.ModelProto:
    """Build a residual network: a stem, a strided convolution, ``blocks`` residual blocks, a classifier.

    The additional work is whole residual blocks whose branch ends in a scale of zero.
    """
    graph = Graph()

    def convolution(
        data: str, name: str, inputs: int, outputs: int, stride: int, scale: float | None = None
    ) -> str:
        weights = uniform(f"{name}.weight", (outputs, inputs, 3, 3), math.sqrt(2.0 / (9 * inputs)))
        data = graph.node(
            "Conv",
            [data, graph.weight(f"{name}.weight", weights)],
            f"{name}.convolved",
            kernel_shape=[3, 3],
            pads=[1, 1, 1, 1],
            strides=[stride, stride],
        )
        gamma = 1 + uniform(f"{name}.gamma", (outputs,), 0.1)
        statistics = {
            "gamma": gamma if scale is None else gamma * np.float32(scale),
            "beta": np.zeros(outputs, np.float32) if scale == 0 else uniform(f"{name}.beta", (outputs,), 0.1),
            "mean": uniform(f"{name}.mean", (outputs,), 0.1),
            "variance": 1 + np.abs(uniform(f"{name}.variance", (outputs,), 0.2)),
        }
        parameters = [graph.weight(f"{name}.{key}", values) for key, values in statistics.items()]
        return graph.node("BatchNormalization", [data, *parameters], f"{name}.normalised")

    data = convolution("image", "stem", 3, channels // 2, 2)
    data = graph.node("Relu", [data], "stem.out")
    data = convolution(data, "down", channels // 2, channels, 2)
    data = graph.node("Relu", [data], "down.out")
    for index in range(blocks + extra_units(blocks, percent)):
        name = f"block{index}"
        inner = convolution(data, f"{name}.first", channels, channels, 1)
        inner = graph.node("Relu", [inner], f"{name}.first.out")
        inner = convolution(
            inner, f"{name}.second", channels, channels, 1, scale=0.25 if index < blocks else 0
        )
        data = graph.node("Relu", [graph.node("Add", [data, inner], f"{name}.sum")], f"{name}.out")
    data = graph.node("GlobalAveragePool", [data], "pooled")
    data = graph.node("Flatten", [data], "features", axis=1)
    weights = graph.weight("classifier.weight", uniform("classifier.weight", (channels, 10), channels**-0.5))
    bias = graph.weight("classifier.bias", uniform("classifier.bias", (10,), 0.1))
    graph.node("Gemm", [data, weights, bias], "logits")
    return graph.model("convnet", {"image": [1, 3, size, size]}, {"logits": [1, 10]})


def make_encoder(
    width: int = 128, heads: int = 4, hidden: int = 512, *, percent: float = 0
) -> onnx.ModelProto:
    """Build a transformer encoder block with dynamic batch and sequence, its GELU written out with Erf.

    The additional work is feed-forward units that nothing reads: their outgoing weights are zero.  The
    feed-forward part takes a little less than half of the block's time on a CPU, so it grows by more than
    twice ``percent``.
    """
    graph = Graph()
    idle = 8 * extra_units(hidden // 8, 2.25 * percent)

    def linear(data: str, name: str, weights: np.ndarray, bias: np.ndarray) -> str:
        data = graph.node("MatMul", [data, graph.weight(f"{name}.weight", weights)], f"{name}.product")
        return graph.node("Add", [data, graph.weight(f"{name}.bias", bias)], f"{name}.out")

    def dense(data: str, name: str, inputs: int, outputs: int) -> str:
        weights = uniform(f"{name}.weight", (inputs, outputs), inputs**-0.5)
        return linear(data, name, weights, uniform(f"{name}.bias", (outputs,), 0.1))

    def normalise(data: str, name: str, output: str) -> str:
        gamma = graph.weight(f"{name}.gamma", 1 + uniform(f"{name}.gamma", (width,), 0.1))
        beta = graph.weight(f"{name}.beta", uniform(f"{name}.beta", (width,), 0.1))
        return graph.node("LayerNormalization", [data, gamma, beta], output, axis=-1, epsilon=1e-5)

    # Self-attention: [batch, sequence, width] -> [batch, heads, sequence, width / heads] and back.
    split = graph.weight("attention.split", np.array([0, 0, heads, width // heads], np.int64))
    merge = graph.weight("attention.merge", np.array([0, 0, width], np.int64))
    scale = graph.weight("attention.scale", np.array((width / heads) ** -0.5, np.float32))
    parts = {}
    for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        name = f"attention.{part}"
        data = dense("tokens", name, width, width)
        data = graph.node("Reshape", [data, split], f"{name}.split")
        parts[part] = graph.node("Transpose", [data], f"{name}.heads", perm=order)
    data = graph.node("MatMul", [parts["query"], parts["key"]], "attention.products")
    data = graph.node("Mul", [data, scale], "attention.scores")
    data = graph.node("Softmax", [data], "attention.weights", axis=-1)
    data = graph.node("MatMul", [data, parts["value"]], "attention.context")
    data = graph.node("Transpose", [data], "attention.context.transposed", perm=[0, 2, 1, 3])
    data = graph.node("Reshape", [data, merge], "attention.merged")
    data = dense(data, "attention.output", width, width)
    data = graph.node("Add", ["tokens", data], "attention.sum")
    attended = normalise(data, "attention.norm", "attention.norm.out")

    # Feed-forward: the additional units have weights like the others on the way in and zeros on the way out.
    weights_in = uniform("feed.in.weight", (width, hidden), width**-0.5)
    bias_in = uniform("feed.in.bias", (hidden,), 0.1)
    weights_out = uniform("feed.out.weight", (hidden, width), 1.5 * hidden**-0.5)
    weights_in = np.concatenate([weights_in, uniform("feed.in.idle", (width, idle), width**-0.5)], axis=1)
    bias_in = np.concatenate([bias_in, np.zeros(idle, np.float32)])
    weights_out = np.concatenate([weights_out, np.zeros((idle, width), np.float32)])
    data = linear(attended, "feed.in", weights_in, bias_in)
    root, one, half = (
        graph.weight(f"gelu.{key}", np.array(value, np.float32))
        for key, value in (("root", math.sqrt(2)), ("one", 1), ("half", 0.5))
    )
    error = graph.node("Erf", [graph.node("Div", [data, root], "gelu.ratio")], "gelu.erf")
    factor = graph.node("Add", [error, one], "gelu.factor")
    data = graph.node("Mul", [graph.node("Mul", [data, factor], "gelu.product"), half], "gelu.out")
    data = linear(data, "feed.out", weights_out, uniform("feed.out.bias", (width,), 0.1))
    data = graph.node("Add", [attended, data], "feed.sum")
    hidden_states = normalise(data, "feed.norm", "hidden_states")
    graph.node("ReduceMean", [hidden_states], "pooled", axes=[1], keepdims=0)
    dynamic: Shape = ["batch", "sequence", width]
    return graph.model("encoder", {"tokens": dynamic}, {"hidden_states": dynamic, "pooled": ["batch", width]})


def make_mlp(layers: int = 90, width: int = 48, batch: int = 32, *, percent: float = 0) -> onnx.ModelProto:
    """Build a deep and narrow chain of MatMul and Relu, ``layers`` of each.

    Every matrix is the identity plus a little, so that ninety layers keep different inputs apart.  The
    additional work is whole layers whose matrix is the identity.
    """
    graph = Graph()
    data = "features"
    total = layers + extra_units(layers, percent)
    for index in range(total):
        name = f"layer{index}"
        weights = np.eye(width, dtype=np.float32)
        if index < layers:
            weights += uniform(f"{name}.weight", (width, width), 0.1 * width**-0.5)
        data = graph.node("MatMul", [data, graph.weight(f"{name}.weight", weights)], f"{name}.product")
        data = graph.node("Relu", [data], "scores" if index == total - 1 else f"{name}.out")
    return graph.model("mlp", {"features": [batch, width]}, {"scores": [batch, width]})


def extra_units(units: int, percent: float) -> int:
    """How many of ``units`` equal pieces of work make ``percent`` more: whole ones, at least one if any."""
    return max(1, round(units * percent / 100)) if percent else 0


BUILDERS: dict[str, Callable[..., onnx.ModelProto]] = {
    "convnet": make_convnet,
    "encoder": make_encoder,
    "mlp": make_mlp,
}


def write(model: onnx.ModelProto, path: Path) -> None:
    """Write the model; the same model gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Write the example's three ONNX models.")
    parser.add_argument(
        "--output",
        type=Path,
        default=MODELS,
        metavar="DIR",
        help="where to write (default: models/ beside this)",
    )
    parser.add_argument(
        "--slow",
        choices=sorted(BUILDERS),
        action="append",
        default=[],
        metavar="MODEL",
        help="give this model more work and the same outputs: convnet, encoder or mlp; may be repeated",
    )
    parser.add_argument(
        "--percent", type=float, default=11, help="how much more work, in whole layers or units (default: 11)"
    )
    options = parser.parse_args(arguments)
    if not 0 < options.percent <= 1000:
        parser.error("--percent must be above 0 and at most 1000")
    for name, build in BUILDERS.items():
        percent = options.percent if name in options.slow else 0
        path = options.output / f"{name}.onnx"
        write(build(percent=percent), path)
        print(
            f"{path}: {path.stat().st_size:,} bytes" + (f", about {percent:g} % more work" if percent else "")
        )


if __name__ == "__main__":
    main()
