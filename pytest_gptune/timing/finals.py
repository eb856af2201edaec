"""Finals: engines built anew, measured in turns, so that what moves the machine moves all of them.

Each round gives every contestant one block, in random order; the head of a block is discarded, because the
threads of the engine before still spin then and caches are cold. Each build of a contestant is interleaved
with the build of the same number of every other: pairs of builds are the replicates.

A build stands for itself by its quietest block: other processes come in bursts that are longer than a block
and shorter than a build's turn, so one of several blocks is undisturbed. That holds on a device's clock too:
an engine that keeps the device waiting has the host's pace, and needs more blocks until one is undisturbed,
since every pause of the host is in it. What that leaves unseen, a tail that is the engine's own, is
judged by quantiles over all blocks.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

from pytest_gptune.engines.base import Engine, LatencyKind, SampleBlock
from pytest_gptune.errors import GptuneError
from pytest_gptune.timing.protocol import batch_for, warm_up
from pytest_gptune.timing.stability import Conditions, keeps_waiting
from pytest_gptune.timing.statistics import (
    Ratio,
    Statistic,
    mean_interval,
    paired_ratio,
    quantile,
    relative_spread,
    statistic_for,
)

# The planned builds were made; builds were added until winner or verdict were certain; the most were made.
FinalsStop = Literal["finals", "decided", "most_builds"]

_SHARES = {"p25": 0.25, "median": 0.5, "p95": 0.95}


class FinalistFailedError(GptuneError):
    """A finalist could not be built again, or its new build is not accurate."""


@dataclass(frozen=True)
class Contestant:
    """One engine of the finals.

    Attributes:
        key: what it is called in the result.
        build: builds it anew, checks it and loads its inputs; raises GptuneError where that fails.
        measured: is given each engine that was measured, before it is closed.
        inspected: is given it once all engines of the round are noted; what fails there costs no result.
    """

    key: str
    build: Callable[[], Engine]
    measured: Callable[[Engine], None] | None = None
    inspected: Callable[[Engine], None] | None = None


@dataclass(frozen=True)
class FinalsPlan:
    """How long finals take: ``builds`` times ``rounds`` blocks of ``block_s`` for each contestant, or more.

    Attributes:
        head_s: discarded at the start of every block.
        builds: pairs of builds in the first go.
        step: pairs of builds that are added when measured again.
        most_builds: pairs of builds when measured again, in all.
        rounds: blocks of each build.
        waiting_s: what the blocks of a build and their heads take at least where an engine of its round keeps
            the device waiting.
    """

    builds: int = 5
    step: int = 3
    most_builds: int = 25
    rounds: int = 3
    block_s: float = 0.05
    head_s: float = 0.012
    waiting_s: float = 1.2
    warmup_s: float = 0.03
    most_warmup_s: float = 0.5


@dataclass
class FinalsResult:
    """Samples of every build of every contestant, and which contestants failed and why.

    Attributes:
        blocks: for each contestant and build, the samples of each of its blocks, in seconds.
        counts: how many samples each build has, where the blocks were thinned out.
        taken: the same blocks with their conditions, in the order taken.
        clocks_hz: mean clock of the device during each build, None where there is none.
        failures: what stopped a contestant; it has no further builds.
        stop_reasons: why no further builds were added, where that was not the plan.
    """

    statistic: Statistic = "p25"
    latency_kind: LatencyKind = "host_wall"
    blocks: dict[str, list[list[list[float]]]] = field(default_factory=dict)
    counts: dict[str, list[int]] = field(default_factory=dict)
    taken: dict[str, list[SampleBlock]] = field(default_factory=dict)
    clocks_hz: dict[str, list[float | None]] = field(default_factory=dict)
    failures: dict[str, GptuneError] = field(default_factory=dict)
    stop_reasons: dict[str, FinalsStop] = field(default_factory=dict)

    def add_round(
        self,
        blocks: Mapping[str, list[list[float]]],
        counts: Mapping[str, int],
        clocks_hz: Mapping[str, float | None],
        latency_kind: LatencyKind,
        statistic: Statistic,
    ) -> None:
        """Add one build of each contestant that was measured earlier, in one round."""
        self.latency_kind, self.statistic = latency_kind, statistic
        for key, build in blocks.items():
            self.blocks.setdefault(key, []).append(build)
            self.counts.setdefault(key, []).append(counts[key])
            self.clocks_hz.setdefault(key, []).append(clocks_hz.get(key))

    def latencies(self, key: str, statistic: str | None = None) -> list[float]:
        """A statistic of each build of a contestant, in seconds.

        Args:
            key: the contestant.
            statistic: a quantile over all blocks of the build; None for the statistic that stands for a
                latency, that of the quietest block.
        """
        builds = self.blocks.get(key, [])
        if statistic is None:
            share = _SHARES[self.statistic]
            return [min(quantile(sorted(block), share) for block in blocks) for blocks in builds]
        share = _SHARES[statistic]
        return [quantile(sorted(sample for block in blocks for sample in block), share) for blocks in builds]

    def cycles(self, key: str) -> list[float] | None:
        """Latency times the device's clock, of each build; None where a clock is not known."""
        clocks = self.clocks_hz.get(key, [])
        known = [clock for clock in clocks if clock]
        if not known or len(known) < len(self.blocks.get(key, [])):
            return None
        return [latency * clock for latency, clock in zip(self.latencies(key), known, strict=True)]

    def warnings(self, key: str) -> tuple[str, ...]:
        """What a reader of its latency has to know."""
        taken = self.taken.get(key, [])
        return Conditions.of(taken).warnings(self.latency(key), self.interval(key)) if taken else ()

    def capped(self, key: str) -> float | None:
        """The share of its blocks in which the power limit held the device down; None where unknown."""
        taken = self.taken.get(key, [])
        return sum("power capped" in block.conditions for block in taken) / len(taken) if taken else None

    def builds(self, key: str) -> int:
        """How many builds of it were measured."""
        return len(self.blocks.get(key, []))

    def latency(self, key: str) -> float:
        """The median over builds, in seconds."""
        return quantile(sorted(self.latencies(key)), 0.5)

    def interval(self, key: str) -> tuple[float, float]:
        """Student's interval of the latency over builds, in seconds; (0, inf) for a single build."""
        low, high = mean_interval(self.latencies(key))
        return max(low, 0.0), high

    def spread(self, key: str) -> float | None:
        """Relative standard deviation between builds, None for a single one."""
        return relative_spread(self.latencies(key))

    def ratio_in_cycles(self, first: str, second: str) -> float | None:
        """The ratio of two engines in cycles of the device, None where its clock is not known."""
        a, b = self.cycles(first), self.cycles(second)
        if a is None or b is None:
            return None
        pairs = min(len(a), len(b))
        return paired_ratio(a[:pairs], b[:pairs]).value

    def ratio(
        self,
        first: str,
        second: str,
        *,
        statistic: str | None = None,
        confidence: float = 0.95,
        known_spread: float | None = None,
        skip_builds: int = 0,
    ) -> Ratio:
        """Latency of ``first`` over that of ``second``, without the first ``skip_builds`` pairs of builds."""
        a, b = self.latencies(first, statistic), self.latencies(second, statistic)
        pairs = min(len(a), len(b))
        return paired_ratio(
            a[skip_builds:pairs], b[skip_builds:pairs], confidence=confidence, known_spread=known_spread
        )


