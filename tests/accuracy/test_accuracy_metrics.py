from __future__ import annotations

import math
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pytest_gptune.accuracy import BUILTIN_METRICS, Metric, MetricError, find_metric, loss

INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
NARROW_INTEGERS = [ml_dtypes.int4, ml_dtypes.uint4]
FLOATS = [
    np.float16,
    np.float32,
    np.float64,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e4m3fnuz,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e5m2fnuz,
]
NARROW_FLOATS = [ml_dtypes.float8_e8m0fnu, ml_dtypes.float4_e2m1fn]
every_metric = pytest.mark.parametrize("metric", BUILTIN_METRICS)


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


class TestValues:
    @pytest.mark.parametrize(
        ("metric", "expected"), [("l0", 0.5), ("l1", 0.75), ("l2", 1.25), ("lInf", 2.0), ("cos", 0.2)]
    )
    def test_a_case_done_by_hand(self, metric, expected):
        # differences 0, -1, 0, 2
        actual, reference = [4.0, 0.0, 0.0, 3.0], [4.0, 1.0, 0.0, 1.0]
        if metric == "cos":
            expected = 1 - 19 / (5 * math.sqrt(18))
        assert loss(metric, actual, reference) == pytest.approx(expected)

    def test_l0_takes_both_tolerances_at_their_edge(self):
        reference = np.array([100.0, 100.0, 0.0, 0.0])
        actual = reference + np.array([1.5, 1.6, 0.5, 0.6])
        assert loss("l0", actual, reference, atol=0.5, rtol=0.01) == 0.5

    def test_l0_measures_the_tolerance_on_the_reference(self):
        assert loss("l0", [2.0], [1.0], atol=0.0, rtol=0.5) == 1.0
        assert loss("l0", [1.0], [2.0], atol=0.0, rtol=0.5) == 0.0

    @every_metric
    @pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
    def test_empty_tensors_are_equal(self, metric, shape):
        assert loss(metric, np.zeros(shape), np.zeros(shape)) == 0.0

    @pytest.mark.parametrize(
        ("metric", "expected"), [("l0", 1), ("l1", 4), ("l2", 16), ("lInf", 4), ("cos", 2)]
    )
    def test_scalars(self, metric, expected):
        assert loss(metric, np.float32(3), np.array(-1.0)) == pytest.approx(expected)

    @pytest.mark.parametrize("dtype", INTEGERS + FLOATS + NARROW_INTEGERS + NARROW_FLOATS)
    @every_metric
    def test_every_dtype_is_looked_at(self, metric, dtype):
        reference = np.array([1, 2, 4], dtype=dtype)
        actual = np.array([1, 4, 4], dtype=dtype)
        assert loss(metric, reference, reference) == 0.0
        expected = {"l0": 1 / 3, "l1": 2 / 3, "l2": 4 / 3, "lInf": 2.0, "cos": 1 - 25 / math.sqrt(33 * 21)}
        assert loss(metric, actual, reference) == pytest.approx(expected[metric])

    @every_metric
    def test_bool(self, metric):
        assert loss(metric, np.array([True, False]), np.array([True, True])) > 0
        assert loss(metric, np.array([True, False]), np.array([True, False])) == 0

    def test_big_endian_and_strided(self):
        reference = np.arange(12, dtype=">f4").reshape(3, 4)
        assert loss("lInf", reference.astype("<f4").T.T, reference) == 0
        assert loss("lInf", reference[:, ::2], reference[:, 1::2]) == 1


