from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pytest_gptune.accuracy import (
    BUILTIN_METRICS,
    AccuracyGate,
    Case,
    Golden,
    Metric,
    MetricError,
    Provenance,
)


def golden_of(*cases: dict[str, Any], allows_nonfinite: bool = False) -> Golden:
    provenance = Provenance("0" * 64, "test", allows_nonfinite=allows_nonfinite)
    return Golden(tuple(Case(f"case{i}", {}, outputs) for i, outputs in enumerate(cases)), provenance)


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


class TestPass:
    def test_within_epsilon(self):
        result = AccuracyGate("lInf", 1e-3).compare(golden_of({"y": f32(1, 2)}), [{"y": f32(1, 2.0005)}])
        assert result.passed
        assert result.message == ""
        assert result.losses == {"y": pytest.approx(5e-4, rel=1e-3)}
        assert result.needed_epsilon == result.losses["y"]
        assert result.worst is not None
        assert result.worst.index == (1,)
        assert "within epsilon" in result.worst.text

    def test_a_loss_of_just_epsilon_passes(self):
        gate = AccuracyGate("lInf", 0.5)
        assert gate.compare(golden_of({"y": f32(1)}), [{"y": f32(1.5)}]).passed
        assert not gate.compare(golden_of({"y": f32(1)}), [{"y": f32(1.5000001)}]).passed

    def test_equal_outputs_have_no_worst(self):
        result = AccuracyGate("cos", 1e-3).compare(golden_of({"y": f32(1)}), [{"y": f32(1)}])
        assert result.worst is None
        assert result.needed_epsilon == 0.0

    @pytest.mark.parametrize("metric", BUILTIN_METRICS)
    @pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
    def test_scalars_and_empty_outputs(self, metric, shape):
        golden = golden_of({"y": np.ones(shape, np.float32)})
        assert AccuracyGate(metric, 0).compare(golden, [{"y": np.ones(shape, np.float32)}]).passed


class TestMessage:
    def test_names_all_that_helps(self):
        reference = np.full((10, 100), 0.999, np.float64)
        actual = reference.copy()
        actual[0, 17] += 0.0322
        actual[3, :11] += 0.002
        result = AccuracyGate("lInf", 1e-3).compare(golden_of({"logits": reference}), [{"logits": actual}])
        assert result.message == (
            "output 'logits' of case 'case0': lInf 3.22e-02 > epsilon 1e-03; worst at [0, 17]: "
            "1.0312 instead of 0.999; 12 of 1000 elements differ by more than 1e-03"
        )
        worst = result.worst
        assert worst is not None
        assert (worst.output, worst.case, worst.index) == ("logits", "case0", (0, 17))
        assert (worst.outside, worst.elements, worst.reference) == (12, 1000, 0.999)

    def test_numbers_are_written_until_they_differ(self):
        message = (
            AccuracyGate("lInf", 1e-3)
            .compare(golden_of({"y": np.array([1.0])}), [{"y": np.array([1.00100001])}])
            .message
        )
        assert "lInf 1.00001e-03 > epsilon 1e-03" in message
        message = (
            AccuracyGate("lInf", 0)
            .compare(golden_of({"y": np.array([1.0])}), [{"y": np.array([1.0 + 2**-52])}])
            .message
        )
        assert "1.0000000000000002 instead of 1;" in message

    def test_nan_says_where(self):
        actual = np.ones((2, 4), np.float16)
        actual[0, 3] = actual[1] = math.nan
        result = AccuracyGate("l0", 0.5).compare(golden_of({"y": np.ones((2, 4))}), [{"y": actual}])
        assert not result.passed
        assert result.losses == {"y": math.inf}
        assert result.needed_epsilon == math.inf
        assert result.message == (
            "output 'y' of case 'case0': NaN at [0, 3] (5 of 8 elements not finite), golden is finite"
        )

    def test_infinity_and_its_sign(self):
        result = AccuracyGate("l1", 1).compare(golden_of({"y": f32(1, 1)}), [{"y": f32(1, -math.inf)}])
        assert ": -Inf at [1] (1 of 2 elements not finite)" in result.message

    def test_l0_names_its_tolerance(self):
        result = AccuracyGate("l0", 0.25, atol=0.1, rtol=0).compare(
            golden_of({"y": f32(1, 2)}), [{"y": f32(1, 3)}]
        )
        assert "l0 5e-01 > epsilon 2.5e-01; worst at [1]: 3 instead of 2" in result.message
        assert "1 of 2 elements differs by more than 1e-01 + 0 * |reference|" in result.message

    def test_l2_counts_by_the_root(self):
        result = AccuracyGate("l2", 0.01).compare(golden_of({"y": f32(0, 0)}), [{"y": f32(0.09, 1)}])
        assert "1 of 2 elements differs by more than 1e-01" in result.message

    def test_integers_and_bools_as_such(self):
        golden = golden_of({"ids": np.array([2**63 - 1, 7]), "mask": np.array(True)})
        result = AccuracyGate("lInf", 0).compare(
            golden, [{"ids": np.array([2**63 - 2, 7]), "mask": np.array(False)}]
        )
        assert "9223372036854775806 instead of 9223372036854775807" in result.message
        assert "worst at []: False instead of True" in result.message

    def test_the_worst_comes_first_and_the_list_ends(self):
        golden = golden_of({f"y{i}": f32(0) for i in range(20)})
        result = AccuracyGate("lInf", 0.5).compare(golden, [{f"y{i}": f32(i) for i in range(20)}])
        lines = result.message.splitlines()
        assert lines[0].startswith("output 'y19'")
        assert lines[-1] == "and 11 more outputs"
        assert len(lines) == 9

    def test_plain_data_only(self):
        golden = golden_of({"y": f32(0, 1), "i": np.array([1], np.int8), "b": np.array([True])})
        outputs = {"y": f32(0, 2), "i": np.array([2], np.int8), "b": np.array([False])}
        result = AccuracyGate("lInf", 0).compare(golden, [outputs])
        json.dumps(asdict(result))

        def types(value: Any) -> set[type]:
            if isinstance(value, dict):
                return set().union(*(types(part) for part in value.values()))
            if isinstance(value, tuple):
                return set().union(*(types(part) for part in value))
            return {type(value)}

        assert types(asdict(result)) <= {bool, int, float, str, type(None)}


