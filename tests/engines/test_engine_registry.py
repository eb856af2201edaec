"""Backends by name: those that are there, broken or misspelt."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_gptune.engines import registry
from pytest_gptune.engines.base import BackendMissingError
from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend
from pytest_gptune.errors import SettingsError

Register = Callable[[str, str], None]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Register:
    """Adds an entry point; modules of ``tmp_path`` can be imported."""
    entries = list(importlib.metadata.entry_points(group=registry.GROUP))
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: entries if group == registry.GROUP else []
    )
    monkeypatch.syspath_prepend(tmp_path)

    def register(name: str, value: str) -> None:
        entries.append(importlib.metadata.EntryPoint(name, value, registry.GROUP))

    return register


def test_onnxruntime_is_registered() -> None:
    assert "onnxruntime" in registry.backend_names()
    assert isinstance(registry.load_backend("onnxruntime"), OnnxRuntimeBackend)


def test_names_are_sorted_and_once_each(register: Register) -> None:
    register("another", "a:B")
    register("another", "c:D")
    names = registry.backend_names()
    assert names == tuple(sorted(names))
    assert names.count("another") == 1
    assert {"onnxruntime", "tensorrt", "tensorrt_rtx"} <= set(names)


@pytest.mark.parametrize(
    ("name", "mend"),
    [
        ("onnxruntme", "write onnxruntime"),
        ("zzz", "use one of: onnxruntime"),
        ("", "use one of: onnxruntime"),
    ],
)
def test_an_unknown_backend(name: str, mend: str) -> None:
    with pytest.raises(SettingsError) as caught:
        registry.load_backend(name)
    assert f"unknown backend '{name}'" in caught.value.what
    assert mend in caught.value.mend


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("import a_module_that_is_not_there", "a_module_that_is_not_there"),
        ("raise ImportError('libsomething.so.3: cannot open shared object file')", "libsomething.so.3"),
        ("raise RuntimeError('needs a driver')", "needs a driver"),
        ("raise OSError", "OSError"),
        ("def (", "invalid syntax"),
        ("Other = 1", "Backend"),
    ],
    ids=["module", "library", "error", "error without text", "syntax", "attribute"],
)
def test_a_backend_that_cannot_be_imported(
    register: Register, tmp_path: Path, content: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_gptune_backend.py").write_text(content)
    monkeypatch.delitem(sys.modules, "broken_gptune_backend", raising=False)
    register("broken", "broken_gptune_backend:Backend")
    with pytest.raises(BackendMissingError) as caught:
        registry.load_backend("broken")
    assert "backend 'broken' cannot be imported" in caught.value.what
    assert said in caught.value.what
    assert "broken_gptune_backend:Backend" in caught.value.where
    assert caught.value.mend


def test_a_backend_whose_package_is_not_there(register: Register) -> None:
    register("absent", "absent_gptune_package.backend:Backend")
    with pytest.raises(BackendMissingError, match="No module named 'absent_gptune_package'"):
        registry.load_backend("absent")


def test_a_backend_of_a_third_party(register: Register, tmp_path: Path) -> None:
    (tmp_path / "good_gptune_backend.py").write_text("class Backend:\n    name = 'good'\n")
    register("good", "good_gptune_backend:Backend")
    assert registry.load_backend("good").name == "good"
    sys.modules.pop("good_gptune_backend")


def test_a_name_is_checked_without_importing_anything(register: Register) -> None:
    """The controlling process never imports a backend: its worker does."""
    register("absent", "absent_gptune_package.backend:Backend")
    registry.check_registered("absent")
    registry.check_registered("onnxruntime")
    with pytest.raises(SettingsError, match="unknown backend 'onnxruntme'"):
        registry.check_registered("onnxruntme")
