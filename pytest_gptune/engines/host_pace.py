"""Engines that keep the device waiting: their latency is the pace of the host's core that enqueues them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# trtexec warns from this share on: the device waits for the host.
_BOUND_FROM = 0.8


def enqueue_bound(enqueue_share: float | None) -> bool:
    """Whether the device waits for the host, which takes most of the latency to enqueue.

    Args:
        enqueue_share: the host's time to enqueue over the device's to compute; None where there is none.
    """
    return enqueue_share is not None and enqueue_share > _BOUND_FROM


class CoreTurns:
    """Lets each block of an engine that keeps the device waiting be enqueued from another core.

    A core of a shared machine can be slow for seconds, since its sibling thread works for somebody else, and
    the scheduler leaves the thread that enqueues where it is: all blocks of a build would be slow. On a
    virtual machine with an H200 cores did a fixed loop in 0.11 or in 0.2 ms, half of them at a time, and
    squeezenet took 0.66 or 1.05 ms with them. From several cores, some block is undisturbed.
    """

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._share: float | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Pins the calling thread to the next core of those it may use, until the block is over.

        Does nothing before ``saw`` was told that the host is too slow, with one core, and where the system
        pins no threads.
        """
        usable = _usable() if enqueue_bound(self._share) else set()
        if len(usable) < 2:
            yield
            return
        self._waiting = [core for core in self._waiting if core in usable]
        if not self._waiting:
            # In random order: what else is measured on this machine does not follow it.
            self._waiting = random.sample(sorted(usable), len(usable))
        try:
            with suppress(OSError):  # a core that went offline, or a policy: the scheduler's choice will do
                os.sched_setaffinity(0, {self._waiting.pop()})
            yield
        finally:
            with suppress(OSError):
                os.sched_setaffinity(0, usable)

    def saw(self, enqueue_share: float) -> None:
        """Note the share of a block, for the next one."""
        self._share = enqueue_share


def _usable() -> set[int]:
    """Cores of the calling thread; empty where the system does not tell."""
    try:
        return os.sched_getaffinity(0)
    except (AttributeError, OSError):
        return set()
