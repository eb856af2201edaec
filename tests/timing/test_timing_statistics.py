"""Statistics as properties, and intervals held to their nominal rate on simulated machines."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gptune.timing.statistics import (
    MAX_KEPT_SAMPLES,
    decimate,
    mean_interval,
    paired_ratio,
    quantile,
    relative_spread,
    statistic_for,
    summarise,
    t_quantile,
)

LATENCIES = st.floats(1e-8, 1e3)
SERIES = st.lists(LATENCIES, min_size=1, max_size=60)
SHARES = st.floats(0, 1)
PAIRS = st.lists(st.tuples(LATENCIES, LATENCIES), min_size=1, max_size=20)


def close(first: float, second: float, tolerance: float = 1e-9) -> bool:
    return first == second or math.isclose(first, second, rel_tol=tolerance)


# Order statistics.


@given(SERIES, SHARES)
def test_a_quantile_lies_within_the_samples(samples: list[float], share: float) -> None:
    value = quantile(sorted(samples), share)
    assert min(samples) <= value <= max(samples) or close(value, min(samples)) or close(value, max(samples))


@given(SERIES, SHARES, SHARES)
def test_quantiles_are_monotone(samples: list[float], one: float, other: float) -> None:
    ordered = sorted(samples)
    low, high = quantile(ordered, min(one, other)), quantile(ordered, max(one, other))
    assert low <= high or close(low, high)


@given(SERIES)
def test_the_ends_are_the_smallest_and_the_largest(samples: list[float]) -> None:
    ordered = sorted(samples)
    assert quantile(ordered, 0) == ordered[0]
    assert quantile(ordered, 1) == ordered[-1]


@given(SERIES, SHARES)
def test_quantiles_are_numpys(samples: list[float], share: float) -> None:
    assert close(quantile(sorted(samples), share), float(np.quantile(samples, share)))


@given(SERIES)
def test_the_median_is_the_standard_librarys(samples: list[float]) -> None:
    assert close(quantile(sorted(samples), 0.5), statistics.median(samples))


def test_no_samples_have_no_quantile() -> None:
    with pytest.raises(ValueError, match="no samples"):
        quantile([], 0.5)


@given(SERIES, st.randoms(use_true_random=False))
def test_a_summary_does_not_depend_on_the_order(samples: list[float], rng: random.Random) -> None:
    shuffled = list(samples)
    rng.shuffle(shuffled)
    assert summarise(shuffled) == summarise(samples)


@given(SERIES, st.floats(1e-3, 1e3))
def test_a_summary_scales_with_its_samples(samples: list[float], scale: float) -> None:
    plain, scaled = summarise(samples), summarise([scale * sample for sample in samples])
    for name in ("min", "p25", "median", "mean", "p90", "p95", "p99"):
        assert close(getattr(scaled, name), scale * getattr(plain, name))


@given(SERIES)
def test_a_summary_is_in_order(samples: list[float]) -> None:
    summary = summarise(samples)
    ordered = [summary.min, summary.p25, summary.median, summary.p90, summary.p95, summary.p99, max(samples)]
    assert all(a <= b or close(a, b) for a, b in itertools.pairwise(ordered))
    assert summary.min <= summary.mean * (1 + 1e-12)
    assert summary.samples == len(samples)


def test_the_statistic_of_each_clock() -> None:
    assert statistic_for("host_wall") == "p25"
    assert statistic_for("device_queued") == statistic_for("device_waited") == "median"


# Decimation.


@given(st.integers(1, 400), st.integers(1, 50))
def test_decimation_keeps_order_and_at_most(count: int, at_most: int) -> None:
    kept = decimate(range(count), at_most)
    assert len(kept) == min(count, at_most)
    assert list(kept) == sorted(set(kept))
    assert kept[0] == 0
    if at_most > 1 or count == 1:
        assert kept[-1] == count - 1


@given(st.integers(2, 400), st.integers(2, 50))
def test_decimation_is_even(count: int, at_most: int) -> None:
    kept = decimate(range(count), at_most)
    steps = [b - a for a, b in itertools.pairwise(kept)]
    assert max(steps) - min(steps) <= 1


def test_decimation_by_default() -> None:
    assert MAX_KEPT_SAMPLES == 1000
    assert len(decimate(range(123_457))) == 1000
    assert decimate(range(1000)) == tuple(range(1000))
    assert decimate(()) == ()


# Student's distribution.


@pytest.mark.parametrize(
    ("share", "freedom", "value"),
    [
        (0.5, 1, 0.0),
        (0.75, 1, 1.0),
        (0.9, 5, 1.475884),
        (0.95, 1, 6.313752),
        (0.975, 1, 12.706205),
        (0.975, 2, 4.302653),
        (0.975, 3, 3.182446),
        (0.975, 4, 2.776445),
        (0.975, 5, 2.570582),
        (0.975, 7, 2.364624),
        (0.975, 10, 2.228139),
        (0.975, 11, 2.200985),
        (0.975, 30, 2.042272),
        (0.975, 120, 1.979930),
        (0.99, 8, 2.896459),
        (0.995, 1, 63.656741),
        (0.995, 3, 5.840909),
        (0.9995, 2, 31.599055),
    ],
)
def test_quantiles_of_students_distribution(share: float, freedom: int, value: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(value, abs=2e-6)


def test_with_much_freedom_it_is_the_normal_distribution() -> None:
    assert t_quantile(0.975, 20_001) == pytest.approx(statistics.NormalDist().inv_cdf(0.975), abs=2e-4)


@given(st.floats(0.5, 0.9999), st.floats(0.5, 0.9999), st.integers(1, 60))
def test_students_quantiles_are_monotone(one: float, other: float, freedom: int) -> None:
    assert t_quantile(min(one, other), freedom) <= t_quantile(max(one, other), freedom)
    assert t_quantile(one, freedom + 1) <= t_quantile(one, freedom) + 1e-9


# Intervals.


def test_an_interval_by_hand() -> None:
    low, high = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.776445 * math.sqrt(2.5) / math.sqrt(5)
    assert (low, high) == (pytest.approx(3 - half, abs=1e-5), pytest.approx(3 + half, abs=1e-5))


@pytest.mark.parametrize("values", [[], [1.0]])
def test_a_single_value_has_no_interval(values: list[float]) -> None:
    assert mean_interval(values) == (-math.inf, math.inf)
    assert relative_spread(values) is None


@given(SERIES, st.floats(1e-3, 1e3))
def test_intervals_scale_and_do_not_depend_on_the_order(values: list[float], scale: float) -> None:
    low, high = mean_interval(values)
    assert mean_interval(values[::-1]) == (pytest.approx(low), pytest.approx(high))
    scaled = mean_interval([scale * value for value in values])
    assert scaled == (
        pytest.approx(scale * low, rel=1e-9, abs=1e-9),
        pytest.approx(scale * high, rel=1e-9, abs=1e-9),
    )
    if (spread := relative_spread(values)) is not None:
        again = relative_spread([scale * value for value in values])
        assert again == pytest.approx(spread, abs=1e-9)


def test_equal_values_leave_no_doubt() -> None:
    assert mean_interval([2.0] * 5) == (2.0, 2.0)
    assert relative_spread([2.0] * 5) == 0.0


# Ratios of pairs of builds.


@given(PAIRS)
def test_swapping_gives_the_reciprocal(pairs: list[tuple[float, float]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    one, other = paired_ratio(first, second), paired_ratio(second, first)
    assert other.value == pytest.approx(1 / one.value, rel=1e-9)
    assert other.builds == one.builds == len(pairs)
    if len(pairs) > 1 and math.isfinite(max(one.high, other.high)):
        assert other.low * one.high == pytest.approx(1, rel=1e-6)
        assert other.high * one.low == pytest.approx(1, rel=1e-6)


@given(PAIRS, st.data())
def test_what_moves_both_of_a_pair_does_not_count(
    pairs: list[tuple[float, float]], data: st.DataObject
) -> None:
    factors = data.draw(st.lists(st.floats(0.1, 10), min_size=len(pairs), max_size=len(pairs)))
    plain = paired_ratio([a for a, _ in pairs], [b for _, b in pairs])
    moved = paired_ratio(
        [a * f for (a, _), f in zip(pairs, factors, strict=True)],
        [b * f for (_, b), f in zip(pairs, factors, strict=True)],
    )
    assert moved.value == pytest.approx(plain.value, rel=1e-9)
    assert moved.low == pytest.approx(plain.low, rel=1e-6)
    assert moved.high == pytest.approx(plain.high, rel=1e-6)


@given(PAIRS, st.floats(0.01, 100))
def test_a_slower_first_has_a_greater_ratio(pairs: list[tuple[float, float]], factor: float) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    plain, slower = paired_ratio(first, second), paired_ratio([a * factor for a in first], second)
    assert slower.value == pytest.approx(plain.value * factor, rel=1e-9)


@given(PAIRS, st.randoms(use_true_random=False))
def test_the_order_of_pairs_does_not_count(pairs: list[tuple[float, float]], rng: random.Random) -> None:
    shuffled = list(pairs)
    rng.shuffle(shuffled)
    plain = paired_ratio([a for a, _ in pairs], [b for _, b in pairs])
    moved = paired_ratio([a for a, _ in shuffled], [b for _, b in shuffled])
    assert moved.value == pytest.approx(plain.value, rel=1e-9)
    assert (moved.low, moved.high) == (
        pytest.approx(plain.low, rel=1e-6),
        pytest.approx(plain.high, rel=1e-6),
    )


@given(PAIRS)
def test_the_value_lies_in_its_interval_and_more_confidence_widens_it(
    pairs: list[tuple[float, float]],
) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    narrow, wide = paired_ratio(first, second, confidence=0.8), paired_ratio(first, second, confidence=0.99)
    assert wide.low <= narrow.low <= narrow.value <= narrow.high <= wide.high


def test_pairs_that_are_far_apart_bound_nothing() -> None:
    ratio = paired_ratio([1.0, 1e9], [1.0, 1e-9], confidence=0.99)
    assert ratio.high == math.inf
    assert ratio.low == pytest.approx(0)


def test_a_single_pair_says_nothing() -> None:
    ratio = paired_ratio([2.0], [1.0])
    assert (ratio.value, ratio.low, ratio.high, ratio.builds) == (2.0, 0.0, math.inf, 1)
    assert paired_ratio([2.0], [1.0], known_spread=0.0) == ratio


def test_a_single_pair_with_a_known_spread() -> None:
    ratio = paired_ratio([2.0], [1.0], known_spread=0.01)
    half = 1.959964 * 0.01 * math.sqrt(2)
    assert math.log(ratio.high / 2) == pytest.approx(half, rel=1e-6)
    assert math.log(2 / ratio.low) == pytest.approx(half, rel=1e-6)
    wider = paired_ratio([2.0], [1.0], known_spread=0.01, confidence=0.99)
    assert wider.high > ratio.high


def test_a_known_spread_does_not_count_among_several() -> None:
    first, second = [1.0, 1.1, 1.05], [1.0, 1.0, 1.0]
    assert paired_ratio(first, second, known_spread=0.5) == paired_ratio(first, second)


def test_pairs_are_pairs() -> None:
    with pytest.raises(ValueError, match="no pairs"):
        paired_ratio([], [])
    with pytest.raises(ValueError, match="argument 2"):
        paired_ratio([1.0], [1.0, 2.0])


# Simulated machines: does the interval contain the truth as often as it says?

Shape = Callable[[np.random.Generator, int], np.ndarray]
SAMPLES = 40


def steady(rng: np.random.Generator, count: int) -> np.ndarray:
    return 1 + 0.002 * rng.standard_normal(count)


def skewed(rng: np.random.Generator, count: int) -> np.ndarray:
    return 1 + rng.exponential(0.05, count)


def bimodal(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.where(rng.random(count) < 0.5, 1.0, 1.3) + 0.01 * rng.standard_normal(count)


def bursts(rng: np.random.Generator, count: int) -> np.ndarray:
    """A busy machine: a tenth of the samples are hit by something else."""
    return 1 + 0.003 * rng.standard_normal(count) + (rng.random(count) < 0.1) * rng.exponential(1.0, count)


def normal_builds(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.exp(0.01 * rng.standard_normal(count))


def skewed_builds(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.exp(rng.exponential(0.01, count))


def bimodal_builds(rng: np.random.Generator, count: int) -> np.ndarray:
    """Memory laid out well or badly: 2 % apart, with some noise."""
    return np.exp(0.02 * (rng.random(count) < 0.5) + 0.003 * rng.standard_normal(count))


def measured(
    rng: np.random.Generator, truth: float, builds: int, shape: Shape, effects: Shape, drift: float
) -> tuple[list[float], list[float]]:
    """The p25 of each build of two engines, interleaved on a machine that drifts."""
    rounds = np.repeat(np.arange(4), SAMPLES // 4)
    first, second = [], []
    level = 0.0
    one, other = effects(rng, builds), effects(rng, builds)
    for build in range(builds):
        # Between builds the machine jumps; within one it wanders from round to round.
        level += drift * rng.standard_normal()
        wander = np.exp(level + 0.1 * drift * np.cumsum(rng.standard_normal(4)))
        for effect, scale, latencies in ((one, truth, first), (other, 1.0, second)):
            samples = scale * effect[build] * wander[rounds] * shape(rng, SAMPLES)
            latencies.append(quantile(sorted(samples.tolist()), 0.25))
    return first, second


def coverage(
    trials: int, builds: int, shape: Shape, effects: Shape, drift: float, confidence: float = 0.95
) -> float:
    rng = np.random.default_rng(20260)
    hits = 0
    for trial in range(trials):
        truth = (1.0, 1.03, 0.8)[trial % 3]
        first, second = measured(rng, truth, builds, shape, effects, drift)
        ratio = paired_ratio(first, second, confidence=confidence)
        hits += ratio.low <= truth <= ratio.high
    return hits / trials


@pytest.mark.parametrize("builds", [4, 8])
@pytest.mark.parametrize(
    ("shape", "effects", "drift"),
    [
        (steady, normal_builds, 0.0),
        (steady, normal_builds, 0.1),
        (steady, skewed_builds, 0.0),
        (steady, bimodal_builds, 0.05),
        (skewed, normal_builds, 0.05),
        (skewed, skewed_builds, 0.1),
        (bimodal, normal_builds, 0.05),
        (bursts, normal_builds, 0.05),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_the_interval_contains_the_truth_at_its_rate(
    shape: Shape, effects: Shape, drift: float, builds: int
) -> None:
    rate = coverage(300, builds, shape, effects, drift)
    # 300 trials know a rate of 95 % to 1.3 % (one sigma).
    assert 0.91 <= rate <= 0.99


@pytest.mark.long
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("effects", [normal_builds, skewed_builds, bimodal_builds])
def test_the_interval_contains_the_truth_at_each_rate(effects: Shape, confidence: float) -> None:
    rate = coverage(4000, 4, skewed, effects, 0.1, confidence)
    assert rate == pytest.approx(confidence, abs=0.025)


def test_drift_of_the_machine_does_not_widen_the_interval() -> None:
    def width(drift: float) -> float:
        rng = np.random.default_rng(7)
        ratios = [paired_ratio(*measured(rng, 1.0, 4, steady, normal_builds, drift)) for _trial in range(100)]
        return statistics.median(ratio.high - ratio.low for ratio in ratios)

    assert width(0.2) < 1.5 * width(0.0)


def test_samples_within_a_build_are_no_replicates() -> None:
    """What the intervals are made for: over samples of one build the truth is mostly missed."""
    rng = np.random.default_rng(3)
    hits = {"samples": 0, "builds": 0}
    for _trial in range(200):
        effects = normal_builds(rng, 8)
        builds: list[Sequence[float]] = [(effect * steady(rng, 100)).tolist() for effect in effects]
        low, high = mean_interval(builds[0])
        hits["samples"] += low <= 1.0 <= high
        low, high = mean_interval([statistics.median(build) for build in builds])
        hits["builds"] += low <= 1.0 <= high
    assert hits["samples"] < 40
    assert hits["builds"] > 180


# Two-sided critical values of Wilcoxon's signed rank statistic, from the usual tables.
@pytest.mark.parametrize(
    ("count", "confidence", "critical"),
    [
        (8, 0.95, 3),
        (10, 0.95, 8),
        (15, 0.95, 25),
        (20, 0.95, 52),
        (8, 0.99, 0),
        (10, 0.99, 3),
        (20, 0.99, 37),
    ],
)
def test_signed_rank_interval_against_the_table(count: int, confidence: float, critical: int) -> None:
    logs = [0.001 * (number + 1) ** 1.5 for number in range(count)]
    means = sorted((a + b) / 2 for i, a in enumerate(logs) for b in logs[i:])
    ratio = paired_ratio([math.exp(log) for log in logs], [1.0] * count, confidence=confidence)
    assert math.log(ratio.low) == pytest.approx(means[critical + 1])
    assert math.log(ratio.high) == pytest.approx(means[-2 - critical])


def test_a_burst_of_load_on_one_pair_does_not_move_the_estimate() -> None:
    first = [1.02 + 0.001 * (number % 3) for number in range(12)]
    calm = paired_ratio(first, [1.0] * 12)
    spoilt = paired_ratio([1.9, *first[1:]], [1.0] * 12)
    assert spoilt.value == pytest.approx(calm.value, abs=1e-3)
    assert spoilt.high < 1.03
