"""Where an engine that keeps the device waiting is enqueued."""

from __future__ import annotations

import os

import pytest

from pytest_gptune.engines.host_pace import CoreTurns, enqueue_bound, fixed_loop


class Thread:
    """Where a thread may run on a machine with some cores, where it is, and how slow each core is."""

    def __init__(self, cores: set[int]) -> None:
        self.usable = set(cores)
        self.runs_on = min(cores)
        self.slow: dict[int, float] = {}
        self.asked: list[int] = []

    def get(self, pid: int) -> set[int]:
        assert pid == 0
        return set(self.usable)

    def set(self, pid: int, cores: set[int]) -> None:
        assert pid == 0
        self.usable = set(cores)
        if self.runs_on not in cores:
            self.runs_on = min(cores)

    def loop(self) -> float:
        assert self.usable == {self.runs_on}
        self.asked.append(self.runs_on)
        return self.slow.get(self.runs_on, 1.0) * 1e-4


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Thread:
    thread = Thread({2, 3, 5, 7})
    monkeypatch.setattr(os, "sched_getaffinity", thread.get, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", thread.set, raising=False)
    return thread


@pytest.fixture
def turns(thread: Thread) -> CoreTurns:
    turns = CoreTurns(thread.loop)
    turns.saw(0.95)
    return turns


def starts(turns: CoreTurns, thread: Thread, count: int) -> list[int]:
    """The core that each of some blocks starts on; the thread may run on all of them then."""
    found = []
    for _ in range(count):
        usable = set(thread.usable)
        turns.move()
        found.append(thread.runs_on)
        assert thread.usable == usable
    return found


@pytest.mark.parametrize(("share", "bound"), [(None, False), (0.0, False), (0.8, False), (0.81, True)])
def test_from_four_fifths_on_the_host_sets_the_pace(share: float | None, bound: bool) -> None:
    assert enqueue_bound(share) is bound


def test_each_block_has_another_core_until_all_had_one(turns: CoreTurns, thread: Thread) -> None:
    starts(turns, thread, 1)  # before the first one more cores are asked
    assert sorted(starts(turns, thread, 4)) == [2, 3, 5, 7]
    assert sorted(starts(turns, thread, 4)) == [2, 3, 5, 7]


def test_slow_cores_are_left_out_until_they_are_fast_again(turns: CoreTurns, thread: Thread) -> None:
    thread.slow = {2: 1.9, 5: 1.4}
    assert set(starts(turns, thread, 9)) == {3, 7}
    thread.slow = {3: 1.9, 7: 1.2}
    assert set(starts(turns, thread, 9)) == {2, 5, 7}


def test_of_cores_that_are_all_slow_the_fastest_is_taken(turns: CoreTurns, thread: Thread) -> None:
    starts(turns, thread, 2)
    thread.slow = {2: 1.9, 3: 1.7, 5: 1.5, 7: 1.6}
    assert starts(turns, thread, 3) == [5, 5, 5]


def test_of_very_many_cores_some_are_asked(turns: CoreTurns, thread: Thread) -> None:
    thread.usable = set(range(200))
    starts(turns, thread, 1)
    thread.slow = dict.fromkeys(range(200), 1.7)
    thread.asked.clear()
    starts(turns, thread, 20)
    assert len(thread.asked) == 20 * 16
    for start in range(0, len(thread.asked), 16):
        assert len(set(thread.asked[start : start + 16])) == 16


def test_an_engine_that_keeps_the_device_busy_stays_where_it_is(thread: Thread) -> None:
    turns = CoreTurns(thread.loop)
    starts(turns, thread, 2)  # nothing is known of it yet
    turns.saw(0.3)
    starts(turns, thread, 2)
    assert thread.asked == []


def test_one_core_is_no_choice(turns: CoreTurns, thread: Thread) -> None:
    thread.usable, thread.runs_on = {3}, 3
    assert starts(turns, thread, 2) == [3, 3]
    assert thread.asked == []


def test_cores_that_are_taken_away_meanwhile_are_not_used(turns: CoreTurns, thread: Thread) -> None:
    starts(turns, thread, 1)
    thread.usable, thread.runs_on = {3, 5}, 3
    assert set(starts(turns, thread, 8)) == {3, 5}


def test_a_loop_that_fails_leaves_all_cores(thread: Thread) -> None:
    def failing() -> float:
        raise ZeroDivisionError

    turns = CoreTurns(failing)
    turns.saw(1.0)
    with pytest.raises(ZeroDivisionError):
        turns.move()
    assert thread.usable == {2, 3, 5, 7}


@pytest.mark.parametrize("refused", [{2}, {2, 3, 5, 7}])
def test_a_system_that_refuses_costs_no_block(
    turns: CoreTurns, thread: Thread, monkeypatch: pytest.MonkeyPatch, refused: set[int]
) -> None:
    def refuse(pid: int, cores: set[int]) -> None:
        if len(cores) == 1 and cores <= refused:
            raise PermissionError("a policy")
        thread.set(pid, cores)

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    starts(turns, thread, 8)


def test_a_system_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    turns = CoreTurns()
    turns.saw(1.0)
    turns.move()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system moves no threads")
def test_the_real_thread_may_run_everywhere_afterwards() -> None:
    usable = os.sched_getaffinity(0)
    asked: list[set[int]] = []

    def loop() -> float:
        asked.append(os.sched_getaffinity(0))
        return 1e-4

    turns = CoreTurns(loop)
    turns.saw(1.0)
    turns.move()
    assert os.sched_getaffinity(0) == usable
    assert len(asked) == (min(len(usable), 4) if len(usable) > 1 else 0)
    assert all(len(cores) == 1 for cores in asked)


def test_the_fixed_loop_takes_time() -> None:
    assert 0 < min(fixed_loop() for _ in range(3)) < 0.05
