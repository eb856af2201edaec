"""CUDA graphs: what was enqueued once is launched again as one piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_gptune.engines.cuda.runtime import call, runtime
from pytest_gptune.engines.cuda.stream import Stream


class Graph:
    """A captured graph, ready to be launched; addresses and shapes are those of the capture."""

    def __init__(self, executable: Any) -> None:
        self._executable = executable

    def launch(self, stream: Stream) -> None:
        """Enqueue it on the stream; returns at once."""
        call("cudaGraphLaunch", self._executable, stream.handle)

    def close(self) -> None:
        """Destroy it."""
        if self._executable is not None:
            executable, self._executable = self._executable, None
            call("cudaGraphExecDestroy", executable)


def capture(stream: Stream, enqueue: Callable[[], object]) -> Graph:
    """Capture what ``enqueue`` puts on the stream, without running it.

    Enqueue once before: what is allocated or loaded at the first time cannot be captured.

    Raises:
        CudaError: something was enqueued that cannot be captured, and CUDA says what.
    """
    module = runtime()
    mode = module.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    call("cudaStreamBeginCapture", stream.handle, mode)
    try:
        enqueue()
    except BaseException:
        # The stream is of no use until the capture has ended; what failed first is what is told.
        _code, graph = module.cudaStreamEndCapture(stream.handle)
        module.cudaGetLastError()
        if graph is not None and int(graph):
            module.cudaGraphDestroy(graph)
        raise
    graph = call("cudaStreamEndCapture", stream.handle)
    try:
        executable = call("cudaGraphInstantiate", graph, 0)
    finally:
        call("cudaGraphDestroy", graph)
    return Graph(executable)
