"""Backends by name, from the entry point group ``gptune.backends``."""

from __future__ import annotations

import difflib
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pytest_gptune.engines.base import (
    Backend,
    BackendMissingError,
    BuildRequest,
    Engine,
    EngineFailedError,
)
from pytest_gptune.errors import SettingsError

GROUP = "gptune.backends"


def backend_names() -> tuple[str, ...]:
    """Names of all registered backends, sorted."""
    return tuple(sorted({entry.name for entry in importlib.metadata.entry_points(group=GROUP)}))


def check_registered(*names: str) -> None:
    """Refuse the name of a backend that is not registered; nothing is imported.

    Raises:
        SettingsError: no such backend.
    """
    known = backend_names()
    for name in names:
        if name not in known:
            raise _unknown(name, known)


def load_backend(name: str) -> Backend:
    """The backend registered under ``name``.

    Raises:
        SettingsError: no such backend.
        BackendMissingError: it is registered, but its module cannot be imported.
    """
    return make_backend(name, factory_of(name))


def factory_of(name: str) -> str:
    """Where the class of a backend is, as ``package.module:Class``; nothing is imported.

    Raises:
        SettingsError: no such backend.
    """
    return _entry(name).value


def make_backend(name: str, factory: str) -> Backend:
    """The backend whose class is at ``factory``; needs no entry point, which another interpreter lacks.

    Raises:
        BackendMissingError: its module cannot be imported.
    """
    entry = importlib.metadata.EntryPoint(name, factory, GROUP)
    try:
        backend: Backend = entry.load()()
    except Exception as error:  # the module is a third party's, and may raise anything while it is imported
        raise BackendMissingError(
            f"backend '{name}' cannot be imported: {str(error) or type(error).__name__}",
            where=f"entry point {factory}",
            mend="install the package that provides it again",
        ) from error
    return backend


def check_buildable(backend: Backend, options: Mapping[str, Any]) -> None:
    """Ask a backend whether engines can be built here, if not run.

    A backend that compiles for devices other than those here has a method ``check_buildable(options)`` of its
    own; what another can build it can run.

    Raises:
        BackendMissingError: they cannot.
    """
    check = getattr(backend, "check_buildable", backend.check_available)
    check(options)


def layer_times(engine: Engine) -> dict[str, float]:
    """Seconds by layer; empty for an engine that has no method ``layer_times()``, as it may be."""
    ask: Callable[[], dict[str, float]] = getattr(engine, "layer_times", dict)
    return ask()


def process_spent(backend: Backend, options: Mapping[str, Any]) -> str | None:
    """Why engines built from now on in this process would be slower than earlier ones; empty: they are not.

    What a backend that has a method ``process_spent(options)`` says; None where no engine can do that to its
    process, or nothing can be done about it. Where the device fails when it is asked, the process is of no
    use either; what else is raised is the backend's own fault, and told.
    """
    ask: Callable[[Mapping[str, Any]], str | None] = getattr(backend, "process_spent", lambda _: None)
    try:
        return ask(options)
    except EngineFailedError as error:
        return error.what


def get_ready(backend: Backend, request: BuildRequest) -> None:
    """Load what the first engine of this process needs.

    What a backend that has a method ``get_ready(request)`` does: libraries and the device's context, not what
    belongs to a model, since engines are measured in processes that have done no other work.
    """
    ask: Callable[[BuildRequest], None] = getattr(backend, "get_ready", lambda _: None)
    ask(request)


def expecting(backend: Backend, requests: Sequence[BuildRequest]) -> AbstractContextManager[None]:
    """Tell a backend which fresh builds come next, so that it may get ready for all of them at once.

    It does so on entry, which is not timed; builds and measurements are within. A backend of worker processes
    has a method for it, others have none.
    """
    ask: Callable[[Sequence[BuildRequest]], AbstractContextManager[None]] | None
    ask = getattr(backend, "expecting", None)
    return nullcontext() if ask is None else ask(requests)


def _entry(name: str) -> importlib.metadata.EntryPoint:
    entries = [entry for entry in importlib.metadata.entry_points(group=GROUP) if entry.name == name]
    if not entries:
        raise _unknown(name, backend_names())
    return entries[0]


def _unknown(name: str, known: Sequence[str]) -> SettingsError:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"write {near[0]}" if near else f"use one of: {', '.join(known)}"
    return SettingsError(f"unknown backend '{name}'", mend=hint)
