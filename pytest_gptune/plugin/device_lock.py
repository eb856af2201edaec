"""One at a time on a device: engines that run at once measure each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pytest_gptune.engines.base import Backend, BuildRequest
from pytest_gptune.storage import cache_folder, locked

# A run that is before us may be a long one.
_TIMEOUT_S = 6 * 3600.0

# Another route of the same run is done by then, so that whoever holds the device is somebody else.
_SAY_AFTER_S = 5.0


class DeviceLock:
    """The user's devices, for building, checking and timing.

    Args:
        tell: is given a line for the reader, once, when another run holds the device; None tells nobody.

    Attributes:
        waited_s: seconds spent waiting so far, which are no route's.
    """

    def __init__(self, tell: Callable[[str], object] | None = None) -> None:
        self._tell = tell
        self._told = False
        self.waited_s = 0.0

    @contextmanager
    def held(self, backend: Backend, request: BuildRequest) -> Iterator[None]:
        """Hold the device of a request.

        Raises:
            StorageError: another process has held it for six hours.
        """
        device = str(request.options.get("device", "0"))
        start = time.perf_counter()
        path = cache_folder() / f"device-{backend.name}-{device}"
        with locked(path, _TIMEOUT_S, after_s=_SAY_AFTER_S, waiting=lambda: self._say(device)):
            self.waited_s += time.perf_counter() - start
            yield

    def _say(self, device: str) -> None:
        if self._tell is not None and not self._told:
            self._told = True
            self._tell(
                f"waiting for device {device}: another run of this user is on it, and both at once would "
                "measure each other"
            )
