"""Streams."""

from __future__ import annotations

from typing import Any

from pytest_gptune.engines.cuda.runtime import call, runtime


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
