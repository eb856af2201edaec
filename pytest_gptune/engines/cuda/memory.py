"""Device memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
        self._copy(self._pointer, source.ctypes.data, source.nbytes, "cudaMemcpyHostToDevice", stream)

    def copy_to_host(self, array: np.ndarray, stream: Stream) -> None:
        """Fill a C-contiguous array from the start of the buffer, and wait until it is there.

        Raises:
            CudaError: the array is larger than the buffer or not contiguous, or the copy failed.
        """
        self._check_size(array.nbytes)
        if not (array.flags.c_contiguous and array.flags.writeable):
            raise CudaError("a copy to the host needs a contiguous, writeable array")
        self._copy(array.ctypes.data, self._pointer, array.nbytes, "cudaMemcpyDeviceToHost", stream)

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

    @staticmethod
    def _copy(target: int, source: int, nbytes: int, kind: str, stream: Stream) -> None:
        if nbytes:
            direction: Any = getattr(runtime().cudaMemcpyKind, kind)
            call("cudaMemcpyAsync", target, source, nbytes, direction, stream.handle)
        stream.synchronize()


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