class TestFaultsOfTheReference:
    @pytest.mark.parametrize("metric", BUILTIN_METRICS)
    def test_1_nan_does_not_pass(self, metric):
        result = AccuracyGate(metric, 1e30).compare(golden_of({"y": f32(1, 2)}), [{"y": f32(math.nan, 2)}])
        assert not result.passed
        assert result.losses["y"] == math.inf

    @pytest.mark.parametrize(
        "dtype", [ml_dtypes.bfloat16, np.int64, np.bool_, np.uint8, ml_dtypes.float8_e4m3fn]
    )
    def test_2_no_dtype_is_skipped(self, dtype):
        golden = golden_of({"y": np.array([0, 1], dtype)})
        assert not AccuracyGate("lInf", 0.5).compare(golden, [{"y": np.array([1, 1], dtype)}]).passed
        assert AccuracyGate("lInf", 0.5).compare(golden, [{"y": np.array([0, 1], dtype)}]).passed

    def test_2_a_renamed_output_is_not_skipped(self):
        result = AccuracyGate("lInf", 1e-3).compare(golden_of({"logits": f32(1)}), [{"logit": f32(1)}])
        assert not result.passed
        assert result.losses == {"logits": math.inf, "logit": math.inf}
        assert "'logits' of case 'case0' is missing; the engine gives 'logit'" in result.message
        assert "'logit' of case 'case0' is not in the golden, nearest is 'logits'" in result.message

    def test_3_an_exact_match_can_be_asked_for(self):
        gate, golden = AccuracyGate("lInf", 0), golden_of({"y": f32(1, 2)})
        assert gate.compare(golden, [{"y": f32(1, 2)}]).passed
        assert not gate.compare(golden, [{"y": np.nextafter(f32(1, 2), f32(3, 3))}]).passed

    def test_4_twice_the_size_fails(self):
        result = AccuracyGate("lInf", 1).compare(golden_of({"y": np.zeros(8)}), [{"y": np.zeros(4)}])
        assert not result.passed
        assert result.message == "output 'y' of case 'case0' has shape [4] instead of [8]"

    def test_5_two_zero_vectors_pass_cos(self):
        assert AccuracyGate("cos", 0).compare(golden_of({"y": f32(0, 0)}), [{"y": f32(0, 0)}]).passed

    def test_6_the_worst_case_is_recorded_not_the_last(self):
        golden = golden_of(*({"y": f32(0)} for _ in range(3)))
        result = AccuracyGate("lInf", 0.5).compare(golden, [{"y": f32(v)} for v in (0.1, 3, 0.2)])
        assert not result.passed
        assert result.losses == {"y": 3.0}
        assert result.worst is not None
        assert result.worst.case == "case1"
        assert len(result.message.splitlines()) == 1


