"""How far an output is from its reference: the five metrics, and a user's own.

All arithmetic is in float64, whatever the tensors hold; differences of integers are taken exactly before
that. The definitions of ``l0``, ``l1``, ``l2``, ``lInf`` and ``cos`` are those of trtexec's tuner (TensorRT
11.1, ``--accuracyAlgorithm``), without its faults: NaN is never a good result, and nothing is skipped.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pytest_gptune.accuracy.tensors import as_float64, kind_of, listed, nearest, shape_text
from pytest_gptune.errors import GptuneError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

BUILTIN_METRICS = ("l0", "l1", "l2", "lInf", "cos")
SCOPES = ("tensor", "case", "dataset")
Scope = Literal["tensor", "case", "dataset"]

DEFAULT_ATOL = 1e-5
DEFAULT_RTOL = 1e-5


class MetricError(GptuneError):
    """A metric, its parameters or its operands cannot be used."""


@dataclass(frozen=True)
class Metric:
    """A metric of a user's own.

    Attributes:
        name: what reports call it; not the name of a built-in metric.
        function: gives the loss, a number >= 0; smaller is better; NaN counts as infinity. By scope it is
            called ``f(actual, reference)`` for each output of each case, ``f({output: actual}, {output:
            reference})`` for each case, or ``f([case's actual], [case's reference])`` once, each case a dict
            of output to array.
        scope: ``tensor``, ``case`` or ``dataset``.

    Raises:
        MetricError: the name is empty or a built-in's, the scope is unknown, or the function cannot be
            called.
    """

    name: str
    function: Callable[..., float]
    scope: Scope = "tensor"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise MetricError(f"a metric's name is {self.name!r}, not a text", mend="give the metric a name")
        if self.name in BUILTIN_METRICS:
            raise MetricError(
                f"a metric of one's own cannot be called {self.name!r}, as a built-in metric is",
                mend=f"choose a name other than {listed(BUILTIN_METRICS)}",
            )
        if self.scope not in SCOPES:
            raise MetricError(
                f"unknown scope {self.scope!r} of metric {self.name!r}{nearest(str(self.scope), SCOPES)}",
                mend=f"write one of {listed(SCOPES)}",
            )
        if not callable(self.function):
            raise MetricError(
                f"the function of metric {self.name!r} is {self.function!r}, which cannot be called"
            )

    def measure(self, actual: Any, reference: Any) -> float:
        """Call the function and judge what it returns.

        Returns:
            The loss, >= 0; infinity where the function returned NaN.

        Raises:
            MetricError: the function raised, or returned something else than a number >= 0.
        """
        where = f"metric {self.name!r}, {_place(self.function)}"
        try:
            value: object = self.function(actual, reference)
        except (
            Exception
        ) as error:  # whatever a user's code raises is reported as that code's, never as a loss
            raise MetricError(
                f"metric {self.name!r} raised {type(error).__name__}: {error}",
                where=where,
                mend="mend the function; it is called with (actual, reference)",
            ) from error
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            value = value.item()
        # True would be a loss of 1, the opposite of what a function that returns a bool most likely means.
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise MetricError(
                f"metric {self.name!r} returned {_shortened(value)}, which is not a number",
                where=where,
                mend="return a float >= 0, 0 for equal",
            )
        loss_value = float(value)
        if math.isnan(loss_value):
            return math.inf
        if loss_value < 0:
            raise MetricError(
                f"metric {self.name!r} returned {loss_value!r}, which is negative",
                where=where,
                mend="return a loss, >= 0 and smaller for better results; for a score write 1 - score",
            )
        return loss_value


@dataclass(frozen=True, eq=False)
class Difference:
    """Element by element, how two tensors of one shape differ.

    Attributes:
        actual, reference: float64, of the tensors' shape.
        distance: float64, ``|actual - reference|``, exact for integers before rounding; 0 where not
            ``compared``, infinity where it overflows; never NaN.
        compared: bool, where both are finite; None if that is everywhere.
        clash: bool, where one is NaN or Inf and the other is not the same; None if nowhere.
    """

    actual: NDArray[np.float64]
    reference: NDArray[np.float64]
    distance: NDArray[np.float64]
    compared: NDArray[np.bool_] | None
    clash: NDArray[np.bool_] | None

    @property
    def equal(self) -> bool:
        """Whether every element has the same value (0.0 and -0.0 are the same, as are NaN and NaN)."""
        return self.clash is None and not self.distance.any()

    def excess(self, atol: float, rtol: float) -> NDArray[np.float64]:
        """How far each distance lies beyond ``atol + rtol*|reference|``; > 0 outside it, float64."""
        import numpy as np

        with np.errstate(all="ignore"):
            tolerance = atol + rtol * np.abs(self.reference)
            beyond = self.distance - tolerance
        # An overflowed distance is outside whatever the tolerance; an infinite reference has the distance 0.
        beyond = np.where(np.isinf(self.distance), np.inf, beyond)
        return beyond if self.compared is None else np.where(self.compared, beyond, -np.inf)

    def loss(self, metric: str, atol: float, rtol: float) -> float:
        """The loss under a built-in metric; the arguments are not checked again."""
        import numpy as np

        if self.clash is not None:
            return math.inf
        chosen = slice(None) if self.compared is None else self.compared.ravel()
        distance = self.distance.ravel()[chosen]
        if distance.size == 0:
            return 0.0
        with np.errstate(all="ignore"):
            if metric == "l0":
                outside = self.excess(atol, rtol).ravel()[chosen] > 0
                return float(np.count_nonzero(outside) / outside.size)
            if metric == "l1":
                return float(distance.mean())
            if metric == "l2":
                return float(np.square(distance).mean())
            if metric == "lInf":
                return float(distance.max())
            return _cosine_distance(self.actual.ravel()[chosen], self.reference.ravel()[chosen])


def loss(
    metric: str,
    actual: ArrayLike,
    reference: ArrayLike,
    atol: float = DEFAULT_ATOL,
    rtol: float = DEFAULT_RTOL,
) -> float:
    """How far ``actual`` is from ``reference``, in float64.

    ===== =====================================================================
    l0    share of the elements with ``|actual - reference| > atol + rtol*|reference|``
    l1    mean of ``|actual - reference|``
    l2    mean of ``(actual - reference)**2``
    lInf  largest ``|actual - reference|``
    cos   1 - cosine of the angle between the two as flat vectors, 0 to 2
    ===== =====================================================================

    Empty tensors have a loss of 0. Under ``cos`` two zero vectors have 0, a zero vector and another one 1.
    Where ``reference`` is NaN or Inf, ``actual`` must be the same there, and the element is left out of the
    metric.

    Args:
        metric: the exact name of a built-in metric.
        actual, reference: tensors of one shape, of any width of int, uint or float, bool, or a type of
            ml_dtypes.
        atol, rtol: tolerances of ``l0``, in units of the tensor and of its share; the other metrics ignore
            them.

    Returns:
        The loss, >= 0 and never NaN: infinity where exactly one of both is not finite, or where the
        arithmetic of float64 overflows.

    Raises:
        MetricError: the metric is unknown, a tolerance is negative or not finite, the shapes differ, or an
            element type cannot be compared.
    """
    check_metric_name(metric)
    check_tolerances(atol, rtol)
    return difference(as_tensor(actual, "actual"), as_tensor(reference, "reference")).loss(metric, atol, rtol)


def difference(actual: NDArray[Any], reference: NDArray[Any]) -> Difference:
    """Subtract two tensors of one shape.

    Raises:
        MetricError: the shapes differ, or an element type cannot be compared.
    """
    import numpy as np

    for role, array in (("actual", actual), ("reference", reference)):
        if kind_of(array.dtype) is None:
            raise _unsupported(role, array.dtype)
    if actual.shape != reference.shape:
        raise MetricError(
            f"shapes differ: actual {shape_text(actual.shape)}, reference {shape_text(reference.shape)}",
            mend="compare tensors of one shape; nothing is broadcast",
        )
    have, want = as_float64(actual), as_float64(reference)
    if "float" not in (kind_of(actual.dtype), kind_of(reference.dtype)):
        return Difference(have, want, _integer_distance(actual, reference), None, None)
    with np.errstate(all="ignore"):
        distance = np.asarray(np.abs(have - want))
        if np.isfinite(distance).all():  # then both were finite: the usual case, with less to do
            return Difference(have, want, distance, None, None)
        finite_have, finite_want = np.isfinite(have), np.isfinite(want)
        compared = finite_have & finite_want
        same = (have == want) | (np.isnan(have) & np.isnan(want))
        clash = ~compared & ~same
        distance = np.where(compared, distance, 0.0)
    return Difference(have, want, distance, compared, clash if clash.any() else None)


def as_tensor(value: ArrayLike, role: str) -> NDArray[Any]:
    """``value`` as an array; ``role`` names it in the error.

    Raises:
        MetricError: it is no tensor, or its element type cannot be compared.
    """
    import numpy as np

    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise MetricError(f"{role} is not a tensor: {error}", mend="give an array of numbers") from None
    if kind_of(array.dtype) is None:
        raise _unsupported(role, array.dtype)
    return array


def check_metric_name(name: str) -> None:
    """Refuse what is not the exact name of a built-in metric.

    Raises:
        MetricError: it is not; the nearest name is told.
    """
    if name not in BUILTIN_METRICS:
        raise _unknown_metric(name, BUILTIN_METRICS)


def find_metric(name: str | Metric, own: Mapping[str, Metric]) -> str | Metric:
    """What ``name`` stands for: a built-in metric's name, or one of the user's ``own`` metrics.

    Raises:
        MetricError: neither; the nearest name is told.
    """
    if isinstance(name, Metric) or name in BUILTIN_METRICS:
        return name
    if name in own:
        return own[name]
    raise _unknown_metric(name, [*BUILTIN_METRICS, *own])


def check_tolerances(atol: float, rtol: float) -> None:
    """Refuse tolerances under which ``l0`` has no meaning.

    Raises:
        MetricError: one is not a finite number >= 0.
    """
    for name, value in (("atol", atol), ("rtol", rtol)):
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
            raise MetricError(f"{name} is {value!r}", mend=f"write a finite number >= 0, as {name}=1e-5")


def _integer_distance(actual: NDArray[Any], reference: NDArray[Any]) -> NDArray[np.float64]:
    """``|actual - reference|`` of integers or bools, exact in 64 bits, then rounded to float64."""
    import numpy as np

    have, want = _to_64_bits(actual), _to_64_bits(reference)
    # Unsigned subtraction wraps modulo 2**64, so the view of the larger minus that of the smaller is the
    # distance.
    bits_have, bits_want = have.view(np.uint64), want.view(np.uint64)
    with np.errstate(over="ignore"):
        larger = have > want if have.dtype == want.dtype else bits_have > bits_want
        distance = np.where(larger, bits_have - bits_want, bits_want - bits_have).astype(np.float64)
    if have.dtype != want.dtype:
        # A negative number and an unsigned one may lie more than 2**64 apart.
        apart = (have < 0) | (want < 0)
        distance = np.where(
            apart, np.abs(have.astype(np.float64)) + np.abs(want.astype(np.float64)), distance
        )
    return np.asarray(distance, dtype=np.float64)


def _to_64_bits(array: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    return np.asarray(array.astype(np.int64 if kind_of(array.dtype) == "int" else np.uint64))


def _cosine_distance(actual: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
    """``1 - cosine`` as half the squared distance of the unit vectors.

    The two are equal, but this one has no cancellation: it is exactly 0 for equal vectors and never negative.
    """
    import numpy as np

    size_actual, size_reference = float(np.abs(actual).max()), float(np.abs(reference).max())
    if size_actual == 0.0 or size_reference == 0.0:
        return 0.0 if size_actual == size_reference else 1.0
    # Divided by the largest element first, no square of float64 overflows, nor do all underflow.
    unit_actual, unit_reference = actual / size_actual, reference / size_reference
    unit_actual /= math.sqrt(float(np.square(unit_actual).sum()))
    unit_reference /= math.sqrt(float(np.square(unit_reference).sum()))
    return min(2.0, 0.5 * float(np.square(unit_actual - unit_reference).sum()))


def _unknown_metric(name: object, known: Any) -> MetricError:
    return MetricError(
        f"unknown metric {name!r}{nearest(str(name), known)}",
        mend=f"write one of {listed(known)}, or register your own with the hook pytest_gptune_metric",
    )


def _unsupported(role: str, dtype: np.dtype[Any]) -> MetricError:
    return MetricError(
        f"{role} has dtype {dtype}, which cannot be compared",
        mend="give bool, int, uint, float (float64 at most) or a type of ml_dtypes; split complex in two",
    )


def _place(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    if code is None:
        return f"function {function!r}"
    return f"{code.co_filename}:{code.co_firstlineno}"


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
