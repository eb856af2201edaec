"""Workers that get ready side by side for the builds they are meant for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from pytest_gptune.engines.base import BuildRequest
from pytest_gptune.engines.worker.process import WorkerProcess
from pytest_gptune.errors import GptuneError

# Between two looks whether all are ready; Windows delivers Ctrl-C only then.
_WAIT_S = 0.1


class WorkersAhead:
    """Workers for fresh builds, each prepared while the others are, and those that have ended.

    To start a process and to load a backend's libraries takes longer than most builds, and so may its end.

    Args:
        start: makes a worker.
        prepare: does in it what any build in a process for the request begins with; what fails is logged, and
            left to the build, in another worker, to find.
    """

    def __init__(
        self,
        start: Callable[[], WorkerProcess],
        prepare: Callable[[WorkerProcess, BuildRequest], object],
    ) -> None:
        self._start = start
        self._prepare = prepare
        self._waiting: list[tuple[BuildRequest, WorkerProcess]] = []
        self._ending: list[WorkerProcess] = []

    def start(self, requests: Sequence[BuildRequest]) -> bool:
        """Have a worker ready for each of the requests; whether all are."""
        for request in requests:
            self._waiting.append((request, self._start()))
        if not self._waiting:
            return True
        with ThreadPoolExecutor(len(self._waiting)) as threads:
            try:
                preparing = [threads.submit(self._prepared, *pair) for pair in self._waiting]
                while wait(preparing, timeout=_WAIT_S).not_done:
                    pass
            except BaseException:  # Ctrl-C: the threads end with what they wait for
                for _, worker in self._waiting:
                    worker.kill()
                raise
        return all(each.result() for each in preparing)

    def take(self, request: BuildRequest) -> WorkerProcess | None:
        """The worker that is ready for a request; None where there is none to be trusted."""
        for pair in self._waiting:
            if pair[0] == request:
                self._waiting.remove(pair)
                if pair[1].alive and not pair[1].tainted:
                    return pair[1]
                pair[1].close()
                return None
        return None

    def end(self, worker: WorkerProcess) -> None:
        """Let a worker end beside others; ``wait_for_ended`` is due before anything is built or timed."""
        worker.hang_up()
        self._ending.append(worker)

    def wait_for_ended(self) -> None:
        """Wait for those that were to end; what does not go is killed."""
        for worker in self._ending:
            worker.close()
        self._ending.clear()

    def close(self) -> None:
        """End those that nothing was built in, and wait for all."""
        for _, worker in self._waiting:
            self.end(worker)
        self._waiting.clear()
        self.wait_for_ended()

    def _prepared(self, request: BuildRequest, worker: WorkerProcess) -> bool:
        try:
            self._prepare(worker, request)
        except GptuneError as error:
            logging.getLogger(__name__).info("worker %d did not get ready: %s", worker.pid, error)
            return False
        return True
