"""Two runs at once: the second waits for the device, says so, and counts the wait as nobody's time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from projects import MODEL, Project

from pytest_gptune.errors import StorageError
from pytest_gptune.plugin import device_lock
from pytest_gptune.plugin.device_lock import DeviceLock

BACKEND: Any = SimpleNamespace(name="onnxruntime")
REQUEST: Any = SimpleNamespace(options={})


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(device_lock, "_SAY_AFTER_S", 0.1)


@contextmanager
def held_by_another(seconds: float) -> Iterator[None]:
    """Somebody else has the device from before this block until ``seconds`` later."""
    taken = threading.Event()

    def hold() -> None:
        with DeviceLock().held(BACKEND, REQUEST):
            taken.set()
            threading.Event().wait(seconds)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(30)
    try:
        yield
    finally:
        thread.join()


def test_who_waits_says_so_once_and_knows_how_long() -> None:
    said: list[str] = []
    lock = DeviceLock(said.append)
    for _ in range(2):
        with held_by_another(0.5), lock.held(BACKEND, REQUEST):
            pass
    assert len(said) == 1
    assert said[0].startswith("waiting for device 0: another run of this user is on it")
    # From the end of what was told until the release; twice.
    assert lock.waited_s > 0.5


def test_a_free_device_is_had_without_a_word() -> None:
    said: list[str] = []
    with DeviceLock(said.append).held(BACKEND, REQUEST):
        pass
    assert said == []


def test_other_devices_are_not_waited_for() -> None:
    said: list[str] = []
    with held_by_another(0.3), DeviceLock(said.append).held(BACKEND, SimpleNamespace(options={"device": 1})):  # type: ignore[arg-type]
        pass
    assert said == []


def test_a_wait_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_lock, "_TIMEOUT_S", 0.3)
    with held_by_another(2.0), pytest.raises(StorageError, match="another process has held the lock"):
        DeviceLock().held(BACKEND, REQUEST).__enter__()


def test_a_run_says_what_it_waits_for(project: Project) -> None:
    project.tests(
        f"""
        @pytest.mark.gptune(model="{MODEL}", epsilon=1e-5, routes="-ort:enable_mem_pattern=[on|off]")
        def test_model(gptune):
            gptune.check()
        """
    )
    project.run("--gptune-update-goldens")
    with held_by_another(1.0):
        result = project.run("--gptune-search=fast")
    result.stdout.fnmatch_lines(["gptune: waiting for device 0: another run of this user is on it*"])
    assert result.ret == 0
