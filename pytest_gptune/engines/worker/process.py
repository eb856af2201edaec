"""The worker process as the controlling process sees it: started, asked, timed out, killed, buried.

``subprocess`` with a pipe of ``multiprocessing.connection``: unlike a pool it keeps engines alive between
calls, and unlike ``multiprocessing``'s spawn it does not import the main module again, which under pytest is
pytest itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gptune.engines.base import (
    EngineFailedError,
    EngineOutOfMemoryError,
    EngineTimeoutError,
)
from pytest_gptune.engines.machine import CORES_VARIABLE, usable_cores
from pytest_gptune.engines.worker import arena, messages
from pytest_gptune.errors import GptuneError
from pytest_gptune.storage import scratch_folder

if TYPE_CHECKING:
    import numpy as np

_LOG_LINES = 200
_TAIL = 6
_FATAL = "Fatal Python error:"

# Coverage tools start themselves in child processes by these; tracing would be timed with the engine.
_TRACING = ("COVERAGE_", "COV_CORE_")


class WorkerProcess:
    """One worker: takes one request at a time and answers it.

    Args:
        sys_path: where the worker finds modules; empty leaves it with what its interpreter has.
        python: the interpreter; None for this process's own.

    Attributes:
        tainted: something failed in it that may have left it unsound; it is replaced when it is empty.
    """

    def __init__(self, sys_path: list[str], python: str | None = None) -> None:
        ours, theirs = Pipe()
        self._connection = ours
        self.tainted = False
        self._arena = arena.Arena()
        self._ends = contextlib.ExitStack()
        package_parent = Path(__file__).resolve().parents[3]
        if python is not None:
            # Alone in a folder: beside our package stand others, built for another interpreter.
            package_parent = self._ends.enter_context(_package_alone(package_parent))
        interpreter = python or sys.executable
        command = [interpreter, "-m", "pytest_gptune.engines.worker.main", str(theirs.fileno())]
        options: dict[str, Any] = {}
        if sys.platform == "win32":
            os.set_handle_inheritable(theirs.fileno(), True)
            options["close_fds"] = False
            options["creationflags"] = subprocess.CREATE_NEW_PROCESS_GROUP
        else:
            options["pass_fds"] = [theirs.fileno()]
            # Ctrl-C goes to the whole group of a terminal; the search decides when a worker ends.
            options["start_new_session"] = True
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(package_parent),
            **options,
        )
        try:
            theirs.close()
            self._log = _LogTail(self._process)
            self._give({"sys_path": sys_path, "cores": _allowed_cores()})
        except BaseException:  # Ctrl-C: nobody else knows of it yet
            self._process.kill()
            self._process.wait()
            self._ends.close()
            raise

    def _give(self, settings: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(settings).encode())
            self._process.stdin.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still takes requests."""
        return self._process.poll() is None

    @property
    def ended(self) -> bool:
        """Whether it was ended from here, or its death was told."""
        return bool(self._connection.closed)

    def mark_log(self) -> None:
        """Forget what was logged so far: it belongs to an earlier route."""
        self._log.clear()

    def call(
        self,
        header: Mapping[str, Any],
        arrays: messages.Arrays | None = None,
        *,
        timeout_s: float | None = None,
        of_s: float | None = None,
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Send a request and wait for its answer; this process sleeps meanwhile.

        Args:
            header: says what is asked.
            arrays: what goes with it.
            timeout_s: how long to wait, None without end.
            of_s: what that is the rest of, for the message.

        Raises:
            EngineTimeoutError: no answer within ``timeout_s``; the worker and its children are killed.
            EngineOutOfMemoryError: it was killed as the system does when memory runs out.
            EngineFailedError: it died otherwise; the signal or exit code is named.
        """
        what = str(header.get("op"))
        try:
            answer, out = self._exchange(header, arrays, what, timeout_s, of_s)
            if (size := answer.get("pending")) is not None:
                block = self._arena.reserve(size)
                answer, out = self._exchange({"op": "fetch", "block": block}, None, what, timeout_s, of_s)
            return answer, out
        except (EOFError, OSError):
            raise self._obituary(what) from None
        except GptuneError:
            raise
        except BaseException:
            # Ctrl-C between request and answer: the answer would be taken for that of a later request.
            self.kill()
            raise

    def _exchange(
        self,
        header: Mapping[str, Any],
        arrays: messages.Arrays | None,
        what: str,
        timeout_s: float | None,
        of_s: float | None,
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """One message there and one back."""
        shared = None
        _, size = arena.layout(arrays or {})
        if size >= arena.SMALLEST:
            shared = self._arena.reserve(size), self._arena.buffer
        messages.send(self._connection, header, arrays, shared)
        if timeout_s is not None and not self._connection.poll(timeout_s):
            self.kill()
            raise EngineTimeoutError(
                f"no answer within {_limit(timeout_s, of_s)} while the engine was asked to {what}",
                mend="give it more time with --gptune-route-timeout",
                log=self._log.tail(),
            )
        return messages.receive(self._connection, lambda _: self._arena.buffer)

    def log_tail(self) -> tuple[str, ...]:
        """The last lines that were logged since ``mark_log``."""
        return self._log.tail()

    def hang_up(self) -> None:
        """Let it end by itself; ``close`` is still due."""
        with contextlib.suppress(OSError):
            self._connection.close()

    def close(self) -> None:
        """End it in good order, and by force where it does not go."""
        self.hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        self.kill()

    def kill(self) -> None:
        """Kill it and everything it started."""
        import psutil

        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self._process.pid)
            family = [*root.children(recursive=True), root]
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if sys.platform != "win32":
            # What it started and left behind has its session, though no longer its parentage.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._log.close()
        self._arena.close()
        self._ends.close()
        with contextlib.suppress(OSError):
            self._connection.close()

    def _obituary(self, what: str) -> GptuneError:
        """Why it died while it was asked to do ``what``."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()
            return EngineFailedError(f"the worker closed its pipe while it was asked to {what}")
        self.kill()
        log = self._log.tail()
        if code == -getattr(signal, "SIGKILL", 9):
            return EngineOutOfMemoryError(
                f"the worker was killed (SIGKILL) while it was asked to {what}, as the system does when "
                "memory runs out",
                mend="give the machine more memory, or choose smaller shapes",
                log=log,
            )
        if code < 0:
            return EngineFailedError(
                f"the worker died of {_signal_name(-code)} while it was asked to {what}", log=log
            )
        return EngineFailedError(
            f"the worker exited with code {code} without a word while it was asked to {what}", log=log
        )


class _LogTail:
    """Keeps the last lines a process writes, without a file."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._lines: deque[str] = deque(maxlen=_LOG_LINES)
        self._stream = process.stdout
        self._thread = threading.Thread(target=self._read, name="gptune-worker-log", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._stream is not None
        with contextlib.suppress(OSError, ValueError):
            for line in self._stream:
                text = _without_colours(line.decode(errors="replace").rstrip())
                if text:
                    self._lines.append(text)

    def clear(self) -> None:
        self._lines.clear()

    def tail(self) -> tuple[str, ...]:
        # What was written before an answer may still be on its way.
        self._thread.join(timeout=0.05)
        return tail_of(list(self._lines))

    def close(self) -> None:
        self._thread.join(timeout=1)
        if not self._thread.is_alive() and self._stream is not None:
            self._stream.close()


def _without_colours(line: str) -> str:
    """A line as it is read; it goes into messages, reports and caches, which are no terminals."""
    if "\x1b" not in line:
        return line
    from rich.text import Text

    return Text.from_ansi(line).plain


def tail_of(lines: list[str]) -> tuple[str, ...]:
    """The last lines of a log; of the traceback that Python writes when it dies only the first and innermost.

    Otherwise that traceback, which is of our own loop, would push the backend's last words out.
    """
    for index, line in enumerate(lines):
        if line.startswith(_FATAL):
            frame = next((text for text in lines[index:] if text.lstrip().startswith("File ")), None)
            return (*lines[:index][-_TAIL:], line, *([frame.strip()] if frame else []))
    return tuple(lines[-_TAIL:])


@contextlib.contextmanager
def _package_alone(package_parent: Path) -> Iterator[Path]:
    """A folder with this package and nothing else."""
    with scratch_folder() as folder:
        shutil.copytree(
            package_parent / "pytest_gptune",
            folder / "pytest_gptune",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        yield folder


def _environment(package_parent: Path) -> dict[str, str]:
    """The environment without what starts tracing, with this package to be found, and with our cores."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_TRACING)}
    paths = [str(package_parent), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment[CORES_VARIABLE] = str(usable_cores())
    return environment


def _allowed_cores() -> list[int] | None:
    """The cores this process may run on, so that the worker is given the same ones; None where unknown."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _limit(timeout_s: float, of_s: float | None) -> str:
    """How long was waited, and of what that was the rest where little of it was left."""
    if of_s is None or timeout_s > 0.95 * of_s:
        return f"{of_s or timeout_s:.3g} s"
    return f"{of_s:.3g} s, of which {timeout_s:.2g} s were left,"