class TestStructure:
    @pytest.mark.parametrize(
        ("reference", "actual", "text"),
        [
            (np.float32, np.int32, "has dtype int32 (int) instead of float32 (float)"),
            (np.int32, np.float32, "has dtype float32 (float) instead of int32 (int)"),
            (np.int32, np.uint32, "has dtype uint32 (uint) instead of int32 (int)"),
            (np.bool_, np.uint8, "has dtype uint8 (uint) instead of bool (bool)"),
            (np.float32, np.complex64, "has dtype complex64, which cannot be compared"),
            (np.float32, object, "has dtype object, which cannot be compared"),
            (np.float32, "U1", "has dtype <U1, which cannot be compared"),
            (np.float32, np.bool_, "has dtype bool (bool) instead of float32 (float)"),
        ],
    )
    def test_another_kind_fails(self, reference, actual, text):
        result = AccuracyGate("lInf", 10).compare(
            golden_of({"y": np.zeros(2, reference)}), [{"y": np.zeros(2, actual)}]
        )
        assert not result.passed
        assert result.losses == {"y": math.inf}
        assert result.needed_by_output == {"y": math.inf}
        assert text in result.message

    @pytest.mark.parametrize(
        ("reference", "actual"),
        [
            (np.float32, np.float16),
            (np.float64, np.float32),
            (np.float32, ml_dtypes.bfloat16),
            (np.float32, ml_dtypes.float8_e5m2),
            (np.int64, np.int32),
            (np.uint8, np.uint64),
            (np.int8, ml_dtypes.int4),
        ],
    )
    def test_another_width_is_compared(self, reference, actual):
        golden = golden_of({"y": np.array([1, 2], reference)})
        assert AccuracyGate("lInf", 0).compare(golden, [{"y": np.array([1, 2], actual)}]).passed
        assert not AccuracyGate("lInf", 0).compare(golden, [{"y": np.array([1, 3], actual)}]).passed

    @pytest.mark.parametrize("value", [None, [[1], [2, 3]], "text", {}, object()])
    def test_no_tensor(self, value):
        result = AccuracyGate("lInf", 1).compare(golden_of({"y": f32(1)}), [{"y": value}])
        assert not result.passed
        assert "output 'y' of case 'case0'" in result.message

    def test_no_mapping(self):
        result = AccuracyGate("lInf", 1).compare(golden_of({"y": f32(1)}), [None])  # type: ignore[list-item]
        assert not result.passed
        assert "gives a NoneType" in result.message

    def test_extra_output(self):
        result = AccuracyGate("lInf", 1).compare(golden_of({"y": f32(1)}), [{"y": f32(1), "z": f32(1)}])
        assert not result.passed
        assert result.losses == {"y": 0.0, "z": math.inf}
        assert result.needed_epsilon == math.inf

    def test_fewer_cases_are_no_pass(self):
        golden = golden_of({"y": f32(1)}, {"y": f32(1)})
        result = AccuracyGate("lInf", 1).compare(golden, [{"y": f32(1)}])
        assert not result.passed
        assert result.message == (
            "output 'y' of case 'case1' was not computed; outputs of 1 of 2 cases were given"
        )
        assert not AccuracyGate("lInf", 1).compare(golden, []).passed

    def test_more_cases_are_no_pass(self):
        result = AccuracyGate("lInf", 1).compare(golden_of({"y": f32(1)}), [{"y": f32(1)}] * 2)
        assert not result.passed
        assert "outputs of 2 cases were given, the golden has 1" in result.message

    def test_what_can_be_compared_is_told_beside_what_cannot(self):
        golden = golden_of({"a": f32(1), "b": f32(1)})
        result = AccuracyGate("lInf", 0.1).compare(golden, [{"b": f32(3)}])
        assert result.losses == {"a": math.inf, "b": 2.0}
        assert len(result.message.splitlines()) == 2


