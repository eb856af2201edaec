"""Messages between the controlling process and its worker: a JSON header, and the bytes of arrays.

Nothing is pickled: a worker may run another interpreter, and what it sends is data, never code. Small arrays
follow the header through the pipe; large ones are laid into shared memory (``arena``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from pytest_gptune.engines.base import EngineFailedError
from pytest_gptune.engines.worker import arena

if TYPE_CHECKING:
    import numpy as np

Arrays = Mapping[str, "np.ndarray"]

# Gives the bytes of the shared block with this name.
Attach = Callable[[str], memoryview]


class Connection(Protocol):
    """What is used of ``multiprocessing.connection.Connection``."""

    def send_bytes(self, buf: Any) -> None:
        """Send one frame."""

    def recv_bytes(self) -> bytes:
        """Receive one frame; EOFError when the other side is gone."""


def send(
    connection: Connection,
    header: Mapping[str, Any],
    arrays: Arrays | None = None,
    shared: tuple[str, memoryview] | None = None,
) -> None:
    """Send a header and arrays by name.

    Args:
        connection: the pipe.
        header: plain data.
        arrays: go through the pipe, unless ``shared`` gives a block that is large enough for them.
        shared: name and bytes of that block.
    """
    given = arrays or {}
    described, _ = arena.layout(given)
    message = {"header": header, "arrays": described, "block": shared[0] if shared else None}
    if shared:
        arena.write(shared[1], given, described)
        connection.send_bytes(json.dumps(message).encode())
        return
    connection.send_bytes(json.dumps(message).encode())
    if not given:
        return  # an interpreter without NumPy can still say what it lacks
    import numpy as np

    for array in given.values():
        if array.size:
            connection.send_bytes(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def receive(connection: Connection, attach: Attach) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Receive a header and arrays by name; the arrays own their data.

    Raises:
        EOFError: the other side is gone.
    """
    message = json.loads(connection.recv_bytes())
    arrays: dict[str, np.ndarray] = {}
    if not message["arrays"]:
        return message["header"], arrays
    import numpy as np

    for item in message["arrays"]:
        dtype, shape = dtype_named(item["dtype"]), tuple(item["shape"])
        if 0 in shape:
            arrays[item["name"]] = np.zeros(shape, dtype)
        elif message["block"]:
            arrays[item["name"]] = arena.read(attach(message["block"]), item, dtype)
        else:
            # A bytearray, so that the array is writable without another copy.
            frame = bytearray(connection.recv_bytes())
            arrays[item["name"]] = np.frombuffer(frame, dtype).reshape(shape)
    return message["header"], arrays


def sendable(arrays: Arrays) -> dict[str, np.ndarray]:
    """The arrays as they can cross: their bytes are sent as they are, and their dtype by its name.

    Raises:
        EngineFailedError: an array is of text, of Python objects or of records.
    """
    import numpy as np

    ready: dict[str, np.ndarray] = {}
    for name, given in arrays.items():
        array = np.asarray(given)
        native = array.dtype.newbyteorder("=")
        try:
            crosses = not native.hasobject and dtype_named(native.name) == native
        except (AttributeError, TypeError):
            crosses = False
        if not crosses:
            raise EngineFailedError(
                f"'{name}' has element type {array.dtype}, which is no number's",
                mend="let the model take and return tensors of numbers only",
            )
        ready[name] = array.astype(native, copy=False)
    return ready


def dtype_named(name: str) -> np.dtype[Any]:
    """The dtype with this name, of NumPy or of ml_dtypes."""
    import numpy as np

    try:
        dtype: np.dtype[Any] = np.dtype(name)
    except TypeError:
        import ml_dtypes

        dtype = np.dtype(getattr(ml_dtypes, name))
    return dtype
