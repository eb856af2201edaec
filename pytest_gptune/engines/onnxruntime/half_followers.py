"""Which nodes follow chosen ones into fp16: those that lose nothing there but a few bits of their outputs.

A cast to float32 and back around each node behind a chosen one would cost more than the chosen node gains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

# Their outputs are at most one.
_GATES = frozenset(["HardSigmoid", "Sigmoid", "Tanh"])

# Their outputs are no larger than the largest of their inputs.
_PASSING = frozenset(
    [
        "AveragePool",
        "Concat",
        "Dropout",
        "Flatten",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "HardSwish",
        "Identity",
        "MaxPool",
        "Pad",
        "Relu",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    ]
)

_COMBINING = frozenset(["Add", "BatchNormalization", "Clip", "Div", "LeakyRelu", "Mul", "PRelu", "Sub"])

# numpy.finfo(numpy.float16).max; numpy is imported where arrays are looked at.
_LARGEST = 65504.0

# Values of some thousands, as networks have them, can be multiplied by this and no more.
_LARGEST_FACTOR = 10.0

# Where BatchNormalization has the variance.
_VARIANCE = 4


def with_followers(
    graph: Any, chosen: Collection[int], types: Mapping[str, int], constants: Mapping[str, Any]
) -> set[int]:
    """The chosen positions and those of nodes that read floats of theirs, or constants, and of no others.

    Products follow where a factor is known to be small, as a gate or a constant is. Squares and cubes, of a
    normalisation or of GELU, do not: beyond 256 and 40 they are infinite in fp16. Nor does a node with a
    constant that fp16 does not hold: a variance of 1e8 would be clamped, and all it divides wrong.

    Args:
        graph: an ``onnx.GraphProto``, its nodes in order.
        chosen: positions of nodes.
        types: element types by name, as far as they are known.
        constants: tensors by name.
    """
    import onnx

    nodes = set(chosen)
    inside = {name for position in nodes for name in graph.node[position].output}
    bounds: dict[str, float] = {}
    for position, node in enumerate(graph.node):
        if position in nodes or node.domain not in ("", "ai.onnx"):
            continue
        if node.op_type not in _GATES | _PASSING | _COMBINING:
            continue
        floats = [name for name in node.input if types.get(name) == onnx.TensorProto.FLOAT]
        known = all(name in types for name in (*node.input, *node.output) if name)
        if not known or not any(name in inside for name in floats):
            continue
        if not all(name in inside or name in constants for name in floats):
            continue
        candidate = _Follower(node, floats, bounds, constants)
        if candidate.is_held() and candidate.is_tame():
            nodes.add(position)
            inside.update(node.output)
            bounds.update(dict.fromkeys(node.output, candidate.bound()))
    return nodes


class _Follower:
    """A node that may follow, with what is known of the sizes of its inputs."""

    def __init__(
        self, node: Any, floats: Sequence[str], bounds: Mapping[str, float], constants: Mapping[str, Any]
    ) -> None:
        import onnx

        self.node = node
        self.operator = node.op_type
        self.arrays = {
            name: onnx.numpy_helper.to_array(constants[name]) for name in floats if name in constants
        }
        self.sizes = [
            self._largest(name) if name in self.arrays else bounds.get(name, math.inf) for name in floats
        ]

    def is_held(self) -> bool:
        """Whether fp16 holds its constants: none is clamped, no factor and no guard loses most of its bits.

        A guard is a single small number, added before a logarithm or a division; in a tensor of biases small
        ones do no harm. Nor does a small scale of BatchNormalization: what it scales is of the order of one.
        """
        import numpy as np

        if self.operator == "Clip":
            low, high = self._limits()
            return (low < -_LARGEST or _is_exact(low)) and (high > _LARGEST or _is_exact(high))
        limits = np.finfo(np.float16)
        for index, name in enumerate(self.node.input):
            if (array := self.arrays.get(name)) is None:
                continue
            sizes = np.abs(array)
            counts = (
                array.size == 1
                or self.operator in ("Div", "Mul")
                or (self.operator == "BatchNormalization" and index == _VARIANCE)
            )
            small = (sizes > 0) & (sizes < limits.smallest_normal)
            # Infinity stays what it is: in a mask, or around what is pooled.
            clamped = np.isfinite(sizes) & (sizes > limits.max)
            if clamped.any() or (counts and small.any()):
                return False
        return True

    def is_tame(self) -> bool:
        """Whether its outputs are not much larger than its inputs."""
        if self.operator == "Mul":
            return min(self.sizes) <= _LARGEST_FACTOR
        if self.operator == "Div":
            return self._inverse() <= _LARGEST_FACTOR
        return True

    def bound(self) -> float:
        """What the sizes of its outputs do not exceed; infinity where nothing is known."""
        if self.operator in _GATES:
            return 1.0
        if self.operator == "Clip":
            return max(map(abs, self._limits()))
        combined: dict[str, Callable[[], float]] = {
            "Add": lambda: sum(self.sizes),
            "Sub": lambda: sum(self.sizes),
            "Mul": lambda: math.prod(self.sizes),
            "Div": lambda: self.sizes[0] * self._inverse(),
        }
        if self.operator in combined:
            return combined[self.operator]()
        return max(self.sizes) if self.operator in _PASSING else math.inf

    def _limits(self) -> tuple[float, float]:
        """Of a Clip: inputs, or attributes before opset 11; infinite where there is none."""
        given = {attribute.name: attribute.f for attribute in self.node.attribute}
        for name, at in zip(self.node.input[1:], ("min", "max"), strict=False):
            if name:
                # A limit that is computed may be anything.
                given[at] = float(self.arrays[name]) if name in self.arrays else math.nan
        return given.get("min", -math.inf), given.get("max", math.inf)

    def _inverse(self) -> float:
        """The largest factor that a division by its constant is."""
        import numpy as np

        divisor = self.arrays.get(self.node.input[1])
        if divisor is None or not divisor.size:
            return math.inf
        smallest = float(np.abs(divisor).min())
        return 1 / smallest if smallest else math.inf

    def _largest(self, name: str) -> float:
        import numpy as np

        array = self.arrays[name]
        return float(np.abs(array).max()) if array.size else 0.0


def _is_exact(limit: float) -> bool:
    """Whether fp16 has this number: a guard at 1e-7 or at one less that would be at zero or at one."""
    import numpy as np

    return abs(limit) <= _LARGEST and float(np.float16(limit)) == limit