class TestExactIntegers:
    @pytest.mark.parametrize(
        ("dtype", "high", "low", "expected"),
        [
            (np.uint64, 2**63, 2**63 - 1, 1.0),
            (np.uint64, 2**64 - 1, 2**64 - 2, 1.0),
            (np.int64, 2**63 - 1, 2**63 - 2, 1.0),
            (np.int64, 2**63 - 1, -(2**63), float(2**64)),
            (np.int64, -(2**63), -(2**63) + 1, 1.0),
            (np.uint64, 2**64 - 1, 0, float(2**64)),
            (np.int8, 127, -128, 255.0),
            (np.uint8, 255, 0, 255.0),
        ],
    )
    def test_difference(self, dtype, high, low, expected):
        first, second = np.array([high], dtype), np.array([low], dtype)
        assert loss("lInf", first, second) == expected
        assert loss("l1", second, first) == expected
        assert loss("l0", first, second, atol=0, rtol=0) == 1.0

    def test_signed_beside_unsigned(self):
        assert loss("lInf", np.array([-1]), np.array([2**64 - 1], np.uint64)) == float(2**64)
        assert loss("lInf", np.array([2**63 - 1]), np.array([2**63], np.uint64)) == 1.0
        assert loss("lInf", np.array([5]), np.array([5], np.uint64)) == 0.0


class TestNotFinite:
    @every_metric
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_beside_a_finite_reference_is_infinite(self, metric, bad):
        """Fault 1 of the reference: NaN scored a perfect 0."""
        assert loss(metric, [1.0, bad], [1.0, 2.0]) == math.inf
        assert loss(metric, [bad, bad], [0.0, 0.0]) == math.inf

    @every_metric
    @pytest.mark.parametrize("dtype", [t for t in FLOATS if np.isnan(np.array(math.nan, t).astype(float))])
    def test_nan_of_every_width(self, metric, dtype):
        assert loss(metric, np.array([math.nan, 1], dtype), np.array([1, 1], dtype)) == math.inf

    @every_metric
    @pytest.mark.parametrize("reference", [math.nan, math.inf, -math.inf])
    def test_a_reference_that_is_not_finite_wants_the_same(self, metric, reference):
        for actual in (math.nan, math.inf, -math.inf, 0.0, 1e308):
            same = actual == reference or (math.isnan(actual) and math.isnan(reference))
            expected = 0.0 if same else math.inf
            assert loss(metric, [1.0, actual], [1.0, reference]) == expected

    def test_such_places_are_left_out(self):
        actual, reference = [math.nan, 1.0, 3.0], [math.nan, 1.0, 1.0]
        assert loss("l1", actual, reference) == 1.0
        assert loss("l0", actual, reference) == 0.5
        assert loss("cos", [math.inf, 1.0, 0.0], [math.inf, 0.0, 1.0]) == pytest.approx(1.0)

    def test_overflow_of_float64_is_infinity_without_a_warning(self):
        assert loss("l2", [1e300], [-1e300]) == math.inf
        assert loss("lInf", [1.7e308], [-1.7e308]) == math.inf
        assert loss("l0", [1.7e308], [-1.7e308], rtol=1e300) == 1.0
        assert loss("cos", [1.7e308, 1e-320], [-1.7e308, 1e-320]) == pytest.approx(2.0)


class TestCosine:
    def test_two_zero_vectors_are_equal(self):
        """Fault 5 of the reference: it gave 1."""
        assert loss("cos", np.zeros(4), np.zeros(4)) == 0.0

    def test_one_zero_vector(self):
        assert loss("cos", np.zeros(4), np.ones(4)) == 1.0
        assert loss("cos", np.ones(4), np.zeros(4)) == 1.0

    def test_direction(self):
        assert loss("cos", [1.0, 0.0], [0.0, 1.0]) == pytest.approx(1.0)
        assert loss("cos", [1.0, 2.0], [-1.0, -2.0]) == pytest.approx(2.0)
        assert loss("cos", [2.0, 4.0], [1.0, 2.0]) == 0.0

    def test_no_cancellation(self):
        # 1 - cosine is 5e-21 here, far below what subtracting from 1 could resolve
        assert loss("cos", [1.0, 1e-10], [1.0, 0.0]) == pytest.approx(5e-21, rel=1e-6)

    def test_subnormal_vectors(self):
        assert loss("cos", [5e-324, 0.0], [5e-324, 0.0]) == 0.0
        assert loss("cos", [5e-324, 0.0], [0.0, 1e308]) == pytest.approx(1.0)


