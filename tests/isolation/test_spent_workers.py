"""Engines after one that slows its process down are measured in another process."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from pytest_gptune.engines.base import (
    BuildRejectedError,
    BuildRequest,
    EngineFailedError,
    EngineOutOfMemoryError,
    EngineTimeoutError,
)
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.worker import WorkerBackend
from pytest_gptune.engines.worker.proxy import WorkerEngine

FINE: tuple[tuple[str, str], ...] = ()
SPOILING = (("-faulty:do", "spoil"),)
OF_FAMILY = (("-faulty:spin", "8"),)
X = {"x": np.ones((2, 8), np.float32)}


class Workers:
    """A backend whose engines know their process."""

    def __init__(self, model: Path) -> None:
        info = inspect_model(model)
        self.backend = WorkerBackend("faulty", route_timeout_s=60)
        self.request = BuildRequest(info.path, info.sha256)
        self.others = children()

    def processes(self) -> set[int]:
        """The workers there are."""
        return children() - self.others

    def build(self, route: tuple[tuple[str, str], ...], *, fresh: bool = False) -> WorkerEngine:
        request = replace(self.request, route=route, fresh=fresh)
        engine = self.backend.build(request)
        engine.run(X)
        return engine

    def pid(self, route: tuple[tuple[str, str], ...]) -> int:
        """The process of a new engine, which is closed again."""
        engine = self.build(route)
        engine.close()
        return pid_of(engine)


def pid_of(engine: WorkerEngine) -> int:
    return engine._worker.pid


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


@pytest.fixture
def workers(faulty_project: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setattr(sys, "path", [str(faulty_project.folder), *sys.path])
    monkeypatch.setenv("FAULTY_SPOILS", "1")
    importlib.invalidate_caches()
    made = Workers(faulty_project.folder / "model.onnx")
    yield made
    made.backend.close()


def test_a_spent_worker_is_replaced(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    first = workers.pid(FINE)
    assert workers.pid(FINE) == first
    assert workers.pid(SPOILING) == first
    assert caplog.messages == []
    second = workers.pid(FINE)
    assert second != first
    assert caplog.messages == [f"worker {first} is replaced: an engine has spoiled it"]
    assert not psutil.pid_exists(first)
    assert workers.pid(FINE) == second


def test_a_spent_worker_stays_as_long_as_its_engines(workers: Workers) -> None:
    plain, spoiling = workers.build(FINE), workers.build(SPOILING)
    other = workers.build(FINE)
    assert pid_of(plain) == pid_of(spoiling) != pid_of(other)
    assert plain.run(X)
    spoiling.close()
    assert plain.run(X)
    plain.close()
    assert not psutil.pid_exists(pid_of(plain))
    assert other.run(X)


def test_a_build_that_fails_does_not_hide_that_its_worker_is_spent(workers: Workers) -> None:
    first = workers.pid(SPOILING)
    with pytest.raises(BuildRejectedError, match="no implementation"):
        workers.build((("-faulty:do", "reject"),))
    assert workers.pid(FINE) != first


def test_engines_that_are_measured_in_turns_have_a_process_each(workers: Workers) -> None:
    shared = workers.pid(FINE)
    engines = [workers.build(route, fresh=True) for route in (FINE, SPOILING, FINE)]
    pids = {pid_of(engine) for engine in engines}
    assert len({shared, *pids}) == 4
    for engine in engines:
        engine.close()
    assert not any(map(psutil.pid_exists, pids))
    assert workers.pid(FINE) == shared


def test_engines_that_spoil_nothing_share_their_process(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAULTY_SPOILS")
    pids = {pid_of(workers.build(route, fresh=True)) for route in (FINE, SPOILING, FINE)}
    assert len(pids) == 1


def test_an_engine_that_is_loaded_has_a_process_of_its_own_as_well(workers: Workers) -> None:
    shared = workers.pid(FINE)
    with pytest.raises(BuildRejectedError, match="it keeps no engines"):
        workers.backend.load(replace(workers.request, fresh=True), b"")
    assert workers.processes() == {shared}


def test_a_digest_is_found_out_in_the_process_that_others_share(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that is measured in turns is the first of its process, in every respect."""
    monkeypatch.setenv("FAULTY_DIGEST", "0")
    shared, of_family = workers.pid(FINE), workers.pid(OF_FAMILY)
    assert shared != of_family
    requests = [replace(workers.request, route=route, fresh=True) for route in (FINE, OF_FAMILY)]
    with workers.backend.expecting(requests):
        ready = workers.processes() - {shared, of_family}
        engines = [workers.backend.build(request) for request in requests]
    assert {pid_of(engine) for engine in engines} == ready
    told = [f"shared, of process {pid}" for pid in (shared, of_family)]
    assert [engine.info.digest for engine in engines] == told
    assert workers.build(FINE).info.digest == "default"  # not fresh: it is left to the build


