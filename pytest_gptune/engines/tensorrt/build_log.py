"""What the builder says and how far it is: kept for the route, and echoed for a process that dies.

TensorRT takes one logger per process, the first it is given, and refers to it from then on: a process in
which it was collected was seen to hang. So there is one for each module, for as long as the process lives.
"""

from __future__ import annotations

import functools
import sys
import time
from collections import deque
from typing import Any

from pytest_gptune.engines.base import EngineFailedError

_KEPT = 200
_TAIL = 6
_SERIOUS = ("INTERNAL_ERROR", "ERROR", "WARNING")
_PROGRESS_S = 1.0


@functools.cache
def build_log(trt: Any) -> Any:
    """The ``trt.ILogger`` of this process; its ``start()``, ``tail()`` and ``errors()`` are ours."""

    class BuildLog(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self._lines: deque[tuple[str, str]] = deque(maxlen=_KEPT)

        def log(self, severity: Any, message: str) -> None:
            name = getattr(severity, "name", str(severity))
            if name == "VERBOSE":
                return
            self._lines.append((name, " ".join(message.split())))
            if name in _SERIOUS:
                _echo(f"TensorRT {name.lower()}: {message}")

        def start(self) -> None:
            """Forget the lines of the route before."""
            self._lines.clear()

        def tail(self) -> list[str]:
            """The last lines; the serious ones where there are any."""
            serious = [text for name, text in self._lines if name in _SERIOUS]
            return (serious or [text for _, text in self._lines])[-_TAIL:]

        def errors(self) -> list[str]:
            """What TensorRT called an error, in the order it came."""
            return [text for name, text in self._lines if name.endswith("ERROR")]

    return BuildLog()


def given(created: Any, what: str, log: Any) -> Any:
    """What TensorRT created, which is None where it could not.

    Raises:
        EngineFailedError: it is None; what the log says of it is in the text.
    """
    if created is None:
        reason = next(iter(log.errors()), "it does not say why")
        raise EngineFailedError(f"TensorRT makes no {what}: {reason}", log=tuple(log.tail()))
    return created


def make_progress(trt: Any) -> Any:
    """A ``trt.IProgressMonitor`` that writes where the build is, once a second at most.

    Of a build that hangs or dies, the last of these lines says in which phase.
    """

    class Progress(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._steps: dict[str, int] = {}
            self._last_s = 0.0

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._steps[phase_name] = num_steps
            self._say(f"{phase_name} begins")

        def step_complete(self, phase_name: str, step: int) -> bool:
            self._say(f"{phase_name}, step {step + 1} of {self._steps.get(phase_name, '?')}")
            return True  # go on

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)

        def _say(self, text: str) -> None:
            now = time.monotonic()
            if now - self._last_s >= _PROGRESS_S:
                self._last_s = now
                _echo(f"TensorRT builds: {text}")

    return Progress()


def _echo(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
