"""Finals with engines whose samples are written down: what is interleaved, dropped, closed and paired."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from scripted_engines import ScriptedEngine

from pytest_gptune.engines.base import BuildRejectedError, Engine, EngineFailedError, LatencyKind
from pytest_gptune.timing.finals import (
    Contestant,
    FinalistFailedError,
    FinalsPlan,
    FinalsResult,
    run_finals,
)
from pytest_gptune.timing.statistics import paired_ratio

MS = 1e-3
PLAN = FinalsPlan(builds=3, rounds=4, block_s=0.05, head_s=0.01, warmup_s=0.04)
Block = list[float] | BaseException


@dataclass
class Stage:
    """Makes contestants, and notes everything they do in order.

    Attributes:
        log: (name, number of the build, what): ``build``, ``warm``, ``head``, ``block``.
    """

    log: list[tuple[str, int, str]] = field(default_factory=list)
    engines: dict[str, list[ScriptedEngine]] = field(default_factory=dict)

    def contestant(
        self,
        key: str,
        script: Callable[[int], Iterable[Block]] | None = None,
        *,
        fails_at: int | None = None,
        error: BaseException | None = None,
        kind: LatencyKind = "host_wall",
        enqueue_share: float | None = None,
    ) -> Contestant:
        """One whose build number ``n`` gives ``script(n)``, and whose build ``fails_at`` raises ``error``."""
        made = self.engines.setdefault(key, [])
        tried = itertools.count()

        def build() -> ScriptedEngine:
            number = next(tried)
            self.log.append((key, number, "build"))
            if number == fails_at:
                raise error or BuildRejectedError("on purpose")
            blocks = script(number) if script else itertools.repeat([1 * MS])
            engine = ScriptedEngine(blocks, kind, enqueue_share=enqueue_share)
            names = {PLAN.warmup_s / 2: "warm", PLAN.head_s: "head", PLAN.block_s: "block"}
            engine.when_sampled = lambda seconds, batch: self.log.append((key, number, names[seconds]))
            made.append(engine)
            return engine

        return Contestant(key, build)

    def order(self, build: int) -> list[str]:
        """Who had the blocks of a build, in turn."""
        return [key for key, number, what in self.log if number == build and what == "block"]

    def all_closed(self) -> bool:
        return all(engine.closed == 1 for engines in self.engines.values() for engine in engines)

    def __call__(self, *keys: str) -> list[Contestant]:
        return [self.contestant(key) for key in keys]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def rng() -> random.Random:
    return random.Random(0)


def numbered(base: float) -> Callable[[int], Iterable[Block]]:
    """Build ``n`` takes ``base + n`` ms in its blocks, and much longer in their heads."""

    def script(number: int) -> Iterable[Block]:
        yield [base * MS]
        yield [base * MS]
        while True:
            yield [1000 * MS]
            yield [(base + number) * MS] * 3

    return script


def test_every_contestant_has_builds_times_rounds_blocks(stage: Stage) -> None:
    result = run_finals(stage("a", "b", "c"), PLAN, rng(), builds=3)
    counts = Counter((key, what) for key, _number, what in stage.log)
    for key in "abc":
        assert (counts[key, "build"], counts[key, "warm"]) == (3, 6)
        assert counts[key, "head"] == counts[key, "block"] == 12
        assert result.builds(key) == 3
        assert [len(build) for build in result.blocks[key]] == [4] * 3
    assert stage.all_closed()
    assert not result.failures


def test_each_round_gives_each_a_block_in_random_order(stage: Stage) -> None:
    run_finals(stage("a", "b", "c", "d"), PLAN, rng(), builds=3)
    orders = set()
    for build in range(3):
        blocks = stage.order(build)
        for start in range(0, len(blocks), 4):
            turn = blocks[start : start + 4]
            assert sorted(turn) == ["a", "b", "c", "d"]
            orders.add(tuple(turn))
    assert len(orders) > 1


@pytest.mark.parametrize(("enqueue_share", "blocks"), [(0.95, 9), (0.8, 4), (0.1, 4), (None, 4)])
def test_where_one_keeps_the_device_waiting_all_have_more_blocks(
    stage: Stage, enqueue_share: float | None, blocks: int
) -> None:
    plan = replace(PLAN, waiting_s=8.5 * (PLAN.block_s + PLAN.head_s))
    contestants = [
        stage.contestant("a", kind="device_queued", enqueue_share=enqueue_share),
        stage.contestant("b", kind="device_queued", enqueue_share=0.05),
    ]
    result = run_finals(contestants, plan, rng(), builds=2)
    assert [len(build) for key in "ab" for build in result.blocks[key]] == [blocks] * 4
    for build in range(2):
        turns = stage.order(build)
        assert all(set(turns[start : start + 2]) == {"a", "b"} for start in range(0, 2 * blocks, 2))


@pytest.mark.parametrize(("beside_s", "blocks"), [(0.001, 9), (0.06, 5), (1.0, 4)])
def test_long_inferences_have_fewer_blocks_in_the_same_time(
    stage: Stage, beside_s: float, blocks: int
) -> None:
    """Seven more blocks of a second each would take minutes. A single hiccup is no long inference."""
    plan = replace(PLAN, waiting_s=0.51)
    hiccup = [[0.001]] * 3 + [[0.001, 0.2]] * 40
    waiting = stage.contestant("a", lambda _: hiccup, kind="device_queued", enqueue_share=0.99)
    beside = stage.contestant("b", lambda _: itertools.repeat([beside_s]), kind="device_queued")
    result = run_finals([waiting, beside], plan, rng(), builds=1)
    assert [len(build) for key in "ab" for build in result.blocks[key]] == [blocks] * 2


def test_an_undisturbed_block_is_found_late_at_the_hosts_pace(stage: Stage) -> None:
    """Another thread takes half of the host's core, for all blocks of a build but one."""

    def script(number: int) -> Iterable[Block]:
        yield [1 * MS]
        yield [1 * MS]
        for block in range(20):
            yield [1.5 * MS]  # the head
            yield [(1 if block == 15 + number else 1.5) * MS] * 5

    waiting = stage.contestant("a", script, kind="device_queued", enqueue_share=0.99)
    result = run_finals(
        [waiting, stage.contestant("b")], FinalsPlan(warmup_s=0.04, head_s=0.01), rng(), builds=3
    )
    assert result.latencies("a") == pytest.approx([1 * MS] * 3)


