"""Device memory, and copies between it and the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gptune.engines.cuda.runtime import CudaError, call, runtime

if TYPE_CHECKING:
    import numpy as np

    from pytest_gptune.engines.cuda.device import Device
    from pytest_gptune.engines.cuda.stream import Stream

# NaN in every float type, -1 in signed integers: what is left of it in an output is seen.
POISON = 0xFF


class DeviceBuffer:
    """Memory of the current device; its address does not change.

    Args:
        nbytes: its size in bytes; 0 is allowed and has an address as well.

    Raises:
        EngineOutOfMemoryError: the device has not that much.
        CudaError: CUDA refuses otherwise.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        # CUDA gives no address for 0 bytes, and libraries take a null address for a missing tensor.
        self._pointer = int(call("cudaMalloc", max(nbytes, 1)))

    @property
    def pointer(self) -> int:
        """Its address on the device."""
        return self._pointer

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self._nbytes

    def copy_from_host(self, array: np.ndarray, stream: Stream) -> None:
        """Copy an array of any dtype to the start of the buffer, and wait until it is there.

        Raises:
            CudaError: it is larger than the buffer, or the copy failed.
        """
        import numpy as np

        source = np.ascontiguousarray(array)
        self._check_size(source.nbytes)
        if source.nbytes:
            call(
                "cudaMemcpyAsync",
                self._pointer,
                source.ctypes.data,
                source.nbytes,
                _kind("HostToDevice"),
                stream.handle,
            )
        stream.synchronize()

    def copy_to_host(self, array: np.ndarray, stream: Stream) -> None:
        """Fill a C-contiguous array from the start of the buffer, and wait until it is there.

        Raises:
            CudaError: the array is larger than the buffer or not contiguous, or the copy failed.
        """
        self._check_size(array.nbytes)
        if not (array.flags.c_contiguous and array.flags.writeable):
            raise CudaError("a copy to the host needs a contiguous, writeable array")
        copy_to_host(array, self._pointer, stream)

    def poison(self, stream: Stream) -> None:
        """Enqueue filling it with bits of all ones: an output that is not written stays NaN or -1."""
        if self._nbytes:
            call("cudaMemsetAsync", self._pointer, POISON, self._nbytes, stream.handle)

    def close(self) -> None:
        """Free it."""
        if self._pointer:
            pointer, self._pointer = self._pointer, 0
            call("cudaFree", pointer)

    def _check_size(self, nbytes: int) -> None:
        if nbytes > self._nbytes:
            raise CudaError(f"an array of {nbytes} bytes does not fit a device buffer of {self._nbytes}")


def copy_to_host(array: np.ndarray, pointer: int, stream: Stream) -> None:
    """Fill a C-contiguous array from an address on the device, and wait until it is there.

    Raises:
        CudaError: the copy failed.
    """
    if array.nbytes:
        kind = _kind("DeviceToHost")
        call("cudaMemcpyAsync", array.ctypes.data, pointer, array.nbytes, kind, stream.handle)
    stream.synchronize()


class Region(NamedTuple):
    """Memory of the device that a tensor takes: of a buffer that is larger, its beginning."""

    pointer: int
    nbytes: int


class Transfers:
    """Copies of the inputs to the device and of the outputs back, from and to pinned memory of the host.

    Args:
        inputs: what is filled before an inference, with what it holds now.
        outputs: gives what is copied to the host after an inference. It is asked now and after each one:
            an inference may allocate its outputs.
        stream: the copies lie on it, around what is enqueued between.

    Raises:
        EngineOutOfMemoryError: the host has not as much memory that can be pinned.
        CudaError: CUDA refuses otherwise.
    """

    def __init__(
        self, inputs: Sequence[Region], outputs: Callable[[], Sequence[Region]], stream: Stream
    ) -> None:
        self._stream = stream
        self._outputs = outputs
        self._pinned: list[int] = []
        try:
            self._in = [(region, self._pin(region.nbytes)) for region in inputs]
            self._out = [Region(self._pin(region.nbytes), region.nbytes) for region in outputs()]
            for region, host in self._in:
                self._copy(host, region.pointer, region.nbytes, "DeviceToHost")
            stream.synchronize()
        except BaseException:
            self.close()
            raise

    def around(self, enqueue: Callable[[], object]) -> Callable[[], object]:
        """An inference with its copies, all enqueued; CudaError where its outputs do not fit any more."""

        def whole() -> None:
            for region, host in self._in:
                self._copy(region.pointer, host, region.nbytes, "HostToDevice")
            enqueue()
            for region, place in zip(self._outputs(), self._out, strict=True):
                if region.nbytes > place.nbytes:
                    raise CudaError(f"an output takes {region.nbytes} bytes, and took {place.nbytes} before")
                self._copy(place.pointer, region.pointer, region.nbytes, "DeviceToHost")

        return whole

    def close(self) -> None:
        """Free the pinned memory."""
        while self._pinned:
            call("cudaFreeHost", self._pinned.pop())

    def _pin(self, nbytes: int) -> int:
        pointer = int(call("cudaMallocHost", max(nbytes, 1)))
        self._pinned.append(pointer)
        return pointer

    def _copy(self, target: int, source: int, nbytes: int, direction: str) -> None:
        if nbytes:
            call("cudaMemcpyAsync", target, source, nbytes, _kind(direction), self._stream.handle)


def _kind(direction: str) -> Any:
    return getattr(runtime().cudaMemcpyKind, f"cudaMemcpy{direction}")


class L2Flush:
    """Evicts what the device's L2 cache holds, for latencies of a cold cache.

    Args:
        device: twice its L2 is written.
        stream: what is flushed lies on it, before what is enqueued next.
    """

    def __init__(self, device: Device, stream: Stream) -> None:
        self._buffer = DeviceBuffer(2 * device.l2_bytes)
        self._stream = stream

    def __call__(self) -> None:
        """Enqueue it; returns at once."""
        call("cudaMemsetAsync", self._buffer.pointer, 0, self._buffer.nbytes, self._stream.handle)

    def close(self) -> None:
        """Free its buffer."""
        self._buffer.close()
