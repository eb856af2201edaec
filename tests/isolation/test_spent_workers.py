"""Engines after one that slows its process down are measured in another process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from pytest_gptune.engines.base import BuildRejectedError, BuildRequest
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.worker import WorkerBackend
from pytest_gptune.engines.worker.proxy import WorkerEngine

FINE: tuple[tuple[str, str], ...] = ()
SPOILING = (("-faulty:do", "spoil"),)
X = {"x": np.ones((2, 8), np.float32)}


class Workers:
    """A backend whose engines know their process."""

    def __init__(self, model: Path) -> None:
        info = inspect_model(model)
        self.backend = WorkerBackend("faulty", route_timeout_s=60)
        self._request = BuildRequest(info.path, info.sha256)

    def build(self, route: tuple[tuple[str, str], ...], *, fresh: bool = False) -> WorkerEngine:
        request = replace(self._request, route=route, fresh=fresh)
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


@pytest.fixture
def workers(faulty_project: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setattr(sys, "path", [str(faulty_project.folder), *sys.path])
    monkeypatch.setenv("FAULTY_SPOILS", "1")
    importlib.invalidate_caches()
    made = Workers(faulty_project.folder / "model.onnx")
    yield made
    made.backend.close()


def test_a_spent_worker_is_replaced(workers: Workers) -> None:
    first = workers.pid(FINE)
    assert workers.pid(FINE) == first
    assert workers.pid(SPOILING) == first
    second = workers.pid(FINE)
    assert second != first
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


def test_a_search_measures_all_routes_as_if_each_were_the_first(faulty_project: Any) -> None:
    """A spoilt engine takes twenty times as long, the slowest of the others twice as long as the fastest."""
    out = faulty_project.run(
        "-faulty:do=[fine|spoil] -faulty:spin=[4|2|3]", "--gptune-search=full", FAULTY_SPOILS="1"
    )
    latency = {route["id"]: route["latency"]["value"] for route in out.test["routes"]}
    spoilt = {key for key in latency if "spoil" in key}
    assert len(spoilt) == 3
    assert max(latency[key] for key in latency.keys() - spoilt) < 0.3 * min(latency[key] for key in spoilt)
    assert out.test["winner"] == "faulty:spin=2"
    assert out.left == []