def test_the_order_is_that_of_the_generator() -> None:
    def logged(seed: int) -> list[tuple[str, int, str]]:
        stage = Stage()
        run_finals(stage("a", "b", "c", "d"), PLAN, random.Random(seed), builds=2)
        return stage.log

    assert logged(1) == logged(1)
    assert logged(1) != logged(2)


def test_all_are_built_before_any_is_measured(stage: Stage) -> None:
    run_finals(stage("a", "b"), PLAN, rng(), builds=2)
    for build in range(2):
        steps = [(key, what) for key, number, what in stage.log if number == build]
        order = "ab" if build % 2 == 0 else "ba"
        assert steps[:6] == [(key, what) for key in order for what in ("build", "warm", "warm")]
        assert {what for _key, what in steps[6:]} == {"head", "block"}


def test_each_is_built_first_as_often_as_any_other(stage: Stage) -> None:
    """What is built first lies elsewhere in memory, and was seen to be slower for that alone."""
    result = run_finals(stage("a", "b", "c"), PLAN, rng(), builds=3)
    run_finals(stage("a", "b", "c"), PLAN, rng(), builds=3, result=result)
    built = "".join(key for key, _number, what in stage.log if what == "build")
    assert built == "abccbaabc" + "cbaabccba"


def test_one_build_ends_before_the_next_begins(stage: Stage) -> None:
    run_finals(stage("a", "b"), PLAN, rng(), builds=3)
    numbers = [number for _key, number, _what in stage.log]
    assert numbers == sorted(numbers)


def test_the_head_of_a_block_is_discarded(stage: Stage) -> None:
    result = run_finals([stage.contestant("a", numbered(1))], PLAN, rng(), builds=2)
    assert result.blocks["a"] == [[[1 * MS] * 3] * 4, [[2 * MS] * 3] * 4]
    steps = [what for _key, _number, what in stage.log if what in ("head", "block")]
    assert steps == ["head", "block"] * 8


def test_short_inferences_are_batched(stage: Stage) -> None:
    run_finals([stage.contestant("a", lambda number: itertools.repeat([2.1e-6]))], PLAN, rng(), builds=1)
    (engine,) = stage.engines["a"]
    assert [batch for _seconds, batch in engine.calls] == [1, 1] + [10] * 8


