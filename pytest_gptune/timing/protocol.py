"""The first measurement of each route: warm up by time, sample in blocks, stop when enough is known.

An engine that keeps the device waiting has the pace of the core that enqueues it, and each of its blocks
another core (``engines.host_pace``): its latency is that of the quietest block, as in the finals.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_gptune.engines.base import Engine, LatencyKind, SampleBlock
from pytest_gptune.timing.stability import Conditions, keeps_waiting
from pytest_gptune.timing.statistics import (
    Ratio,
    Statistic,
    Summary,
    centre,
    decimate,
    quantile,
    statistic_for,
    summarise,
)

StopReason = Literal["narrow", "stalled", "hopeless", "budget"]

# Runs that get faster by more than this from one part of the warm-up to the next are not warm.
_STILL_FALLING = 0.02

# The interval has stopped improving when its half is not below this share of what it was.
_PROGRESS = 0.9

# Where the host's pace is measured, the two quietest blocks have to differ by no more than this. Those on
# undisturbed cores do by a few percent, and those on disturbed ones take half as long again.
_AGREE = 0.02

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
        waiting_blocks: the least number where the engine keeps the device waiting, since half of a shared
            machine's cores may be slow at a time.
        budget_s: the most time spent on sampling.
        narrow: stop when half the interval is below this share of the latency.
        hopeless: stop when the interval lies above the best latency by this factor.
        patience: stop when half the interval has not shrunk by a tenth within so many blocks.
    """

    warmup_s: float = 0.08
    most_warmup_s: float = 1.0
    block_s: float = 0.05
    min_blocks: int = 4
    waiting_blocks: int = 6
    budget_s: float = 1.0
    narrow: float = 0.005
    hopeless: float = 1.5
    patience: int = 8


@dataclass(frozen=True)
class Measurement:
    """The latency of one build of one engine; times in seconds.

    Attributes:
        latency_s: the Hodges-Lehmann estimate over the statistics of the blocks; the least of them where the
            engine keeps the device waiting.
        interval: of the latency, over blocks; it contains no variance between builds. Of an engine that keeps
            the device waiting it is from the quietest block to the one after it.
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
        waits = keeps_waiting(taken)
        estimate = _quietest(blocks) if waits else centre(blocks)
        half_widths.append((estimate.high - estimate.low) / 2)
        stop = _stop(estimate, waits, half_widths, spent, plan, best_s)
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


def _quietest(blocks: Sequence[float]) -> Ratio:
    """The least of the blocks' statistics, and up to the one after it; (0, inf) for a single block."""
    if len(blocks) < 2:
        return centre(blocks)
    least, second = sorted(blocks)[:2]
    return Ratio(least, least, second, len(blocks))


def _stop(
    estimate: Ratio,
    waits: bool,
    half_widths: list[float],
    spent: float,
    plan: SamplingPlan,
    best_s: float | None,
) -> StopReason | None:
    blocks, least = len(half_widths), plan.waiting_blocks if waits else plan.min_blocks
    if blocks >= least:
        if half_widths[-1] <= (_AGREE / 2 if waits else plan.narrow) * estimate.value:
            return "narrow"
        if best_s is not None and estimate.low > plan.hopeless * best_s:
            return "hopeless"
        if blocks >= least + plan.patience:
            before = half_widths[-1 - plan.patience]
            if half_widths[-1] > _PROGRESS * before:
                return "stalled"
    if spent >= plan.budget_s and blocks >= 2:
        return "budget"
    return None