class TestErrors:
    def test_twice_the_size_is_refused(self):
        """Fault 4 of the reference: half of it was compared."""
        with pytest.raises(MetricError, match=r"actual \[4\], reference \[8\]"):
            loss("lInf", np.zeros(4), np.zeros(8))

    @pytest.mark.parametrize(("actual", "reference"), [((1,), ()), ((2, 3), (3, 2)), ((1, 3), (3,))])
    def test_nothing_is_broadcast(self, actual, reference):
        with pytest.raises(MetricError, match="shapes differ"):
            loss("l1", np.zeros(actual), np.zeros(reference))

    @pytest.mark.parametrize(
        "array",
        [
            np.zeros(2, complex),
            np.array(["a", "b"]),
            np.array([b"a", b"b"]),
            np.array([None, 1], object),
            np.zeros(2, "datetime64[s]"),
            np.zeros(2, [("x", "f4")]),
            np.zeros(2, "V2"),
            np.zeros(2, np.longdouble),
        ],
        ids=lambda array: str(array.dtype),
    )
    def test_unsupported_dtype_is_named(self, array):
        """Fault 2 of the reference: what it could not compare it skipped."""
        if array.dtype == np.float64:
            pytest.skip("longdouble is float64 here")
        with pytest.raises(MetricError) as info:
            loss("lInf", array, array)
        assert str(array.dtype) in str(info.value)

    def test_ragged_lists(self):
        with pytest.raises(MetricError, match="actual"):
            loss("lInf", [[1, 2], [3]], [1, 2])

    @pytest.mark.parametrize(
        ("name", "nearest"), [("linf", "lInf"), ("L1", "l1"), ("cosine", "cos"), ("l3", "l")]
    )
    def test_unknown_metric_names_the_nearest(self, name, nearest):
        with pytest.raises(MetricError, match=f"unknown metric '{name}', nearest is '{nearest}"):
            loss(name, [1], [1])

    @pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, "1", None, True])
    def test_bad_tolerance(self, value: Any):
        with pytest.raises(MetricError, match="atol is"):
            loss("l0", [1], [1], atol=value)
        with pytest.raises(MetricError, match="rtol is"):
            loss("lInf", [1], [1], rtol=value)


class TestOwnMetric:
    def test_found_by_name(self):
        own = Metric("top1", lambda a, r: 0.0, "dataset")
        assert find_metric("top1", {"top1": own}) is own
        assert find_metric("cos", {"top1": own}) == "cos"
        assert find_metric(own, {}) is own
        with pytest.raises(MetricError, match="nearest is 'top1'"):
            find_metric("top", {"top1": own})

    def test_nan_is_infinity(self):
        assert Metric("m", lambda a, r: math.nan).measure(None, None) == math.inf
        assert Metric("m", lambda a, r: np.float32(math.nan)).measure(None, None) == math.inf

    @pytest.mark.parametrize("value", [1, 0.5, np.float32(0.5), np.array(0.5), np.int8(1), math.inf])
    def test_numbers(self, value):
        result = Metric("m", lambda a, r: value).measure(None, None)
        assert type(result) is float
        assert result == float(value)

    @pytest.mark.parametrize("value", ["1", None, True, np.bool_(True), np.ones(2), 1j])
    def test_no_number(self, value):
        with pytest.raises(MetricError, match="not a number"):
            Metric("m", lambda a, r: value).measure(None, None)

    def test_negative(self):
        with pytest.raises(MetricError, match="negative"):
            Metric("accuracy", lambda a, r: -0.9).measure(None, None)

    def test_raises(self):
        def broken(actual, reference):
            raise KeyError("boxes")

        with pytest.raises(MetricError, match="metric 'map' raised KeyError: 'boxes'") as info:
            Metric("map", broken).measure(None, None)
        assert "test_accuracy_metrics.py" in info.value.where

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (("l0", max), "as a built-in"),
            (("", max), "not a text"),
            (("m", max, "cases"), "nearest is 'case'"),
            (("m", 1), "cannot be called"),
        ],
    )
    def test_made_wrongly(self, arguments: Any, text):
        with pytest.raises(MetricError, match=text):
            Metric(*arguments)


