"""Engines that keep the device waiting: their latency is the pace of the host's core that enqueues them."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Collection
from contextlib import suppress

# trtexec warns from this share on: the device waits for the host.
_BOUND_FROM = 0.8

# Undisturbed cores differed by up to 1.18 in the loop, and disturbed ones took 1.4 to 2 times as long.
_SLOW = 1.25

# Of a machine with very many cores, so many are asked at most before a block; before the first, at least.
_MOST_ASKED = 16
_FIRST_ASKED = 4

# About 0.05 ms: cheap beside a block of 50 ms, and long beside what the clock costs.
_STEPS = 3000


def enqueue_bound(enqueue_share: float | None) -> bool:
    """Whether the device waits for the host, which takes most of the latency to enqueue.

    Args:
        enqueue_share: the host's time to enqueue over the device's to compute; None where there is none.
    """
    return enqueue_share is not None and enqueue_share > _BOUND_FROM


class CoreTurns:
    """Lets each block of an engine that keeps the device waiting start on another core, one that is not slow.

    A core of a shared machine is slow for a while when its sibling thread works for somebody else, and the
    scheduler, which sees nothing of that, leaves the thread that enqueues where it is: all blocks of a build
    may be slow. On a virtual machine with an H200 a loop took 0.15 to 0.21 ms in half of the blocks and 0.10
    to 0.12 ms in the others, and squeezenet's latency was 0.82 and 0.63 ms in them
    (``benchmarks/host_pace.py``). So a core is asked by such a loop before a block. It may become slow
    meanwhile; of several blocks the quietest counts.

    Args:
        loop: seconds of a loop of fixed length on the core that runs it.
    """

    def __init__(self, loop: Callable[[], float] | None = None) -> None:
        self._loop = loop or fixed_loop
        self._fastest_s = math.inf
        self._waiting: list[int] = []
        self._share: float | None = None

    def move(self) -> None:
        """Moves the calling thread to the next core that is not slow, and lets it go there.

        It is not pinned: where another thread wants that core, the scheduler finds it a better one.
        Does nothing before ``saw`` was told that the host is too slow, with one core, and where the system
        moves no threads.
        """
        usable = _usable() if enqueue_bound(self._share) else set()
        if len(usable) < 2:
            return
        try:
            with suppress(OSError):  # a core that went offline, or a policy: the scheduler's choice will do
                self._find(usable)
        finally:
            with suppress(OSError):
                os.sched_setaffinity(0, usable)

    def saw(self, enqueue_share: float) -> None:
        """Note the share of a block, for the next one."""
        self._share = enqueue_share

    def _find(self, usable: set[int]) -> None:
        asked: dict[int, float] = {}
        least = 1 if math.isfinite(self._fastest_s) else _FIRST_ASKED
        for number in range(1, min(len(usable), _MOST_ASKED) + 1):
            core = self._next(usable, asked)
            os.sched_setaffinity(0, {core})
            asked[core] = self._loop()
            self._fastest_s = min(self._fastest_s, asked[core])
            if number >= least and asked[core] <= _SLOW * self._fastest_s:
                return
        # All are slow now, or the fast ones were asked before it was known what is fast.
        os.sched_setaffinity(0, {min(asked, key=asked.__getitem__)})

    def _next(self, usable: set[int], asked: Collection[int]) -> int:
        """Each has its turn before one has another, in an order that nothing else follows."""
        self._waiting = [core for core in self._waiting if core in usable]
        if not self._waiting:
            others = sorted(usable.difference(asked))
            self._waiting = random.sample(others, len(others))
        return self._waiting.pop()


def fixed_loop() -> float:
    """Seconds of a loop of a fixed number of steps on the core that runs it: the shortest of three."""
    clock, shortest = time.perf_counter, math.inf
    for _ in range(3):
        begin = clock()
        for _ in range(_STEPS):
            pass
        shortest = min(shortest, clock() - begin)
    return shortest


def _usable() -> set[int]:
    """Cores of the calling thread; empty where the system does not tell."""
    try:
        return os.sched_getaffinity(0)
    except (AttributeError, OSError):
        return set()
