"""The first measurement of a route, with engines whose samples are written down."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_engines import Clock, ScriptedEngine

from pytest_gptune.engines.base import EngineFailedError, LatencyKind
from pytest_gptune.timing import protocol
from pytest_gptune.timing.protocol import SamplingPlan, batch_for, block_statistic, measure, warm_up
from pytest_gptune.timing.statistics import centre, summarise

MS = 1e-3
WARM = [3 * MS, 1 * MS, 2 * MS]
WARMING = [(0.04, 1)] * 2


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(protocol, "time", clock)
    return clock


def engine_of(
    clock: Clock, blocks: Iterable[list[float] | BaseException], kind: LatencyKind = "host_wall"
) -> ScriptedEngine:
    return ScriptedEngine(itertools.chain([WARM, WARM], blocks), kind, clock)


def noisy(centre: float = 1 * MS, step: float = 0.2) -> Iterable[list[float]]:
    """Blocks whose statistics swing by ``step``, so that no interval gets narrow."""
    return ([centre * (1 + step * (number % 2))] * 5 for number in itertools.count())


def test_warming_up_gives_the_fastest_run() -> None:
    engine = ScriptedEngine([WARM, [2 * MS] * 3])
    assert warm_up(engine, 0.08, 1.0) == 1 * MS
    assert engine.calls == WARMING


def test_an_engine_that_still_gets_faster_is_not_warm(clock: Clock) -> None:
    parts = [[5 * MS], [4 * MS], [3 * MS], [2.9 * MS], [2.88 * MS], [1 * MS]]
    engine = ScriptedEngine(parts, clock=clock)
    assert warm_up(engine, 0.08, 1.0) == 2.88 * MS
    assert len(engine.calls) == 5


def test_warming_up_ends_in_time(clock: Clock) -> None:
    engine = ScriptedEngine(([10 * MS * 0.9**number] for number in itertools.count()), clock=clock)
    warm_up(engine, 0.08, 0.5)
    assert sum(seconds for seconds, _ in engine.calls) == pytest.approx(0.52)


def test_a_steady_engine_stops_at_the_least_number_of_blocks(clock: Clock) -> None:
    engine = engine_of(clock, itertools.repeat([1.001 * MS] * 3))
    result = measure(engine, SamplingPlan())
    assert result.stop_reason == "narrow"
    assert engine.calls == WARMING + [(0.05, 1)] * 4
    assert result.latency_s == pytest.approx(1.001 * MS)
    assert result.interval == (pytest.approx(1.001 * MS), pytest.approx(1.001 * MS))


def test_it_goes_on_until_the_interval_is_narrow(clock: Clock) -> None:
    """A first block that is off needs more blocks to drown in."""
    blocks = [[2 * MS] * 3, *([[1 * MS] * 3] * 400)]
    engine = engine_of(clock, blocks)
    plan = SamplingPlan(budget_s=math.inf, narrow=0.2)
    result = measure(engine, plan)
    assert result.stop_reason == "narrow"
    count = len(engine.calls) - 2
    assert count > plan.min_blocks

    def is_narrow(blocks: int) -> bool:
        found = centre([2 * MS] + [1 * MS] * (blocks - 1))
        return (found.high - found.low) / 2 <= plan.narrow * found.value

    assert is_narrow(count)
    assert not is_narrow(count - 1)
    assert result.latency_s == pytest.approx(1 * MS)


def test_the_budget_ends_it(clock: Clock) -> None:
    engine = engine_of(clock, noisy())
    result = measure(engine, SamplingPlan(budget_s=1.0, patience=99))
    assert result.stop_reason == "budget"
    assert len(engine.calls) == 2 + 20


def test_the_budget_counts_the_time_that_passed(clock: Clock) -> None:
    """An inference longer than a block takes as long as it takes."""
    engine = engine_of(clock, noisy(), "host_wall")
    engine.costs = 10
    result = measure(engine, SamplingPlan(budget_s=1.0))
    assert result.stop_reason == "budget"
    assert len(engine.calls) == 2 + 2


def test_a_tiny_budget_still_gives_two_blocks(clock: Clock) -> None:
    engine = engine_of(clock, noisy())
    result = measure(engine, SamplingPlan(budget_s=0.0))
    assert result.stop_reason == "budget"
    assert len(engine.calls) == 2 + 2
    assert all(math.isfinite(end) for end in result.interval)


def test_a_hopeless_route_is_given_up(clock: Clock) -> None:
    engine = engine_of(clock, noisy(10 * MS, 0.05))
    result = measure(engine, SamplingPlan(), best_s=1 * MS)
    assert result.stop_reason == "hopeless"
    assert len(engine.calls) == 2 + 4


@pytest.mark.parametrize("best_s", [None, 1 * MS, 0.8 * MS])
def test_a_route_near_the_best_is_not_given_up(clock: Clock, best_s: float | None) -> None:
    engine = engine_of(clock, noisy(1 * MS, 0.05))
    assert measure(engine, SamplingPlan(), best_s=best_s).stop_reason == "stalled"


def test_an_interval_that_reaches_down_is_not_hopeless(clock: Clock) -> None:
    engine = engine_of(clock, noisy(1.2 * MS, 0.5))
    assert measure(engine, SamplingPlan(), best_s=1 * MS).stop_reason == "stalled"


def test_the_figures_are_those_of_all_samples(clock: Clock) -> None:
    blocks = [[1 * MS, 5 * MS, 2 * MS], [3 * MS, 4 * MS], [6 * MS], [1 * MS]]
    engine = engine_of(clock, blocks)
    result = measure(engine, SamplingPlan(budget_s=0.19))
    samples = [sample for block in blocks for sample in block]
    assert result.summary == summarise(samples)
    assert result.kept == tuple(samples)
    found = centre([block_statistic(block, "p25") for block in blocks])
    assert result.latency_s == found.value
    assert result.interval == (found.low, found.high)


def test_sampling_ends_when_the_interval_has_stopped_improving(clock: Clock) -> None:
    engine = engine_of(clock, noisy())
    result = measure(engine, SamplingPlan(budget_s=math.inf))
    assert result.stop_reason == "stalled"
    assert len(engine.calls) < 2 + 40


@given(st.lists(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=5), min_size=24, max_size=24))
def test_a_latency_lies_within_its_own_interval(blocks: list[list[float]]) -> None:
    """They are of one estimator: a mean over samples and an interval over blocks need not agree."""
    result = measure(ScriptedEngine([WARM, WARM, *blocks]), SamplingPlan(budget_s=0.0))
    low, high = result.interval
    assert 0 <= low <= result.latency_s <= high


@pytest.mark.parametrize(
    ("kind", "statistic"), [("host_wall", "p25"), ("device_queued", "median"), ("device_waited", "median")]
)
def test_each_clock_has_its_statistic(clock: Clock, kind: LatencyKind, statistic: str) -> None:
    engine = engine_of(clock, itertools.repeat([1 * MS, 2 * MS, 3 * MS, 4 * MS, 5 * MS]), kind)
    result = measure(engine, SamplingPlan())
    assert result.statistic == statistic
    assert result.latency_kind == kind
    assert result.latency_s == pytest.approx({"p25": 2 * MS, "median": 3 * MS}[statistic])


def test_many_samples_are_decimated(clock: Clock) -> None:
    result = measure(engine_of(clock, itertools.repeat([1 * MS] * 900)), SamplingPlan())
    assert result.summary.samples == 3600
    assert len(result.kept) == 1000


def test_short_inferences_are_batched(clock: Clock) -> None:
    engine = ScriptedEngine(itertools.chain([[2.1e-6]] * 2, itertools.repeat([2.1e-6] * 3)), clock=clock)
    result = measure(engine, SamplingPlan())
    assert result.batch == 10
    assert engine.calls == WARMING + [(0.05, 10)] * 4


@pytest.mark.parametrize(("latency_s", "batch"), [(1.0, 1), (20e-6, 1), (19e-6, 2), (1.05e-6, 20), (3e-6, 7)])
def test_the_batch_makes_a_sample_long_enough(clock: Clock, latency_s: float, batch: int) -> None:
    assert batch_for(latency_s) == batch


def test_a_clock_that_saw_no_time_pass_gives_a_finite_batch(clock: Clock) -> None:
    assert 1 <= batch_for(0.0) < 100_000


def test_a_coarse_clock_needs_longer_samples(clock: Clock) -> None:
    clock.resolution = 1e-6
    assert batch_for(1e-5) == 100
    assert batch_for(1e-2) == 1


@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_a_failure_comes_through(clock: Clock, blocks: int) -> None:
    engine = engine_of(clock, [*[[1 * MS]] * blocks, EngineFailedError("on purpose")])
    with pytest.raises(EngineFailedError, match="on purpose"):
        measure(engine, SamplingPlan())


def waiting(clock: Clock, blocks: Iterable[float], share: float = 0.97) -> ScriptedEngine:
    """An engine whose device waits for the host, with blocks of these latencies in ms."""
    engine = engine_of(clock, ([block * MS] * 5 for block in blocks), "device_queued")
    engine.enqueue_share = share
    return engine


@pytest.mark.parametrize(("share", "half"), [(0.97, 0.02), (0.5, 0.005)])
def test_at_the_hosts_pace_less_is_narrow(clock: Clock, share: float, half: float) -> None:
    """Builds differ by more than half a percent there, however long one is measured."""
    values = [1.0, 1.02, 1.01, 1.03] * 5
    engine = waiting(clock, values, share)
    assert measure(engine, SamplingPlan()).stop_reason == "narrow"
    blocks = len(engine.calls) - 2

    def is_narrow(count: int) -> bool:
        found = centre(values[:count])
        return (found.high - found.low) / 2 <= half * found.value

    assert is_narrow(blocks)
    assert not any(is_narrow(count) for count in range(4, blocks))


def test_cores_that_are_slow_at_times_are_no_narrow_interval(clock: Clock) -> None:
    result = measure(waiting(clock, itertools.cycle([0.66, 1.05])), SamplingPlan())
    assert result.stop_reason == "stalled"
    assert result.interval[0] < 0.7 * MS < 1.0 * MS < result.interval[1]