def test_a_digest_is_found_out_once(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finals build an engine again and again, and a worker that was replaced would know nothing of it."""
    monkeypatch.setenv("FAULTY_DIGEST", "0")
    first = workers.backend.engine_digest(workers.request)
    spoiled = workers.pid(SPOILING)
    assert workers.pid(FINE) != spoiled
    assert workers.build(FINE, fresh=True).info.digest == first == f"shared, of process {spoiled}"


def test_the_time_of_a_route_bounds_its_digest_and_its_build_together(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.pid(FINE)
    monkeypatch.setattr(workers.backend, "_timeout_s", 2.0)
    workers.backend._replace("")  # the next worker sees the environment as it is then
    monkeypatch.setenv("FAULTY_DIGEST", "1.5")
    monkeypatch.setenv("FAULTY_BUILD_S", "1.5")
    with pytest.raises(EngineTimeoutError):  # either alone would be in time
        workers.build(FINE, fresh=True)


def test_a_digest_that_fails_leaves_no_worker_beside_those_that_are_timed(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULTY_DIGEST", "segfault")
    shared = workers.pid(FINE)
    requests = [replace(workers.request, route=route, fresh=True) for route in (FINE, SPOILING)]
    with workers.backend.expecting(requests):
        ready = workers.processes() - {shared}
        with pytest.raises(EngineFailedError, match="SIGSEGV"):
            workers.backend.build(requests[0])
        workers.backend._ahead.wait_for_ended()  # as the next build does
        assert len(workers.processes() & ready) == 1


def test_a_backend_need_not_get_ready(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTY_READY", "cannot")
    shared = workers.pid(FINE)
    request = replace(workers.request, fresh=True)
    with workers.backend.expecting([request]):
        (ready,) = workers.processes() - {shared}
        assert pid_of(workers.backend.build(request)) == ready


def test_a_lone_worker_ends_with_its_engine_however_that_ends(workers: Workers) -> None:
    shared = workers.pid(FINE)
    with pytest.raises(BuildRejectedError, match="no implementation"):
        workers.build((("-faulty:do", "reject"),), fresh=True)
    with pytest.raises(EngineFailedError, match="SIGSEGV"):
        workers.build((("-faulty:do", "segfault"),), fresh=True)
    engine = workers.build(FINE, fresh=True)
    psutil.Process(pid_of(engine)).kill()
    with pytest.raises(EngineOutOfMemoryError, match="SIGKILL"):
        engine.run(X)
    with pytest.raises(EngineFailedError, match="the worker that held the engine has died"):
        engine.run(X)
    engine.close()
    assert workers.processes() == {shared}


def test_workers_get_ready_side_by_side(workers: Workers) -> None:
    shared = workers.pid(FINE)
    requests = [replace(workers.request, route=route, fresh=True) for route in (FINE, SPOILING, FINE)]
    with workers.backend.expecting(requests):
        ready = workers.processes() - {shared}
        assert len(ready) == 3
        engines = [workers.backend.build(request) for request in reversed(requests)]
        assert {pid_of(engine) for engine in engines} == ready
        later = workers.build(FINE, fresh=True)  # nobody expected it
        assert pid_of(later) not in ready
        for engine in (*engines, later):
            assert engine.run(X)
            engine.close()
    assert workers.processes() == {shared}


def test_workers_that_were_expected_in_vain_end(workers: Workers) -> None:
    shared = workers.pid(FINE)
    requests = [replace(workers.request, route=route, fresh=True) for route in (FINE, SPOILING)]
    with workers.backend.expecting(requests):
        engine = workers.backend.build(requests[0])
    assert workers.processes() == {shared, pid_of(engine)}
    engine.close()
    assert workers.processes() == {shared}
    with workers.backend.expecting(
        [replace(workers.request, route=FINE)]
    ):  # not fresh: it has the shared one
        assert workers.processes() == {shared}


def test_workers_end_beside_each_other_but_before_the_next_build(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a round that starts anew: what was built before must not be there while it is timed again."""
    shared = workers.pid(FINE)
    monkeypatch.setenv("FAULTY_EXIT_S", "0.7")
    requests = [replace(workers.request, route=route, fresh=True) for route in (FINE, SPOILING)]
    with workers.backend.expecting(requests):
        engines = [workers.backend.build(request) for request in requests]
        before = {pid_of(engine) for engine in engines}
        start = time.monotonic()
        for engine in engines:
            engine.close()
        assert time.monotonic() - start < 0.6  # neither is waited for
        monkeypatch.delenv("FAULTY_EXIT_S")
        again = workers.backend.build(requests[0])
        assert workers.processes() == {shared, pid_of(again)}
        assert not before & workers.processes()
        again.close()


def test_a_worker_that_could_not_get_ready_is_replaced(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    workers.pid(FINE)
    monkeypatch.setenv("FAULTY_READY", "raise")
    request = replace(workers.request, route=FINE, fresh=True)
    with workers.backend.expecting([request]):
        (ready,) = workers.processes() - {workers.pid(FINE)}
        engine = workers.backend.build(request)
        assert pid_of(engine) != ready
        assert engine.run(X)
        engine.close()
    assert len(caplog.messages) == 1
    assert f"worker {ready} did not get ready: " in caplog.messages[0]
    assert "AttributeError: nothing known of that" in caplog.messages[0]
    with workers.backend.expecting([request]):  # it would cost each round as much again
        assert workers.processes() == {workers.pid(FINE)}


def test_ctrl_c_ends_workers_that_get_ready(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shared = workers.pid(FINE)
    request = replace(workers.request, route=FINE, fresh=True)
    with workers.backend.expecting([request]):
        pass  # it has asked by now whether engines slow their process down
    monkeypatch.setenv("FAULTY_READY", "hang")
    hanging = tmp_path / "hanging"
    monkeypatch.setenv("FAULTY_READY_LOG", str(hanging))

    def interrupt() -> None:
        while not hanging.exists() or len(hanging.read_text().splitlines()) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    # A shell starts what it puts in the background with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt), workers.backend.expecting([request, request]):
            pytest.fail("they hang")
    finally:
        signal.signal(signal.SIGINT, before)
    assert workers.processes() == {shared}


def test_what_is_left_when_the_backend_is_closed_is_nothing(workers: Workers) -> None:
    workers.build(SPOILING)  # stays in a worker that is replaced
    workers.build(FINE)
    workers.build(FINE, fresh=True)
    assert len(workers.processes()) == 3
    workers.backend.close()
    assert workers.processes() == set()


def test_a_backend_that_cannot_say_fails_its_route(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it taken for a spent process, each route would quietly cost another one."""
    monkeypatch.setenv("FAULTY_SPOILS", "raise")
    workers.pid(FINE)
    with pytest.raises(EngineFailedError, match="AttributeError: nothing known of that"):
        workers.build(FINE)
    with pytest.raises(EngineFailedError, match="AttributeError: nothing known of that"):
        workers.build(FINE, fresh=True)


def test_a_search_measures_all_routes_as_if_each_were_the_first(faulty_project: Any) -> None:
    """The first engine of all spoils its process; others there would take twenty times as long."""
    out = faulty_project.run(
        "-faulty:do=[spoil|fine] -faulty:spin=[4|2|3|5|6]",
        "--gptune-search=full",
        "-o",
        "gptune_final_builds=2",  # in one of two rounds it is built last
        FAULTY_SPOILS="1",
        FAULTY_DEFAULT="spoil",
    )
    latency = {route["id"]: route["latency"]["value"] for route in out.test["routes"]}
    fine = {key for key in latency if "do=fine" in key}
    assert len(fine) == len(latency) - len(fine) == 5
    # Some of them were in the finals, beside the one that spoils its process, and some were not.
    assert max(latency[key] for key in fine) < 0.3 * min(latency[key] for key in latency.keys() - fine)
    assert out.left == []


def test_the_workers_of_a_round_of_finals_get_ready_side_by_side(faulty_project: Any) -> None:
    log = faulty_project.folder / "ready.txt"
    out = faulty_project.run(
        "-faulty:spin=[4|2|3]",
        "--gptune-search=full",
        "-o",
        "gptune_final_builds=4",
        FAULTY_SPOILS="1",
        FAULTY_READY_LOG=str(log),
    )
    assert out.test["winner"]
    lines = [line.split(maxsplit=3) for line in log.read_text().splitlines()]
    asked = [(int(pid), float(start), float(end)) for pid, start, end, _ in lines]
    often = Counter(pid for pid, _, _ in asked)
    alone = sorted((start, end) for pid, start, end in asked if often[pid] == 1)
    assert len(alone) == 12
    together = [alone[first : first + 3] for first in range(0, 12, 3)]
    overlap = [max(start for start, _ in each) < min(end for _, end in each) for each in together]
    assert sum(overlap) >= 2  # a busy machine may let one start after another; one by one none would
    routes = [
        route for pid, _, _, route in sorted(lines, key=lambda line: int(line[0])) if often[int(pid)] == 1
    ]
    rounds = {tuple(routes[first : first + 3]) for first in range(0, len(routes) - 2, 3)}
    assert len(rounds) > 1  # of one order they are not
    assert out.left == []