class TestEpsilon:
    def test_per_output(self):
        golden = golden_of({"logits": f32(1, 2), "ids": np.array([3])})
        gate = AccuracyGate("lInf", {"logits": 0.5, "ids": 0})
        assert gate.compare(golden, [{"logits": f32(1.4, 2), "ids": np.array([3])}]).passed
        result = gate.compare(golden, [{"logits": f32(1.4, 2), "ids": np.array([4])}])
        assert not result.passed
        assert result.needed_epsilon is None
        assert result.needed_by_output == {"logits": pytest.approx(0.4), "ids": 1.0}
        assert result.worst is not None
        assert result.worst.output == "ids"

    def test_must_name_every_output_and_no_other(self):
        golden = golden_of({"logits": f32(1), "ids": np.array([3])})
        with pytest.raises(MetricError) as info:
            AccuracyGate("lInf", {"logit": 1e-3}).compare(golden, [{}])
        text = str(info.value)
        assert "output 'logits' has no epsilon" in text
        assert "output 'ids' has no epsilon" in text
        assert "there is no output 'logit', nearest is 'logits'" in text

    @pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, "1e-3", None, True, [1]])
    def test_no_number(self, value: Any):
        with pytest.raises(MetricError, match="epsilon is"):
            AccuracyGate("lInf", value)
        with pytest.raises(MetricError, match="epsilon of output 'y' is"):
            AccuracyGate("lInf", {"y": value})

    def test_needed_is_the_greatest_over_outputs_and_cases(self):
        golden = golden_of({"a": f32(0), "b": f32(0)}, {"a": f32(0), "b": f32(0)})
        outputs = [{"a": f32(0.25), "b": f32(1)}, {"a": f32(2), "b": f32(0.5)}]
        result = AccuracyGate("lInf", 0.125).compare(golden, outputs)
        assert result.needed_epsilon == 2.0
        assert result.needed_by_output == {"a": 2.0, "b": 1.0}
        assert AccuracyGate("lInf", 2.0).compare(golden, outputs).passed
        assert not AccuracyGate("lInf", math.nextafter(2.0, 0)).compare(golden, outputs).passed

    def test_gate_checks_its_metric_and_tolerances(self):
        with pytest.raises(MetricError, match="nearest is 'lInf'"):
            AccuracyGate("Linf", 1)
        with pytest.raises(MetricError, match="rtol is -1"):
            AccuracyGate("l0", 1, rtol=-1)


class TestEpsilonZero:
    @pytest.mark.parametrize("metric", BUILTIN_METRICS)
    @pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.int64, ml_dtypes.int4])
    def test_integers_to_the_bit(self, metric, dtype):
        # under cos both have one direction, and 7 and 6 are within these tolerances
        golden = golden_of({"y": np.array([3], dtype)})
        gate = AccuracyGate(metric, 0, atol=10, rtol=10)
        assert gate.compare(golden, [{"y": np.array([3], dtype)}]).passed
        result = gate.compare(golden, [{"y": np.array([6], dtype)}])
        assert not result.passed
        assert result.needed_epsilon is not None
        assert AccuracyGate(metric, result.needed_epsilon, 10, 10).compare(
            golden, [{"y": np.array([6], dtype)}]
        )

    @pytest.mark.parametrize("metric", BUILTIN_METRICS)
    def test_bool(self, metric):
        golden = golden_of({"y": np.array([True, True])})
        assert not AccuracyGate(metric, 0, atol=5).compare(golden, [{"y": np.array([True, False])}]).passed

    def test_floats_under_cos(self):
        golden = golden_of({"y": f32(1, 2)})
        result = AccuracyGate("cos", 0).compare(golden, [{"y": f32(2, 4)}])
        assert not result.passed
        assert "cos 0, but epsilon 0 asks for equality; worst at [1]: 4 instead of 2" in result.message
        assert AccuracyGate("cos", result.needed_epsilon or 0).compare(golden, [{"y": f32(2, 4)}]).passed

    def test_l2_that_underflows(self):
        golden = golden_of({"y": np.array([0.0])})
        assert not AccuracyGate("l2", 0).compare(golden, [{"y": np.array([1e-200])}]).passed

    def test_l0_of_floats_within_tolerance(self):
        golden = golden_of({"y": f32(1)})
        assert AccuracyGate("l0", 0, atol=0.1).compare(golden, [{"y": f32(1.05)}]).passed
        assert not AccuracyGate("l0", 0, atol=0.01).compare(golden, [{"y": f32(1.05)}]).passed

    def test_signed_zeros_are_equal(self):
        assert AccuracyGate("lInf", 0).compare(golden_of({"y": f32(0.0)}), [{"y": f32(-0.0)}]).passed


class TestNonfiniteGolden:
    golden = golden_of({"y": f32(math.nan, math.inf, -math.inf, 1)}, allows_nonfinite=True)

    @pytest.mark.parametrize("metric", BUILTIN_METRICS)
    def test_the_same_passes(self, metric):
        outputs = [{"y": f32(math.nan, math.inf, -math.inf, 1)}]
        assert AccuracyGate(metric, 0).compare(self.golden, outputs).passed

    def test_finite_there_fails(self):
        result = AccuracyGate("lInf", 1).compare(self.golden, [{"y": f32(2.5, math.inf, math.inf, 1)}])
        assert not result.passed
        assert "2.5 at [0] where the golden has NaN (2 of 4 elements" in result.message

    def test_the_worst_is_sought_among_the_finite(self):
        result = AccuracyGate("l0", 0).compare(self.golden, [{"y": f32(math.nan, math.inf, -math.inf, 2)}])
        assert result.worst is not None
        assert result.worst.index == (3,)
        assert result.worst.outside == 1