def run_finals(
    contestants: Sequence[Contestant],
    plan: FinalsPlan,
    rng: random.Random,
    *,
    builds: int,
    result: FinalsResult | None = None,
) -> FinalsResult:
    """Build and measure the contestants ``builds`` times, interleaved.

    Args:
        contestants: those that failed before, according to ``result``, are left out.
        plan: length and number of blocks.
        rng: draws the order within a round.
        builds: how many pairs of builds to add.
        result: is added to; None starts a new one.
    """
    result = result or FinalsResult()
    for _ in range(builds):
        # A contestant that fails may take others with it, if they share a process: the round starts anew
        # without it. Each failure leaves one contestant less, so this ends.
        while standing := [c for c in contestants if c.key not in result.failures]:
            if _one_build(_in_turn(standing, result), plan, rng, result):
                break
    return result


def _in_turn(contestants: Sequence[Contestant], result: FinalsResult) -> list[Contestant]:
    """The contestants in the order in which they are built: every other time from the last to the first.

    What is built first in a process lies elsewhere in memory than what is built after it. Identical engines
    differed by one percent for that alone, always the same way round: each goes first as often as any other.
    """
    made = max((result.builds(contestant.key) for contestant in contestants), default=0)
    return list(reversed(contestants)) if made % 2 else list(contestants)


