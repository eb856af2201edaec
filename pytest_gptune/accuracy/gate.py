"""The gate that decides whether a route is accurate: every output of every case within epsilon, or not."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gptune.accuracy import mismatch as describe
from pytest_gptune.accuracy.metrics import (
    DEFAULT_ATOL,
    DEFAULT_RTOL,
    Difference,
    Metric,
    MetricError,
    check_metric_name,
    check_tolerances,
    difference,
)
from pytest_gptune.accuracy.mismatch import TensorMismatch
from pytest_gptune.accuracy.tensors import bullets, kind_of, listed, nearest, shape_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pytest_gptune.accuracy.goldens import Case, Golden

# A loss of 0 that epsilon 0 does not accept (0.5 and 1.0 have the same direction) passes under any greater
# epsilon.
_SMALLEST_EPSILON = math.ulp(0.0)
_MAX_LINES = 8


@dataclass(frozen=True)
class AccuracyResult:
    """What a comparison found, in built-in types only, so that it can cross to another process.

    Attributes:
        passed: whether every loss is within epsilon.
        losses: the worst loss over the cases, by output; under a metric of scope case or dataset its one
            loss, by the metric's name. An output that is missing, extra or of another shape or kind has
            infinity.
        worst: the tensor closest to, or furthest beyond, its epsilon; None if all is equal, or if the metric
            has no loss per tensor.
        message: one line per output that failed, the worst first; empty if passed.
        needed_epsilon: the smallest single epsilon at which this would pass, infinity if none would; None if
            the gate has an epsilon per output.
        needed_by_output: the same by output, with the keys of ``losses``.
    """

    passed: bool
    losses: dict[str, float]
    worst: TensorMismatch | None
    message: str
    needed_epsilon: float | None
    needed_by_output: dict[str, float]


@dataclass(frozen=True)
class _Finding:
    """One loss that was found, before it is put in words."""

    key: str
    output: str
    case: str
    loss: float
    needed: float
    epsilon: float
    passed: bool
    text: str = ""
    pair: tuple[NDArray[Any], NDArray[Any], Difference] | None = None

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Greater for worse: failed before passed, then by the loss in epsilons, then by the loss."""
        ratio = self.loss / self.epsilon if self.epsilon else self.loss
        return not self.passed, ratio, self.needed


