"""Large tensors cross through shared memory: one copy in and one out, where a pipe takes four.

The controlling process makes the memory and removes it, so that nothing is left when a worker is killed. One
block serves all messages of a worker, one after another, and grows when a larger one comes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

# Below this the pipe is as fast: a block has to be mapped and its pages touched.
SMALLEST = 1 << 20

_ALIGNMENT = 64


class Arena:
    """A block of shared memory on the side that owns it."""

    def __init__(self) -> None:
        self._block: SharedMemory | None = None

    def reserve(self, size: int) -> str:
        """The name of a block of at least ``size`` bytes."""
        if self._block is None or self._block.size < size:
            self.close()
            self._block = SharedMemory(create=True, size=size)
        return self._block.name

    @property
    def buffer(self) -> memoryview:
        """The block's bytes."""
        return _bytes_of(self._block)

    def close(self) -> None:
        """Remove the block."""
        if self._block is not None:
            self._block.close()
            with contextlib.suppress(FileNotFoundError):
                self._block.unlink()
            self._block = None


class Attachment:
    """The same block on the other side; attached once, and again when it has grown."""

    def __init__(self) -> None:
        self._block: SharedMemory | None = None

    def buffer(self, name: str) -> memoryview:
        """The bytes of the block called ``name``."""
        if self._block is None or self._block.name.lstrip("/") != name.lstrip("/"):
            if self._block is not None:
                self._block.close()
            self._block = _attach(name)
        return _bytes_of(self._block)


def _bytes_of(block: SharedMemory | None) -> memoryview:
    assert block is not None
    assert block.buf is not None
    return block.buf


def layout(arrays: Mapping[str, np.ndarray]) -> tuple[list[dict[str, Any]], int]:
    """Name, dtype, shape and offset of each array in a block, and the bytes they take in all."""
    described, end = [], 0
    for name, array in arrays.items():
        described.append({"name": name, "dtype": array.dtype.name, "shape": list(array.shape), "offset": end})
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    return described, end


def write(
    buffer: memoryview, arrays: Mapping[str, np.ndarray], described: Sequence[Mapping[str, Any]]
) -> None:
    """Copy the arrays to their places."""
    import numpy as np

    for item in described:
        array = np.ascontiguousarray(arrays[item["name"]])
        if array.size:
            target = np.frombuffer(buffer, np.uint8, array.nbytes, item["offset"])
            target[:] = array.reshape(-1).view(np.uint8)


def read(buffer: memoryview, item: Mapping[str, Any], dtype: np.dtype[Any]) -> np.ndarray:
    """A copy of one array: the block serves the next message."""
    import numpy as np

    shape = tuple(item["shape"])
    count = int(np.prod(shape, dtype=np.int64))
    array: np.ndarray = np.frombuffer(buffer, dtype, count, item["offset"]).reshape(shape).copy()
    return array


def _attach(name: str) -> SharedMemory:
    if sys.version_info >= (3, 13):
        return SharedMemory(name, track=False)
    block = SharedMemory(name)
    # Before 3.13 attaching registers the block as if it were this process's to remove (bpo-38119).
    from multiprocessing import resource_tracker

    resource_tracker.unregister(getattr(block, "_name"), "shared_memory")  # noqa: B009 - untyped there
    return block
