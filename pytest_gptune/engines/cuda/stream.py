"""Streams, and those that the engines of a process share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gptune.engines.cuda.runtime import call, runtime

if TYPE_CHECKING:
    from pytest_gptune.engines.cuda.device import Device


class Stream:
    """A stream of the current device that does not wait for the default stream.

    Raises:
        CudaError: it cannot be made.
    """

    def __init__(self) -> None:
        self._stream: Any = call("cudaStreamCreateWithFlags", runtime().cudaStreamNonBlocking)

    @property
    def handle(self) -> int:
        """The ``cudaStream_t`` as a number, as other libraries take it."""
        return int(self._stream)

    def synchronize(self) -> None:
        """Wait until all that was enqueued is done; raises CudaError for what failed meanwhile."""
        call("cudaStreamSynchronize", self._stream)

    def close(self) -> None:
        """Destroy it; CUDA does so once its work is done."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            call("cudaStreamDestroy", stream)


class Streams:
    """The streams of a process, by device: engines that come one after another run on the same ones.

    As long as a process has used one stream alone, a device starts the kernels of a graph faster than after
    a second one was used, even where that is gone: on an H200 by 0.17 us a kernel, 6 to 9 % of networks at
    batch 1 (docs/cuda.md). An application has one session and its stream; so has every engine that is
    measured, the first of a process and the last.
    """

    def __init__(self) -> None:
        self._made: dict[str, list[Stream]] = {}

    def of(self, device: Device) -> Stream:
        """The stream that engines on ``device``, which has to be the current one, run on."""
        return self._first(device, 1)[0]

    def auxiliary(self, device: Device, count: int) -> list[Stream]:
        """``count`` streams beside it, for engines that run layers side by side."""
        return self._first(device, 1 + count)[1:]

    def _first(self, device: Device, count: int) -> list[Stream]:
        made = self._made.setdefault(device.uuid, [])
        while len(made) < count:
            made.append(Stream())
        return made[:count]
