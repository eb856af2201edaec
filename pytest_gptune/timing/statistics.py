"""Statistics of latency samples, as pure functions of numbers.

Samples of one engine agree to a fraction of a percent; two builds of one model differ by about one percent
whatever the statistic. So samples within a build are no replicates, builds are: every interval that decides
something is taken over builds (Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time", 2013).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Statistic = Literal["p25", "median"]

MAX_KEPT_SAMPLES = 1000

# With fewer pairs the signed rank test has no 99 percent interval.
_FEWEST_FOR_RANKS = 8


@dataclass(frozen=True)
class Summary:
    """Order statistics of one series of samples; times in seconds."""

    min: float
    p25: float
    median: float
    mean: float
    p90: float
    p95: float
    p99: float
    samples: int


@dataclass(frozen=True)
class Ratio:
    """A ratio of two latencies with its confidence interval.

    Attributes:
        value: above 1 where the first is slower.
        low: lower end; 0 where a single build allows no statement.
        high: upper end; infinity where a single build allows no statement.
        builds: pairs of builds it was taken over.
    """

    value: float
    low: float
    high: float
    builds: int


def quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of ascending numbers by linear interpolation (definition 7 of Hyndman and Fan, 1996)."""
    if not ordered:
        raise ValueError("no samples")
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def summarise(samples: Sequence[float]) -> Summary:
    """Order statistics and mean of samples in any order."""
    ordered = sorted(samples)
    return Summary(
        min=ordered[0],
        p25=quantile(ordered, 0.25),
        median=quantile(ordered, 0.5),
        mean=statistics.fmean(ordered),
        p90=quantile(ordered, 0.9),
        p95=quantile(ordered, 0.95),
        p99=quantile(ordered, 0.99),
        samples=len(ordered),
    )


def statistic_for(latency_kind: str) -> Statistic:
    """The statistic that stands for a latency: p25 on the host's clock, the median on a device's.

    On the host other processes only ever add time, in bursts that reach the median of a busy machine.
    """
    return "p25" if latency_kind == "host_wall" else "median"


def decimate(samples: Sequence[float], at_most: int = MAX_KEPT_SAMPLES) -> tuple[float, ...]:
    """At most ``at_most`` of the samples, evenly spread over the series, first and last included."""
    count = len(samples)
    if count <= at_most:
        return tuple(samples)
    if at_most == 1:
        return (samples[0],)
    return tuple(samples[round(i * (count - 1) / (at_most - 1))] for i in range(at_most))


def relative_spread(values: Sequence[float]) -> float | None:
    """Standard deviation over mean, None for fewer than two values."""
    if len(values) < 2:
        return None
    return statistics.stdev(values) / statistics.fmean(values)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student's two-sided interval of the mean; (-inf, inf) for fewer than two values."""
    if len(values) < 2:
        return -math.inf, math.inf
    centre = statistics.fmean(values)
    half = _half_width(statistics.stdev(values), len(values), len(values) - 1, confidence)
    return centre - half, centre + half


def paired_ratio(
    first: Sequence[float],
    second: Sequence[float],
    *,
    confidence: float = 0.95,
    known_spread: float | None = None,
) -> Ratio:
    """The ratio of two engines' latencies from builds measured in pairs.

    The estimate is that of Hodges and Lehmann (1963) on the logarithms of the ratios of the pairs: the median
    of all means of two. Bursts of load spoil single pairs by tens of percent, which a mean would take up and
    this estimate does not, while on undisturbed pairs it is nearly as sharp as the mean. From eight pairs on
    the interval is that of Wilcoxon's signed rank test, which assumes symmetry and no distribution; below it
    is Student's. Either is taken over pairs of builds, so that it contains the variance between builds and
    excludes what moved both engines of a pair.

    Args:
        first: latency of each build of the first engine.
        second: latency of the build of the second engine that was interleaved with it.
        confidence: of the two-sided interval.
        known_spread: relative spread between builds known from earlier; used when there is one pair only.
    """
    logs = [math.log(a / b) for a, b in zip(first, second, strict=True)]
    if not logs:
        raise ValueError("no pairs of builds")
    if len(logs) == 1:
        if not known_spread:
            return Ratio(math.exp(logs[0]), 0.0, math.inf, 1)
        # Two builds differ by the square root of two times the spread of one; the spread is taken as known.
        half = statistics.NormalDist().inv_cdf((1 + confidence) / 2) * known_spread * math.sqrt(2)
        return Ratio(math.exp(logs[0]), math.exp(logs[0] - half), math.exp(logs[0] + half), 1)
    means = sorted((a + b) / 2 for i, a in enumerate(logs) for b in logs[i:])
    centre = quantile(means, 0.5)
    if len(logs) < _FEWEST_FOR_RANKS:
        half = _half_width(statistics.stdev(logs), len(logs), len(logs) - 1, confidence)
        low, high = centre - half, centre + half
    else:
        outside = _signed_rank_outside(len(logs), confidence)
        low, high = means[outside], means[-1 - outside]
    # math.exp raises above 709; builds that far apart bound nothing.
    return Ratio(math.exp(centre), math.exp(low), math.exp(high) if high < 700 else math.inf, len(logs))


def centre(values: Sequence[float], confidence: float = 0.95) -> Ratio:
    """The centre of values of one series and its interval, by the same estimator as ``paired_ratio``.

    The value lies within the interval, always: they are of one estimator. For a single value the interval is
    (0, inf).
    """
    return paired_ratio(values, [1.0] * len(values), confidence=confidence)


def _signed_rank_outside(count: int, confidence: float) -> int:
    """How many means of two lie outside of the interval, at each end, for ``count`` pairs.

    By the exact distribution of Wilcoxon's signed rank statistic: the number of subsets of the ranks
    1..count that have each sum.
    """
    ways = [1]
    for rank in range(1, count + 1):
        longer = ways + [0] * rank
        for total, number in enumerate(ways):
            longer[total + rank] += number
        ways = longer
    allowed = (1 - confidence) / 2 * 2**count
    below = 0
    for outside, number in enumerate(ways):
        below += number
        if below > allowed:
            return outside
    raise AssertionError("the distribution ends at one")


def _half_width(deviation: float, count: int, freedom: int, confidence: float) -> float:
    return t_quantile((1 + confidence) / 2, freedom) * deviation / math.sqrt(count)


def t_quantile(share: float, freedom: int) -> float:
    """Quantile of Student's t distribution, by bisection of its distribution function.

    Args:
        share: between 0.5 and 1, exclusive of 1.
        freedom: degrees of freedom, at least 1.
    """
    low, high = 0.0, 1.0
    while _t_cdf(high, freedom) < share:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if _t_cdf(middle, freedom) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _t_cdf(t: float, freedom: int) -> float:
    """Distribution function of Student's t for t >= 0 (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    if freedom == 1:
        return 0.5 + angle / math.pi
    total = term = cosine if freedom % 2 else 1.0
    for k in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    if freedom % 2:
        return 0.5 + (angle + math.sin(angle) * total) / math.pi
    return 0.5 + math.sin(angle) * total / 2
