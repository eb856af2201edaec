"""The words for a difference: worst element, both values, how many are outside."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pytest_gptune.accuracy.metrics import Difference, Metric
from pytest_gptune.accuracy.tensors import kind_of, position, shape_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Value = float | int | bool


class _Gate(Protocol):
    @property
    def metric(self) -> str | Metric:
        """The metric, or its name."""

    @property
    def metric_name(self) -> str:
        """Its name."""

    @property
    def atol(self) -> float:
        """Tolerance of l0."""

    @property
    def rtol(self) -> float:
        """Tolerance of l0."""


@dataclass(frozen=True)
class TensorMismatch:
    """The worst of one tensor, in built-in types.

    Attributes:
        output, case: names; empty where the loss is of no single output, or of no single case.
        metric: the metric's name.
        loss, epsilon: in the metric's unit; the loss is infinite where nothing could be compared.
        index: of the worst element, one int per dimension; None if there is no such element.
        actual, reference: the values there.
        outside: how many elements are beyond the limit that ``text`` names.
        elements: how many elements the tensor has.
        text: one line that says all this.
    """

    output: str
    case: str
    metric: str
    loss: float
    epsilon: float
    index: tuple[int, ...] | None
    actual: Value | None
    reference: Value | None
    outside: int
    elements: int
    text: str


def place(output: str, case: str, metric: str | Metric, cases: int) -> str:
    """The beginning of a message: whose loss this is."""
    if output:
        return f"output {output!r} of case {case!r}" if case else f"output {output!r}"
    name = metric.name if isinstance(metric, Metric) else metric
    return f"metric {name!r} of case {case!r}" if case else f"metric {name!r} over {cases} cases"


def verdict(metric: str, loss: float, epsilon: float) -> str:
    """``lInf 3.2e-02 > epsilon 1e-03``, with as many digits as it takes to tell the two apart."""
    if loss <= epsilon == 0:
        return f"{metric} {_scientific(loss, 3)}, but epsilon 0 asks for equality"
    have, limit = beside(loss, epsilon, 3)
    if loss <= epsilon:
        return f"{metric} {have} within epsilon {limit}"
    return f"{metric} {have} > epsilon {limit}"


def beside(first: float, second: float, digits: int) -> tuple[str, str]:
    """Both numbers in scientific notation, ``digits`` or as many more as it takes for them to look
    different."""
    texts = "", ""
    for count in range(digits, 18):
        texts = _scientific(first, count), _scientific(second, count)
        if texts[0] != texts[1] or first == second:
            break
    return texts


def of_tensor(
    where: str,
    output: str,
    case: str,
    gate: _Gate,
    loss: float,
    epsilon: float,
    actual: NDArray[Any],
    reference: NDArray[Any],
    found: Difference,
) -> TensorMismatch:
    """Describe how two tensors of one shape differ.

    Args:
        where: the beginning of the message.
        output, case: names.
        gate: the metric and its tolerances.
        loss, epsilon: what was found, and the limit.
        actual, reference: the tensors as they came.
        found: their difference.
    """
    import numpy as np

    elements = int(actual.size)
    if found.clash is not None:
        index = position(int(np.argmax(found.clash)), actual.shape)
        outside = int(np.count_nonzero(found.clash))
        text = _clash_text(float(found.actual[index]), float(found.reference[index]), index, outside, found)
    elif elements == 0:
        index, outside, text = None, 0, verdict(gate.metric_name, loss, epsilon)
    else:
        excess, limit = _beyond(gate, epsilon, found)
        index = position(int(np.argmax(excess)), actual.shape)
        outside = int(np.count_nonzero(excess > 0))
        have, want = _values(_plain(actual, index), _plain(reference, index))
        verb = "differs" if outside == 1 else "differ"
        text = (
            f"{verdict(gate.metric_name, loss, epsilon)}; worst at {shape_text(index)}: "
            f"{have} instead of {want}; {outside} of {elements} elements {verb}{limit}"
        )
    return TensorMismatch(
        output=output,
        case=case,
        metric=gate.metric_name,
        loss=loss,
        epsilon=epsilon,
        index=index,
        actual=None if index is None else _plain(actual, index),
        reference=None if index is None else _plain(reference, index),
        outside=outside,
        elements=elements,
        text=f"{where}: {text}",
    )


def _beyond(gate: _Gate, epsilon: float, found: Difference) -> tuple[NDArray[np.float64], str]:
    """How far each element is beyond the limit one element is held to, and that limit in words.

    A mean has no limit per element; epsilon is still the measure of what is a large difference.
    """
    if gate.metric == "l0":
        tolerance = f" by more than {_scientific(gate.atol, 3)} + {_scientific(gate.rtol, 3)} * |reference|"
        excess = found.excess(gate.atol, gate.rtol)
        if (excess > 0).any():
            return excess, tolerance
    elif gate.metric in ("l1", "l2", "lInf") and epsilon > 0:
        limit = math.sqrt(epsilon) if gate.metric == "l2" else epsilon
        return found.distance - limit, f" by more than {_scientific(limit, 3)}"
    return found.distance, ""


def _clash_text(have: float, want: float, index: tuple[int, ...], count: int, found: Difference) -> str:
    import numpy as np

    at, elements = shape_text(index), found.actual.size
    if np.isfinite(found.reference).all():
        return f"{_nonfinite(have)} at {at} ({count} of {elements} elements not finite), golden is finite"
    return (
        f"{_nonfinite(have)} at {at} where the golden has {_nonfinite(want)} "
        f"({count} of {elements} elements are not of the golden's kind, finite, Inf, -Inf or NaN)"
    )


def _nonfinite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    return f"{value:.5g}"


def _plain(array: NDArray[Any], index: tuple[int, ...]) -> Value:
    element = array[index]
    kind = kind_of(array.dtype)
    if kind == "bool":
        return bool(element)
    return float(element) if kind == "float" else int(element)


def _values(have: Value, want: Value) -> tuple[str, str]:
    if not isinstance(have, float) or not isinstance(want, float):
        return str(have), str(want)
    texts = "", ""
    for digits in range(5, 18):
        texts = f"{have:.{digits}g}", f"{want:.{digits}g}"
        if texts[0] != texts[1] or have == want:
            break
    return texts


def _scientific(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return _nonfinite(value).lower()
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}e{exponent}"
