"""Errors: one message in parts, the same wherever it is carried."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
from collections.abc import Iterator

import pytest

import pytest_gptune
from pytest_gptune.errors import GptuneError, ModelError, SettingsError, StorageError

# The backends' own modules are imported only where their packages are.
for _module in pkgutil.walk_packages(pytest_gptune.__path__, "pytest_gptune."):
    if not _module.name.endswith(("__main__", ".main")):
        importlib.import_module(_module.name)


def subclasses(of: type[GptuneError]) -> Iterator[type[GptuneError]]:
    for cls in of.__subclasses__():
        if cls.__module__.startswith("pytest_gptune."):
            yield cls
        yield from subclasses(cls)


ALL = [GptuneError, *sorted(set(subclasses(GptuneError)), key=lambda cls: cls.__qualname__)]


def test_a_message_has_three_parts() -> None:
    error = GptuneError("what is wrong", where="file.py", mend="do this")
    assert str(error) == "what is wrong\n  in: file.py\n  do: do this"
    assert (error.what, error.where, error.mend) == ("what is wrong", "file.py", "do this")
    assert error.args == ("what is wrong",)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({}, "wrong"),
        ({"where": "here"}, "wrong\n  in: here"),
        ({"mend": "this"}, "wrong\n  do: this"),
        ({"mend": "this", "log": ("one", "two")}, "wrong\n  do: this\n  log: one\n  log: two"),
    ],
)
def test_parts_that_are_empty_take_no_line(parts: dict[str, str], text: str) -> None:
    assert str(GptuneError("wrong", **parts)) == text  # type: ignore[arg-type]


def test_the_known_kinds_are_there() -> None:
    assert {SettingsError, ModelError, StorageError} < set(ALL)


@pytest.mark.parametrize("cls", ALL)
def test_every_kind_can_be_located(cls: type[GptuneError]) -> None:
    error = cls("wrong", where="marker", mend="this", log=("line",))
    located = error.located("tests/test_one.py")
    assert type(located) is cls
    assert located.where == "tests/test_one.py, marker"
    assert (located.what, located.mend, located.log) == ("wrong", "this", ("line",))
    assert error.where == "marker"
    assert cls("wrong").located("tests/test_one.py").where == "tests/test_one.py"


@pytest.mark.parametrize("cls", ALL)
def test_every_kind_survives_a_copy_and_another_process(cls: type[GptuneError]) -> None:
    error = cls("wrong", where="here", mend="this", log=("line",))
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is cls
        assert str(other) == str(error)
        assert other.__dict__ == error.__dict__


@pytest.mark.parametrize("cls", ALL)
def test_every_kind_is_documented(cls: type[GptuneError]) -> None:
    assert cls.__doc__


def test_a_located_error_keeps_its_traceback() -> None:
    with pytest.raises(ModelError) as caught:
        raise ModelError("wrong")
    assert caught.value.located("here").__traceback__ is caught.value.__traceback__ is not None
