"""Messages between the controlling process and its worker: a JSON header, then the bytes of each array.

Nothing is pickled: a worker may run another interpreter, and what it sends is data, never code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

Arrays = Mapping[str, "np.ndarray"]


class Connection(Protocol):
    """What is used of ``multiprocessing.connection.Connection``."""

    def send_bytes(self, buf: Any) -> None:
        """Send one frame."""

    def recv_bytes(self) -> bytes:
        """Receive one frame; EOFError when the other side is gone."""


def send(connection: Connection, header: Mapping[str, Any], arrays: Arrays | None = None) -> None:
    """Send a header and arrays by name."""
    import numpy as np

    described = []
    buffers = []
    for name, array in (arrays or {}).items():
        flat = np.ascontiguousarray(array)
        described.append({"name": name, "dtype": array.dtype.name, "shape": list(array.shape)})
        buffers.append(flat.reshape(-1).view(np.uint8) if flat.size else None)
    connection.send_bytes(json.dumps({"header": header, "arrays": described}).encode())
    for buffer in buffers:
        if buffer is not None:
            connection.send_bytes(buffer.data)


def receive(connection: Connection) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Receive a header and arrays by name; the arrays own their data.

    Raises:
        EOFError: the other side is gone.
    """
    import numpy as np

    message = json.loads(connection.recv_bytes())
    arrays: dict[str, np.ndarray] = {}
    for item in message["arrays"]:
        dtype, shape = dtype_named(item["dtype"]), tuple(item["shape"])
        if 0 in shape:
            arrays[item["name"]] = np.zeros(shape, dtype)
            continue
        # A bytearray, so that the array is writable without another copy.
        frame = bytearray(connection.recv_bytes())
        arrays[item["name"]] = np.frombuffer(frame, dtype).reshape(shape)
    return message["header"], arrays


def dtype_named(name: str) -> np.dtype[Any]:
    """The dtype with this name, of NumPy or of ml_dtypes."""
    import numpy as np

    try:
        dtype: np.dtype[Any] = np.dtype(name)
    except TypeError:
        import ml_dtypes

        dtype = np.dtype(getattr(ml_dtypes, name))
    return dtype
