"""Latency by device events, with runs queued back to back.

The device is kept busy with earlier samples while the host enqueues the next one. A sample is clean when the
device had not reached its first event by the time its last was enqueued: no gap of the host can be in it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from pytest_gptune.engines.cuda.runtime import call, check, runtime
from pytest_gptune.engines.cuda.stream import Stream
from pytest_gptune.engines.undisturbed import undisturbed

# Events have a resolution of 0.5 us and cost the device about 1 us each; over 1 ms that is below 0.2 %.
SHORTEST_SAMPLE_S = 1e-3

# CUDA takes about 1,000 launches ahead and then makes the host wait, which would be taken for enqueue time.
_MOST_LAUNCHES = 256

# Samples in the queue: one that runs, and two ahead of it.
_DEPTH = 3


@dataclass(frozen=True)
class DeviceSamples:
    """Samples of one block.

    Attributes:
        latencies_s: seconds per inference on the device's clock, in the order taken, at least one.
        enqueue_s: seconds per inference that the host needs to enqueue.
        ahead: the queue was ahead of the device in every sample that is given; otherwise the host was too
            slow for that, and its gaps are in the samples.
    """

    latencies_s: tuple[float, ...]
    enqueue_s: float
    ahead: bool = True

    @property
    def enqueue_share(self) -> float:
        """Enqueue time over the median latency."""
        return self.enqueue_s / max(median(self.latencies_s), 1e-12)


def launches_for(latency_s: float) -> int:
    """Inferences per pair of events, so that a sample is long against the cost of the events."""
    return max(1, min(_MOST_LAUNCHES, math.ceil(SHORTEST_SAMPLE_S / max(latency_s, 1e-9))))


def sample_queued(
    stream: Stream,
    enqueue: Callable[[], object],
    seconds: float,
    at_most: int,
    batch: int = 1,
    *,
    flush: Callable[[], object] | None = None,
    observe: Callable[[], object] | None = None,
) -> DeviceSamples:
    """Time what ``enqueue`` puts on the stream, again and again for ``seconds``.

    Args:
        stream: everything that is timed is enqueued on it, or joined to it.
        enqueue: one inference; it returns before the device has finished.
        seconds: wall time to spend; at least one sample is taken.
        at_most: the most samples to take.
        batch: inferences per pair of events; a sample is their mean.
        flush: enqueued before each sample, outside of its events; wants a batch of 1.
        observe: called once, when the last samples are queued and the device is still busy.

    Raises:
        CudaError: the device failed.
    """
    loop = _Loop(stream, enqueue, batch, flush)
    try:
        with undisturbed(), _profiled():
            deadline = time.perf_counter() + seconds
            loop.one()
            while loop.taken < at_most and time.perf_counter() < deadline:
                loop.one()
            if observe is not None:
                observe()
            loop.drain()
    finally:
        loop.close()
    return loop.result()


class _Loop:
    """The queue: pairs of events on the stream, settled from the oldest on."""

    def __init__(
        self, stream: Stream, enqueue: Callable[[], object], batch: int, flush: Callable[[], object] | None
    ) -> None:
        self._module = runtime()
        self._stream = stream.handle
        self._enqueue = enqueue
        self._batch = batch
        self._flush = flush
        self._made: list[Any] = []
        self._free = [(self._event(), self._event()) for _ in range(_DEPTH)]
        self._pending: deque[tuple[Any, Any, bool]] = deque()
        self._latencies: list[tuple[float, bool]] = []
        self._enqueue_s: list[float] = []
        self.taken = 0

    def _event(self) -> Any:
        event = call("cudaEventCreate")
        self._made.append(event)
        return event

    def one(self) -> None:
        """Enqueue one sample; waits for the oldest where the queue is full."""
        if not self._free:
            self._settle()
        start, end = self._free.pop()
        module, enqueue, clock = self._module, self._enqueue, time.perf_counter
        if self._flush is not None:
            self._flush()
        check("cudaEventRecord", module.cudaEventRecord(start, self._stream)[0])
        begin = clock()
        for _ in range(self._batch):
            enqueue()
        spent = clock() - begin
        check("cudaEventRecord", module.cudaEventRecord(end, self._stream)[0])
        self._pending.append((start, end, not self._reached(start)))
        self._enqueue_s.append(spent / self._batch)
        self.taken += 1

    def _reached(self, event: Any) -> bool:
        code = self._module.cudaEventQuery(event)[0]
        if int(code) == int(self._module.cudaError_t.cudaErrorNotReady):
            return False
        check("cudaEventQuery", code)
        return True

    def _settle(self) -> None:
        start, end, clean = self._pending.popleft()
        check("cudaEventSynchronize", self._module.cudaEventSynchronize(end)[0])
        code, milliseconds = self._module.cudaEventElapsedTime(start, end)
        check("cudaEventElapsedTime", code)
        self._latencies.append((milliseconds * 1e-3 / self._batch, clean))
        self._free.append((start, end))

    def drain(self) -> None:
        """Wait for all that is queued."""
        while self._pending:
            self._settle()

    def result(self) -> DeviceSamples:
        clean = tuple(latency for latency, is_clean in self._latencies if is_clean)
        # The first sample finds no work before it, and a hiccup of the host may expose a few: they are left
        # out. Where most are exposed, waiting for the host is how this engine runs.
        ahead = 2 * len(clean) >= max(len(self._latencies) - 1, 1)
        # The first found an empty queue, so it tells when later ones had to wait for room in it.
        enqueue_s = min(self._enqueue_s[0], median(self._enqueue_s))
        return DeviceSamples(
            clean if ahead else tuple(latency for latency, _ in self._latencies), enqueue_s, ahead
        )

    def close(self) -> None:
        """Destroy the events; what failed before is told, not what fails here."""
        for event in self._made:
            self._module.cudaEventDestroy(event)


@contextmanager
def _profiled() -> Iterator[None]:
    """Marks the timed region for Nsight Systems (``--capture-range=cudaProfilerApi``)."""
    call("cudaProfilerStart")
    try:
        yield
    except BaseException:
        runtime().cudaProfilerStop()  # what failed first is what is told
        raise
    call("cudaProfilerStop")