class TestOwnMetric:
    def test_scope_tensor(self):
        seen = []

        def signs(actual, reference):
            seen.append((actual.dtype, reference.dtype))
            return float(np.mean(np.sign(actual) != np.sign(reference)))

        golden = golden_of({"a": f32(1, -1), "b": f32(1, 1)})
        outputs = {"a": np.array([1, 1], np.float16), "b": f32(9, 9)}
        result = AccuracyGate(Metric("signs", signs), 0).compare(golden, [outputs])
        assert result.losses == {"a": 0.5, "b": 0.0}
        assert "output 'a' of case 'case0': signs 5e-01 > epsilon 0" in result.message
        assert seen == [(np.float16, np.float32), (np.float32, np.float32)]

    def test_scope_case(self):
        metric = Metric("sum", lambda a, r: abs(sum(v.sum() for v in a.values()) - r["x"].sum()), "case")
        golden = golden_of({"x": f32(1)}, {"x": f32(1)})
        result = AccuracyGate(metric, 0.5).compare(golden, [{"x": f32(1)}, {"x": f32(3)}])
        assert result.losses == {"sum": 2.0}
        assert result.message == "metric 'sum' of case 'case1': sum 2e+00 > epsilon 5e-01"

    def test_scope_dataset(self):
        def top1(actual, reference):
            hits = [a["y"].argmax() == r["y"].argmax() for a, r in zip(actual, reference, strict=True)]
            return 1 - sum(hits) / len(hits)

        golden = golden_of(*({"y": f32(0, 1)} for _ in range(4)))
        outputs = [{"y": f32(0, 2)}] * 3 + [{"y": f32(2, 0)}]
        gate = AccuracyGate(Metric("top1", top1, "dataset"), 0.1)
        result = gate.compare(golden, outputs)
        assert result.message == "metric 'top1' over 4 cases: top1 2.5e-01 > epsilon 1e-01"
        assert result.needed_epsilon == 0.25
        assert AccuracyGate(gate.metric, 0.25).compare(golden, outputs).passed

    @pytest.mark.parametrize("scope", ["tensor", "case", "dataset"])
    def test_nan_never_reaches_it(self, scope):
        metric = Metric("blind", lambda a, r: 0.0, scope)
        result = AccuracyGate(metric, 1).compare(golden_of({"y": f32(1)}), [{"y": f32(math.nan)}])
        assert not result.passed
        assert set(result.losses.values()) == {math.inf}
        assert "output 'y' of case 'case0': NaN at [0]" in result.message

    @pytest.mark.parametrize("scope", ["tensor", "case", "dataset"])
    def test_missing_outputs_never_reach_it(self, scope):
        metric = Metric("blind", lambda a, r: 0.0, scope)
        result = AccuracyGate(metric, 1).compare(golden_of({"y": f32(1), "z": f32(1)}), [{"z": f32(1)}])
        assert not result.passed
        assert math.inf in result.losses.values()

    def test_its_failure_is_told(self):
        metric = Metric("broken", lambda a, r: 1 / 0)
        with pytest.raises(MetricError, match="metric 'broken' raised ZeroDivisionError"):
            AccuracyGate(metric, 1).compare(golden_of({"y": f32(1)}), [{"y": f32(1)}])

    def test_epsilon_per_output_needs_a_loss_per_output(self):
        with pytest.raises(MetricError, match="one loss for all outputs"):
            AccuracyGate(Metric("m", max, "dataset"), {"y": 1.0})


@given(
    hnp.arrays(np.float32, (2, 3), elements=st.floats(width=32)),
    hnp.arrays(np.float32, 3, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
    st.sampled_from(BUILTIN_METRICS),
    st.floats(0, 10),
)
def test_needed_epsilon_is_what_is_needed(actual, reference, metric, epsilon):
    golden = golden_of({"y": reference}, {"y": reference})
    outputs = [{"y": part} for part in actual]
    result = AccuracyGate(metric, epsilon).compare(golden, outputs)
    needed = result.needed_epsilon
    assert needed is not None
    assert result.passed == (needed <= epsilon) == (result.message == "")
    if needed < math.inf:
        assert AccuracyGate(metric, needed).compare(golden, outputs).passed
        if needed > 0:
            assert not AccuracyGate(metric, math.nextafter(needed, 0)).compare(golden, outputs).passed