@dataclass(frozen=True)
class AccuracyGate:
    """How much an engine's outputs may differ from the golden.

    With epsilon 0 a built-in metric asks for equality: of every bit for integers and bool, of every value for
    floats (0.0 and -0.0 are equal), except that ``l0`` on floats asks for every element within ``atol`` and
    ``rtol``. A metric of the user's own decides by its loss alone.

    Attributes:
        metric: a built-in metric's name, or a ``Metric``.
        epsilon: the greatest loss that passes, finite and >= 0, in the metric's unit; or one for each output.
        atol, rtol: tolerances of ``l0``.

    Raises:
        MetricError: an unknown metric, an epsilon that is negative, NaN or infinite, an epsilon per output
            with a metric that has one loss for all, or a bad tolerance.
    """

    metric: str | Metric
    epsilon: float | Mapping[str, float]
    atol: float = DEFAULT_ATOL
    rtol: float = DEFAULT_RTOL

    def __post_init__(self) -> None:
        if not isinstance(self.metric, Metric):
            check_metric_name(self.metric)
        check_tolerances(self.atol, self.rtol)
        if isinstance(self.epsilon, Mapping):
            if isinstance(self.metric, Metric) and self.metric.scope != "tensor":
                raise MetricError(
                    f"metric {self.metric.name!r} has one loss for all outputs, epsilon is given for each",
                    mend="write one number, as epsilon=1e-3",
                )
            checked: float | dict[str, float] = {
                name: _checked_epsilon(value, f"epsilon of output {name!r}")
                for name, value in self.epsilon.items()
            }
        else:
            checked = _checked_epsilon(self.epsilon, "epsilon")
        object.__setattr__(self, "epsilon", checked)

    @property
    def metric_name(self) -> str:
        """The metric's name."""
        return self.metric.name if isinstance(self.metric, Metric) else self.metric

    def check_outputs(self, outputs: Sequence[str], where: str = "") -> None:
        """Refuse an epsilon per output that does not name exactly these ``outputs``.

        Raises:
            MetricError: outputs have no epsilon, or an epsilon has no output; all are listed.
        """
        if not isinstance(self.epsilon, Mapping):
            return
        missing = [f"output {name!r} has no epsilon" for name in outputs if name not in self.epsilon]
        unknown = [
            f"there is no output {name!r}{nearest(name, outputs)}"
            for name in self.epsilon
            if name not in outputs
        ]
        if missing or unknown:
            raise MetricError(
                f"epsilon does not name the outputs{bullets(missing + unknown)}",
                where=where,
                mend=f"give each of {listed(outputs)} an epsilon, or write one number for all",
            )

    def compare(
        self, golden: Golden, outputs_by_case: Sequence[Mapping[str, NDArray[Any]]]
    ) -> AccuracyResult:
        """Compare an engine's outputs with the golden.

        Whatever is wrong with the outputs is a failed result, never an exception and never skipped: a
        missing, extra or renamed output, another shape, an element type that cannot be compared, another kind
        of it (float widths may differ, as may integer widths; signed, unsigned, bool and float may not be
        mixed), NaN or Inf.

        Args:
            golden: the reference.
            outputs_by_case: the outputs by name for each of the golden's cases, in its order.

        Raises:
            MetricError: epsilon does not name the golden's outputs, or a metric of the user's own failed.
        """
        self.check_outputs(golden.output_names)
        findings = self._structure(golden, outputs_by_case)
        if not findings:
            if isinstance(self.metric, Metric) and self.metric.scope != "tensor":
                findings = self._judge_whole(self.metric, golden, outputs_by_case)
            else:
                findings = [
                    self._judge_tensor(case, name, outputs[name])
                    for case, outputs in zip(golden.cases, outputs_by_case, strict=True)
                    for name in golden.output_names
                ]
        else:
            findings += self._judge_comparable(golden, outputs_by_case, findings)
        return self._result(golden, findings)

    def _structure(self, golden: Golden, outputs_by_case: Sequence[Mapping[str, Any]]) -> list[_Finding]:
        """What cannot be compared at all."""
        found: list[_Finding] = []
        for case, outputs in zip(golden.cases, outputs_by_case, strict=False):
            if not isinstance(outputs, Mapping):
                text = f"is missing; the engine gives a {type(outputs).__name__} in place of outputs by name"
                found += [self._broken(name, case.name, text) for name in case.outputs]
                continue
            for name, reference in case.outputs.items():
                if name not in outputs:
                    given = f"the engine gives {listed(outputs)}{nearest(name, outputs)}"
                    found.append(self._broken(name, case.name, f"is missing; {given}"))
                elif wrong := _unfit(outputs[name], reference):
                    found.append(self._broken(name, case.name, wrong))
            found += [
                self._broken(name, case.name, f"is not in the golden{nearest(name, case.outputs)}")
                for name in outputs
                if name not in case.outputs
            ]
        count, expected = len(outputs_by_case), len(golden.cases)
        if count > expected:
            text = f"outputs of {count} cases were given, the golden has {expected}"
            found += [self._broken(name, "", text) for name in golden.output_names]
        for case in golden.cases[count:]:
            text = f"was not computed; outputs of {count} of {expected} cases were given"
            found += [self._broken(name, case.name, text) for name in golden.output_names]
        return found

    def _judge_comparable(
        self, golden: Golden, outputs_by_case: Sequence[Mapping[str, Any]], broken: Sequence[_Finding]
    ) -> list[_Finding]:
        """The tensors that can be compared beside broken ones, so that one run tells all that is wrong."""
        if isinstance(self.metric, Metric):  # a user's function may rely on all outputs being there
            return []
        skip = {(finding.output, finding.case) for finding in broken}
        return [
            self._judge_tensor(case, name, outputs[name])
            for case, outputs in zip(golden.cases, outputs_by_case, strict=False)
            for name in golden.output_names
            if (name, case.name) not in skip
        ]

    def _judge_tensor(self, case: Case, name: str, actual: Any) -> _Finding:
        import numpy as np

        actual, reference = np.asarray(actual), case.outputs[name]
        found = difference(actual, reference)
        if found.clash is not None:
            value = math.inf
        elif isinstance(self.metric, Metric):
            value = self.metric.measure(actual, reference)
        else:
            value = found.loss(self.metric, self.atol, self.rtol)
        exact = found.equal or isinstance(self.metric, Metric)
        if self.metric == "l0" and kind_of(reference.dtype) == "float":
            exact = True
        return self._finding(name, name, case.name, value, exact=exact, pair=(actual, reference, found))

    def _judge_whole(
        self, metric: Metric, golden: Golden, outputs_by_case: Sequence[Mapping[str, Any]]
    ) -> list[_Finding]:
        import numpy as np

        actuals = [
            {name: np.asarray(outputs[name]) for name in golden.output_names} for outputs in outputs_by_case
        ]
        references = [dict(case.outputs) for case in golden.cases]
        # A function of the user's own need not look for NaN: argmax of a NaN is an index like any other.
        clashes = [
            self._finding(
                metric.name, name, case.name, math.inf, exact=True, pair=(actual[name], reference, found)
            )
            for case, actual in zip(golden.cases, actuals, strict=True)
            for name, reference in case.outputs.items()
            if (found := difference(actual[name], reference)).clash is not None
        ]
        if clashes:
            return clashes
        if metric.scope == "dataset":
            return [self._finding(metric.name, "", "", metric.measure(actuals, references), exact=True)]
        return [
            self._finding(metric.name, "", case.name, metric.measure(actual, reference), exact=True)
            for case, actual, reference in zip(golden.cases, actuals, references, strict=True)
        ]

    def _finding(
        self,
        key: str,
        output: str,
        case: str,
        value: float,
        *,
        exact: bool,
        pair: tuple[NDArray[Any], NDArray[Any], Difference] | None = None,
    ) -> _Finding:
        epsilon = self._epsilon_of(key)
        needed = value if value > 0 or exact else _SMALLEST_EPSILON
        return _Finding(key, output, case, value, needed, epsilon, passed=needed <= epsilon, pair=pair)

    def _broken(self, output: str, case: str, text: str) -> _Finding:
        whole = isinstance(self.metric, Metric) and self.metric.scope != "tensor"
        key = self.metric_name if whole else output
        return _Finding(key, output, case, math.inf, math.inf, self._epsilon_of(key), passed=False, text=text)

    def _epsilon_of(self, key: str) -> float:
        # An extra output has no epsilon of its own; none would let it pass.
        return self.epsilon.get(key, 0.0) if isinstance(self.epsilon, Mapping) else self.epsilon

    def _result(self, golden: Golden, findings: Sequence[_Finding]) -> AccuracyResult:
        worst_by_key: dict[str, _Finding] = {}
        for finding in findings:
            known = worst_by_key.get(finding.key)
            if known is None or finding.rank > known.rank:
                worst_by_key[finding.key] = finding
        ordered = sorted(worst_by_key.values(), key=lambda finding: finding.rank, reverse=True)
        failed = [self._described(finding, golden) for finding in ordered if not finding.passed]
        lines = [mismatch.text for mismatch in failed[:_MAX_LINES]]
        if len(failed) > _MAX_LINES:
            lines.append(f"and {len(failed) - _MAX_LINES} more outputs")
        needed = {key: finding.needed for key, finding in worst_by_key.items()}
        worst = ordered[0]
        return AccuracyResult(
            passed=not failed,
            losses={key: finding.loss for key, finding in worst_by_key.items()},
            worst=failed[0]
            if failed
            else self._described(worst, golden)
            if worst.pair and worst.needed > 0
            else None,
            message="\n".join(lines),
            needed_epsilon=None if isinstance(self.epsilon, Mapping) else max(needed.values()),
            needed_by_output=needed,
        )

    def _described(self, finding: _Finding, golden: Golden) -> TensorMismatch:
        place = describe.place(finding.output, finding.case, self.metric, len(golden.cases))
        if finding.pair is not None:
            return describe.of_tensor(
                place, finding.output, finding.case, self, finding.loss, finding.epsilon, *finding.pair
            )
        text = finding.text or describe.verdict(self.metric_name, finding.loss, finding.epsilon)
        joint = " " if finding.text else ": "
        return TensorMismatch(
            output=finding.output,
            case=finding.case,
            metric=self.metric_name,
            loss=finding.loss,
            epsilon=finding.epsilon,
            index=None,
            actual=None,
            reference=None,
            outside=0,
            elements=0,
            text=f"{place}{joint}{text}",
        )


def _checked_epsilon(value: object, name: str) -> float:
    if isinstance(value, numbers.Real) and not isinstance(value, bool) and 0 <= float(value) < math.inf:
        return float(value)
    raise MetricError(
        f"{name} is {value!r}", mend="write a finite number >= 0, as epsilon=1e-3; 0 asks for equality"
    )


def _unfit(actual: Any, reference: NDArray[Any]) -> str:
    """Why ``actual`` cannot be compared with ``reference``; empty if it can."""
    import numpy as np

    try:
        array = np.asarray(actual)
    except Exception as error:  # an engine may return anything; what it is must not end the comparison
        return f"is not a tensor: {error}"
    kind, wanted = kind_of(array.dtype), kind_of(reference.dtype)
    if kind is None:
        return f"has dtype {array.dtype}, which cannot be compared; the golden has {reference.dtype}"
    if kind != wanted:
        return f"has dtype {array.dtype} ({kind}) instead of {reference.dtype} ({wanted})"
    if array.shape != reference.shape:
        return f"has shape {shape_text(array.shape)} instead of {shape_text(reference.shape)}"
    return ""
