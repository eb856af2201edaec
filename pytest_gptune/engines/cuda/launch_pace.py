"""How fast the device starts small kernels, which a process can lose."""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Any

from pytest_gptune.engines.cuda.graph import Graph, capture
from pytest_gptune.engines.cuda.memory import DeviceBuffer
from pytest_gptune.engines.cuda.runtime import CudaError, call, driver_call

if TYPE_CHECKING:
    from pytest_gptune.engines.cuda.stream import Stream

# Adds one to a number in device memory: as short as a kernel is, and none can be left out. As PTX, which the
# driver compiles for whatever device there is, so that no compiler is needed.
_PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry count(.param .u64 number)
{
    .reg .u64 %at;
    .reg .u32 %value;
    ld.param.u64 %at, [number];
    cvta.to.global.u64 %at, %at;
    ld.global.u32 %value, [%at];
    add.u32 %value, %value, 1;
    st.global.u32 [%at], %value;
    ret;
}
\0"""

_KERNELS = 200
_REPLAYS = 10
_READINGS = 10

# On an H200 the graph takes 1.25 times as long once the pace is lost, and readings of it differ by 1 %.
_LOST = 1.08

# Clocks that rise after idling, and other work on the device, slow a reading as well, but not for long: the
# first readings go on until so many have brought nothing, and a slow one later is taken so many times again.
_PATIENCE = 5
_STEADY = 0.99


class LaunchPace:
    """A graph of small kernels, and the best time it took.

    Args:
        stream: of the current device; the graph is replayed on it, while nothing else is under way.

    Raises:
        CudaError: the driver cannot compile the kernel, or the device failed.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._number = DeviceBuffer(4)
        self._graph: Graph | None = None
        self._module: Any = None
        try:
            self._module = driver_call("cuModuleLoadData", _PTX)
            self._kernel = driver_call("cuModuleGetFunction", self._module, b"count")
            self._launch()
            stream.synchronize()
            self._graph = capture(stream, self._launch_all)
            self._best_s = self._first_readings()
        except BaseException:
            with contextlib.suppress(CudaError):  # what failed first is what is told
                self.close()
            raise

    def slowdown(self) -> float:
        """What the graph takes now over the best it ever took, from 1 on.

        Raises:
            CudaError: the device failed.
        """
        for _ in range(_PATIENCE):
            now_s = self._read()
            self._best_s = min(self._best_s, now_s)
            if now_s < _LOST * self._best_s:
                break
        return now_s / self._best_s

    @staticmethod
    def lost(slowdown: float) -> bool:
        """Whether it is beyond what readings differ by."""
        return slowdown >= _LOST

    def close(self) -> None:
        """Release the graph and its memory."""
        if self._graph is not None:
            self._graph.close()
            self._graph = None
        if self._module is not None:
            module, self._module = self._module, None
            driver_call("cuModuleUnload", module)
        self._number.close()

    def _launch(self) -> None:
        arguments = (self._number.pointer,), (ctypes.c_void_p,)
        driver_call("cuLaunchKernel", self._kernel, 1, 1, 1, 1, 1, 1, 0, self._stream.handle, arguments, 0)

    def _launch_all(self) -> None:
        for _ in range(_KERNELS):
            self._launch()

    def _first_readings(self) -> float:
        """The best reading, once as many as patience has were no better."""
        best_s, since = self._read(), 0
        while since < _PATIENCE:
            now_s = self._read()
            since = 0 if now_s < _STEADY * best_s else since + 1
            best_s = min(best_s, now_s)
        return best_s

    def _read(self) -> float:
        """Seconds of one replay: of several readings the shortest, which other work disturbed least."""
        assert self._graph is not None
        start, end = call("cudaEventCreate"), call("cudaEventCreate")
        shortest = float("inf")
        try:
            for _ in range(_READINGS):
                call("cudaEventRecord", start, self._stream.handle)
                for _ in range(_REPLAYS):
                    self._graph.launch(self._stream)
                call("cudaEventRecord", end, self._stream.handle)
                call("cudaEventSynchronize", end)
                shortest = min(shortest, call("cudaEventElapsedTime", start, end) / 1e3 / _REPLAYS)
        finally:
            for event in (start, end):
                call("cudaEventDestroy", event)
        return shortest