ANY_DTYPE = st.sampled_from([np.dtype(t) for t in [*INTEGERS, *FLOATS, *NARROW_INTEGERS, np.bool_]])


@st.composite
def pairs(draw, dtypes=ANY_DTYPE, *, finite=False):
    dtype = draw(dtypes)
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))

    def array():
        if dtype.kind in "iub":
            return draw(hnp.arrays(dtype, shape))
        wide = np.float64 if dtype.kind == "f" else np.float32
        limits = {"allow_nan": not finite, "allow_infinity": not finite}
        values = draw(hnp.arrays(wide, shape, elements=limits))
        with np.errstate(all="ignore"):
            if dtype.name in ("int4", "uint4"):
                values = np.nan_to_num(values) % 8
            made = values.astype(dtype)
            if finite:
                made = np.where(np.isfinite(made.astype(np.float64)), made, np.ones(shape, dtype))
            return np.asarray(made, dtype)

    return array(), array()


@given(pairs(), st.sampled_from(BUILTIN_METRICS))
def test_never_nan_never_negative(pair, metric):
    value = loss(metric, *pair)
    assert isinstance(value, float)
    assert value >= 0
    if metric == "cos":
        assert value <= 2 or value == math.inf
    if metric == "l0":
        assert value <= 1 or value == math.inf


@given(pairs(), st.sampled_from(BUILTIN_METRICS))
def test_a_tensor_equals_itself(pair, metric):
    assert loss(metric, pair[0], pair[0].copy()) == 0.0


@given(pairs(), st.sampled_from(["l1", "l2", "lInf", "cos"]))
def test_symmetric(pair, metric):
    actual, reference = pair
    assert loss(metric, actual, reference) == loss(metric, reference, actual)


@given(pairs(), st.sampled_from(BUILTIN_METRICS), st.randoms(use_true_random=False))
def test_order_of_elements_does_not_matter(pair, metric, random):
    actual, reference = pair[0].ravel(), pair[1].ravel()
    order = list(range(actual.size))
    random.shuffle(order)
    first = loss(metric, actual, reference)
    second = loss(metric, actual[order], reference[order])
    assert second == first or second == pytest.approx(first, rel=1e-9, abs=1e-300)


SMALL = {"min_value": -1e6, "max_value": 1e6, "allow_subnormal": False, "width": 32}


@given(
    hnp.arrays(np.float64, (2, 5), elements=st.floats(**SMALL)),
    st.sampled_from([-4.0, 0.5, 2.0, 1024.0]),
)
def test_scaling_by_a_power_of_two(both, factor):
    actual, reference = both
    for metric, power in (("l1", 1), ("lInf", 1), ("l2", 2), ("cos", 0)):
        scaled = loss(metric, actual * factor, reference * factor)
        assert scaled == pytest.approx(loss(metric, actual, reference) * abs(factor) ** power, rel=1e-12)


@given(pairs(), st.floats(0, 1e3), st.floats(0, 1e3))
def test_l0_falls_with_the_tolerance(pair, atol, rtol):
    assert loss("l0", *pair, atol=atol, rtol=rtol) <= loss("l0", *pair, atol=0, rtol=0)


@given(pairs(st.sampled_from([np.dtype(np.int64), np.dtype(np.uint64)])))
def test_integers_agree_with_pythons(pair):
    actual, reference = pair
    if actual.size:
        exact = max(abs(int(a) - int(r)) for a, r in zip(actual.flat, reference.flat, strict=True))
        assert loss("lInf", actual, reference) == float(exact)