@pytest.mark.parametrize(
    "error", [BuildRejectedError("no"), FinalistFailedError("inaccurate"), EngineFailedError("no")]
)
@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_a_contestant_that_cannot_be_built_again_drops_out(
    stage: Stage, fails_at: int, error: Exception
) -> None:
    contestants = [
        stage.contestant("a", numbered(1)),
        stage.contestant("b", numbered(2), fails_at=fails_at, error=error),
        stage.contestant("c", numbered(3)),
    ]
    result = run_finals(contestants, PLAN, rng(), builds=3)
    assert result.failures == {"b": error}
    assert result.builds("b") == 0
    assert set(result.blocks) == {"a", "c"}
    assert result.builds("a") == result.builds("c") == 3
    # It is left alone from then on, while the others are measured to the end.
    assert sum(key == "b" and what == "build" for key, _number, what in stage.log) == fails_at + 1
    assert all(sum(map(len, build)) == 12 for build in result.blocks["a"])
    assert stage.all_closed()


@pytest.mark.parametrize("call", [1, 2, 3, 7], ids=["warm-up", "head", "block", "later block"])
def test_a_contestant_that_fails_while_it_is_measured_drops_out(stage: Stage, call: int) -> None:
    def script(number: int) -> Iterable[Block]:
        if number < 1:
            return itertools.repeat([5 * MS])
        return itertools.chain([[5 * MS]] * call, [EngineFailedError("on purpose")])

    contestants = [stage.contestant("a"), stage.contestant("b", script), stage.contestant("c")]
    result = run_finals(contestants, PLAN, rng(), builds=3)
    assert set(result.failures) == {"b"}
    assert result.builds("a") == result.builds("c") == 3
    assert result.builds("b") == 0
    assert all(len(build) == PLAN.rounds for key in "ac" for build in result.blocks[key])
    assert stage.all_closed()


def test_when_all_fail_nothing_is_left(stage: Stage) -> None:
    contestants = [stage.contestant("a", fails_at=0), stage.contestant("b", fails_at=0)]
    result = run_finals(contestants, PLAN, rng(), builds=5)
    assert set(result.failures) == {"a", "b"}
    assert result.blocks == {}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a bug"), SystemExit(1)])
@pytest.mark.parametrize("where", ["build", "warm-up", "block"])
def test_engines_are_closed_whatever_happens(stage: Stage, error: BaseException, where: str) -> None:
    if where == "build":
        last = stage.contestant("b", fails_at=0, error=error)
    else:
        calls = {"warm-up": 1, "block": 3}[where]
        last = stage.contestant("b", lambda number: itertools.chain([[1 * MS]] * calls, [error]))
    with pytest.raises(type(error)):
        run_finals([stage.contestant("a"), last], PLAN, rng(), builds=3)
    assert stage.engines["a"]
    assert stage.all_closed()


def test_no_contestants_take_no_time() -> None:
    result = run_finals([], PLAN, rng(), builds=3)
    assert result.blocks == {}


def test_an_extension_adds_builds_to_those_that_are_there(stage: Stage) -> None:
    contestants = [stage.contestant("a", numbered(1)), stage.contestant("b", numbered(10))]
    result = run_finals(contestants, PLAN, rng(), builds=2)
    again = run_finals(contestants, PLAN, rng(), builds=3, result=result)
    assert again is result
    assert result.latencies("a") == pytest.approx([1 * MS, 2 * MS, 3 * MS, 4 * MS, 5 * MS])
    assert result.latencies("b") == pytest.approx([10 * MS, 11 * MS, 12 * MS, 13 * MS, 14 * MS])


def test_an_extension_of_some_keeps_pairs_aligned(stage: Stage) -> None:
    """The gate measures two of them again: pairs are builds that were interleaved with each other."""
    a, b, c = (
        stage.contestant("a", numbered(1)),
        stage.contestant("b", numbered(10)),
        stage.contestant("c", numbered(100)),
    )
    result = run_finals([a, b, c], PLAN, rng(), builds=2)
    run_finals([a, b], PLAN, rng(), builds=2, result=result)
    assert [result.builds(key) for key in "abc"] == [4, 4, 2]
    assert result.ratio("a", "b") == paired_ratio(
        result.latencies("a"), result.latencies("b")
    )  # all four pairs
    assert result.ratio("a", "c") == paired_ratio(result.latencies("a")[:2], result.latencies("c"))
    assert result.ratio("c", "a").builds == 2
    fresh = result.ratio("a", "b", skip_builds=2)
    assert fresh == paired_ratio(result.latencies("a")[2:], result.latencies("b")[2:])


