"""The first measurement of each route: warm up by time, sample in blocks, stop when enough is known."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pytest_gptune.engines.base import Engine, LatencyKind, SampleBlock
from pytest_gptune.timing.stability import Conditions, keeps_waiting
from pytest_gptune.timing.statistics import (
    Statistic,
    Summary,
    centre,
    decimate,
    quantile,
    statistic_for,
    summarise,
)

MEASURING = 3
"""How latencies are taken, at first and in the finals; raised where those of before do not compare."""

StopReason = Literal["narrow", "stalled", "hopeless", "budget"]

# Runs that get faster by more than this from one part of the warm-up to the next are not warm.
_STILL_FALLING = 0.02

# The interval has stopped improving when its half is not below this share of what it was.
_PROGRESS = 0.9

_SHARE = {"p25": 0.25, "median": 0.5}

# Reading the clock twice costs about 0.1 us; a sample of 20 us keeps that below half a percent.
_SHORTEST_SAMPLE_S = 20e-6


@dataclass(frozen=True)
class SamplingPlan:
    """How long one route is measured.

    Attributes:
        warmup_s: first runs are discarded for at least this long: they allocate, repack and wake threads.
        most_warmup_s: the most time spent until the runs do not get faster any more.
        block_s: a block's statistic is one value of the interval; long against the scheduler's slices.
        min_blocks: the least number of blocks.
        budget_s: the most time spent on sampling.
        narrow: stop when half the interval is below this share of the latency.
        waiting_narrow: the same where the engine keeps the device waiting, whose latency differs by more than
            that from block to block, and from build to build.
        hopeless: stop when the interval lies above the best latency by this factor.
        patience: stop when half the interval has not shrunk by a tenth within so many blocks.
    """

    warmup_s: float = 0.08
    most_warmup_s: float = 1.0
    block_s: float = 0.05
    min_blocks: int = 4
    budget_s: float = 1.0
    narrow: float = 0.005
    waiting_narrow: float = 0.02
    hopeless: float = 1.5
    patience: int = 8


@dataclass(frozen=True)
class Measurement:
    """The latency of one build of one engine; times in seconds.

    Attributes:
        latency_s: the Hodges-Lehmann estimate over the statistics of the blocks.
        interval: of the latency, over blocks; it contains no variance between builds.
        kept: the samples, at most 1,000, evenly decimated.
        warnings: what a reader of the latency has to know, a sentence each.
    """

    latency_s: float
    statistic: Statistic
    latency_kind: LatencyKind
    summary: Summary
    interval: tuple[float, float]
    stop_reason: StopReason
    batch: int
    kept: tuple[float, ...]
    warnings: tuple[str, ...] = ()


def warm_up(engine: Engine, seconds: float, most_s: float) -> float:
    """Run the loaded inputs until the runs do not get faster any more.

    Args:
        engine: its inputs are loaded; another shape is warmed up anew.
        seconds: the least time, spent in two parts.
        most_s: the most time; reached by an engine that still gets faster.

    Returns:
        The latency of the fastest run, in seconds.
    """
    fastest, level, spent = math.inf, math.inf, 0.0
    while True:
        start = time.perf_counter()
        runs = sorted(engine.sample(seconds / 2, at_most=1_000_000).latencies_s)
        spent += time.perf_counter() - start
        before, level = level, quantile(runs, 0.5)
        fastest = min(fastest, runs[0])
        settled = math.isfinite(before) and level > before * (1 - _STILL_FALLING)
        if settled or spent >= most_s:
            return fastest


def batch_for(latency_s: float) -> int:
    """Inferences per sample, so that a sample is long against the clock's resolution and cost."""
    resolution = time.get_clock_info("perf_counter").resolution
    shortest = max(_SHORTEST_SAMPLE_S, 1000 * resolution)
    return max(1, math.ceil(shortest / max(latency_s, 1e-9)))


def measure(engine: Engine, plan: SamplingPlan, best_s: float | None = None) -> Measurement:
    """Measure the latency of an engine whose inputs are loaded.

    Args:
        engine: it is warmed up here.
        plan: how long.
        best_s: the best latency of the search so far; a route far above it is given up early.
    """
    batch = batch_for(warm_up(engine, plan.warmup_s, plan.most_warmup_s))
    statistic = statistic_for(engine.info.latency_kind)
    samples: list[float] = []
    blocks: list[float] = []
    taken: list[SampleBlock] = []
    half_widths: list[float] = []
    spent = 0.0
    stop: StopReason | None = None
    while stop is None:
        start = time.perf_counter()
        block = engine.sample(plan.block_s, at_most=1_000_000, batch=batch)
        spent += time.perf_counter() - start
        samples += block.latencies_s
        taken.append(block)
        blocks.append(block_statistic(block.latencies_s, statistic))
        estimate = centre(blocks)
        half_widths.append((estimate.high - estimate.low) / 2)
        narrow = plan.waiting_narrow if keeps_waiting(taken) else plan.narrow
        stop = _stop(blocks, half_widths, spent, replace(plan, narrow=narrow), best_s)
    summary = summarise(samples)
    latency, interval = estimate.value, (estimate.low, estimate.high)
    return Measurement(
        latency_s=latency,
        statistic=statistic,
        latency_kind=engine.info.latency_kind,
        summary=summary,
        interval=interval,
        stop_reason=stop,
        batch=batch,
        kept=decimate(samples),
        warnings=Conditions.of(taken).warnings(latency, interval),
    )


def block_statistic(block: Sequence[float], statistic: Statistic) -> float:
    """The statistic of one block of samples."""
    return quantile(sorted(block), _SHARE[statistic])


def _stop(
    blocks: list[float], half_widths: list[float], spent: float, plan: SamplingPlan, best_s: float | None
) -> StopReason | None:
    if len(blocks) >= plan.min_blocks:
        estimate = centre(blocks)
        if half_widths[-1] <= plan.narrow * estimate.value:
            return "narrow"
        if best_s is not None and estimate.low > plan.hopeless * best_s:
            return "hopeless"
        if len(blocks) >= plan.min_blocks + plan.patience:
            before = half_widths[-1 - plan.patience]
            if half_widths[-1] > _PROGRESS * before:
                return "stalled"
    if spent >= plan.budget_s and len(blocks) >= 2:
        return "budget"
    return None
