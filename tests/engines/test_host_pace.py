"""From which core an engine that keeps the device waiting is enqueued."""

from __future__ import annotations

import os

import pytest

from pytest_gptune.engines.host_pace import CoreTurns, enqueue_bound, fixed_loop


class Thread:
    """The affinity of a thread on a machine with some cores, and how slow each is."""

    def __init__(self, cores: set[int]) -> None:
        self.cores = cores
        self.history: list[set[int]] = []
        self.slow: dict[int, float] = {}

    def loop(self) -> float:
        (core,) = self.cores
        return self.slow.get(core, 1.0) * 1e-4

    def get(self, pid: int) -> set[int]:
        assert pid == 0
        return set(self.cores)

    def set(self, pid: int, cores: set[int]) -> None:
        assert pid == 0
        self.cores = set(cores)
        self.history.append(self.cores)


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Thread:
    thread = Thread({2, 3, 5, 7})
    monkeypatch.setattr(os, "sched_getaffinity", thread.get, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", thread.set, raising=False)
    return thread


def blocks(turns: CoreTurns, thread: Thread, count: int) -> list[set[int]]:
    found = []
    for _ in range(count):
        with turns.turn():
            found.append(thread.cores)
    return found


@pytest.mark.parametrize(("share", "bound"), [(None, False), (0.0, False), (0.8, False), (0.81, True)])
def test_from_four_fifths_on_the_host_sets_the_pace(share: float | None, bound: bool) -> None:
    assert enqueue_bound(share) is bound


def test_each_block_has_another_core_until_all_had_one(thread: Thread) -> None:
    turns = CoreTurns(thread.loop)
    turns.saw(0.95)
    blocks(turns, thread, 1)  # before the first one more cores are asked
    first, second = blocks(turns, thread, 4), blocks(turns, thread, 4)
    for cores in first, second:
        assert sorted(next(iter(core)) for core in cores) == [2, 3, 5, 7]
        assert all(len(core) == 1 for core in cores)
    assert thread.cores == {2, 3, 5, 7}


def test_slow_cores_are_left_out_until_they_are_fast_again(thread: Thread) -> None:
    thread.slow = {2: 1.9, 5: 1.6}
    turns = CoreTurns(thread.loop)
    turns.saw(0.95)
    assert {next(iter(core)) for core in blocks(turns, thread, 9)} == {3, 7}
    thread.slow = {3: 1.9}
    assert {next(iter(core)) for core in blocks(turns, thread, 9)} == {2, 5, 7}


def test_of_cores_that_are_all_slow_the_fastest_is_taken(thread: Thread) -> None:
    turns = CoreTurns(thread.loop)
    turns.saw(0.95)
    blocks(turns, thread, 2)
    thread.slow = {2: 1.9, 3: 1.7, 5: 1.5, 7: 1.6}
    assert blocks(turns, thread, 3) == [{5}] * 3


def test_of_very_many_cores_some_are_asked(thread: Thread) -> None:
    thread.cores = set(range(200))
    turns = CoreTurns(thread.loop)
    turns.saw(0.95)
    blocks(turns, thread, 1)
    thread.slow = dict.fromkeys(range(200), 1.7)
    thread.history.clear()
    blocks(turns, thread, 1)
    assert len(thread.history) == 16 + 2  # and the one that is taken, and all of them afterwards


def test_an_engine_that_keeps_the_device_busy_stays_where_it_is(thread: Thread) -> None:
    turns = CoreTurns(thread.loop)
    blocks(turns, thread, 2)  # nothing is known of it yet
    turns.saw(0.3)
    blocks(turns, thread, 2)
    assert thread.history == []


def test_one_core_is_no_choice(thread: Thread) -> None:
    thread.cores = {3}
    turns = CoreTurns(thread.loop)
    turns.saw(1.0)
    assert blocks(turns, thread, 2) == [{3}, {3}]
    assert thread.history == []


def test_cores_that_are_taken_away_meanwhile_are_not_used(thread: Thread) -> None:
    turns = CoreTurns(thread.loop)
    turns.saw(1.0)
    blocks(turns, thread, 1)
    thread.cores = {3, 5}
    for core in blocks(turns, thread, 8):
        assert core < {3, 5}
    assert thread.cores == {3, 5}


def test_a_failure_in_a_block_leaves_all_cores(thread: Thread) -> None:
    turns = CoreTurns(thread.loop)
    turns.saw(1.0)
    with pytest.raises(ZeroDivisionError), turns.turn():
        raise ZeroDivisionError
    assert thread.cores == {2, 3, 5, 7}


def test_a_system_that_refuses_costs_no_block(thread: Thread, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, cores: set[int]) -> None:
        raise PermissionError("a policy")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    turns = CoreTurns(thread.loop)
    turns.saw(1.0)
    assert blocks(turns, thread, 1) == [{2, 3, 5, 7}]


def test_a_system_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    turns = CoreTurns()
    turns.saw(1.0)
    with turns.turn():
        pass


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system pins no threads")
def test_the_real_thread_is_pinned_and_let_go() -> None:
    before = os.sched_getaffinity(0)
    turns = CoreTurns()
    turns.saw(1.0)
    with turns.turn():
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before


def test_the_fixed_loop_takes_time() -> None:
    assert 0 < min(fixed_loop() for _ in range(3)) < 0.05