def test_an_extension_leaves_out_who_failed(stage: Stage) -> None:
    contestants = [stage.contestant("a"), stage.contestant("b", fails_at=0)]
    result = run_finals(contestants, PLAN, rng(), builds=1)
    run_finals(contestants, PLAN, rng(), builds=1, result=result)
    assert sum(key == "b" for key, _number, _what in stage.log) == 1
    assert result.builds("a") == 2


@pytest.mark.parametrize(
    ("kind", "statistic"), [("host_wall", "p25"), ("device_queued", "median"), ("device_waited", "median")]
)
def test_each_clock_has_its_statistic(stage: Stage, kind: LatencyKind, statistic: str) -> None:
    def script(number: int) -> Iterable[Block]:
        return itertools.repeat([1 * MS, 2 * MS, 3 * MS, 4 * MS, 5 * MS])

    result = run_finals([stage.contestant("a", script, kind=kind)], PLAN, rng(), builds=1)
    assert (result.latency_kind, result.statistic) == (kind, statistic)
    assert result.latency("a") == pytest.approx({"p25": 2 * MS, "median": 3 * MS}[statistic])
    assert result.latencies("a", "p95")[0] == pytest.approx(5 * MS)


def test_figures_of_a_result() -> None:
    result = FinalsResult(blocks={"a": [[[1.0]], [[2.0]], [[3.0]]], "b": [[[2.0]]] * 3, "one": [[[5.0]]]})
    assert result.latency("a") == 2.0
    assert result.spread("a") == pytest.approx(0.5)
    assert result.spread("b") == 0.0
    low, high = result.interval("a")
    assert 0.0 <= low < 2.0 < high
    assert result.interval("b") == (2.0, 2.0)
    assert result.interval("one") == (0.0, math.inf)
    assert result.spread("one") is None
    assert result.ratio("one", "one").high == math.inf
    assert result.ratio("one", "one", known_spread=0.01).high < 1.1
    assert result.builds("absent") == 0
    assert result.latencies("absent") == []


def test_a_build_stands_by_its_quietest_block() -> None:
    quiet, disturbed = [1.0, 1.0, 1.1, 1.2], [1.4, 1.5, 1.6, 9.0]
    result = FinalsResult(blocks={"a": [[disturbed, quiet, disturbed], [disturbed, disturbed]]})
    assert result.latencies("a") == [pytest.approx(1.0), pytest.approx(1.475)]
    everything = sorted(disturbed + quiet + disturbed)
    assert result.latencies("a", "p25")[0] == pytest.approx(
        statistics.quantiles(everything, n=4, method="inclusive")[0]
    )
    assert result.latencies("a", "p95")[0] > 5, "the tail is that of all blocks"


def test_on_a_devices_clock_it_is_the_quietest_blocks_median() -> None:
    """An engine that waits for the host has bursts of the host in it."""
    result = FinalsResult(
        statistic="median", latency_kind="device_queued", blocks={"a": [[[1.0, 2.0, 9.0], [3.0, 3.0, 3.0]]]}
    )
    assert result.latencies("a") == [2.0]


def test_what_fails_in_looking_at_an_engine_costs_no_result() -> None:
    """All are measured and noted before the first is looked at."""
    seen: list[str] = []

    def inspect(key: str, engine: Engine) -> None:
        seen.append(f"inspected {key}")
        raise EngineFailedError("the profiler died")

    contestants = [
        Contestant(
            key,
            lambda: ScriptedEngine(itertools.repeat([0.001])),
            partial(lambda key, _engine: seen.append(f"measured {key}"), key),
            partial(inspect, key),
        )
        for key in ("a", "b")
    ]
    result = run_finals(contestants, FinalsPlan(builds=1, rounds=1), random.Random(0), builds=1)
    assert seen == ["measured a", "measured b", "inspected a", "inspected b"]
    assert result.failures == {}
    assert (result.builds("a"), result.builds("b")) == (1, 1)