def _one_build(
    contestants: Sequence[Contestant], plan: FinalsPlan, rng: random.Random, result: FinalsResult
) -> bool:
    """Build and measure each contestant once; False where one failed, and nothing was added."""
    engines: dict[str, tuple[Engine, int]] = {}
    try:
        for contestant in contestants:
            with _failing(contestant.key, result):
                engine = contestant.build()
                engines[contestant.key] = engine, 1
                engines[contestant.key] = (
                    engine,
                    batch_for(warm_up(engine, plan.warmup_s, plan.most_warmup_s)),
                )
                result.latency_kind = engine.info.latency_kind
                result.statistic = statistic_for(engine.info.latency_kind)
        collected = _interleave(engines, plan, rng, result)
        for contestant in contestants:
            if contestant.measured is not None:
                with _failing(contestant.key, result):
                    contestant.measured(engines[contestant.key][0])
        for contestant in contestants:
            if contestant.inspected is not None:
                with suppress(GptuneError):
                    contestant.inspected(engines[contestant.key][0])
    except _ContestantFailedError:
        return False
    finally:
        for engine, _batch in engines.values():
            engine.close()
    for key, blocks in collected.items():
        clocks = [block.sm_clock_hz for block in blocks if block.sm_clock_hz is not None]
        result.blocks.setdefault(key, []).append([list(block.latencies_s) for block in blocks])
        result.counts.setdefault(key, []).append(sum(len(block.latencies_s) for block in blocks))
        result.taken.setdefault(key, []).extend(blocks)
        result.clocks_hz.setdefault(key, []).append(sum(clocks) / len(clocks) if clocks else None)
    return True


class _ContestantFailedError(Exception):
    """A contestant failed, and its failure is recorded."""


@contextmanager
def _failing(key: str, result: FinalsResult) -> Iterator[None]:
    """Record the failure of a contestant; its builds compare with nothing any more."""
    try:
        yield
    except GptuneError as error:
        result.failures[key] = error
        for measured in (result.blocks, result.counts, result.taken, result.clocks_hz):
            measured.pop(key, None)
        raise _ContestantFailedError from error


def _interleave(
    engines: dict[str, tuple[Engine, int]], plan: FinalsPlan, rng: random.Random, result: FinalsResult
) -> dict[str, list[SampleBlock]]:
    collected: dict[str, list[SampleBlock]] = {key: [] for key in engines}

    def measure(rounds: int) -> None:
        for _ in range(rounds):
            order = list(engines)
            rng.shuffle(order)
            for key in order:
                engine, batch = engines[key]
                with _failing(key, result):
                    engine.sample(plan.head_s, at_most=1_000_000, batch=batch)
                    collected[key].append(engine.sample(plan.block_s, at_most=1_000_000, batch=batch))

    measure(plan.rounds)
    # All have the same number, since the least of more blocks is lower.
    measure(_rounds(collected.values(), plan) - plan.rounds)
    return collected


def _rounds(collected: Collection[Sequence[SampleBlock]], plan: FinalsPlan) -> int:
    """Blocks of each build: where an engine keeps the device waiting, enough to outlast the host's bursts."""
    if not any(map(keeps_waiting, collected)):
        return plan.rounds
    slowest = max(min(latency for block in blocks for latency in block.latencies_s) for blocks in collected)
    turn_s = max(plan.head_s, slowest) + max(plan.block_s, slowest)
    return max(plan.rounds, math.ceil(plan.waiting_s / turn_s))
