"""One frozen settings object for each test, from command line, marker and ini, in this precedence.

Routes alone are the marker's first.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from pytest_gptune.engines.registry import check_registered
from pytest_gptune.errors import SettingsError

MARKER_WHERE = "@pytest.mark.gptune(...)"


@dataclass(frozen=True)
class MarkerArguments:
    """What ``@pytest.mark.gptune(...)`` takes; None where it is not given."""

    model: str | Path | None = None
    epsilon: float | Mapping[str, float] | None = None
    metric: str | None = None
    atol: float | None = None
    rtol: float | None = None
    routes: str | Mapping[str, str] | None = None
    reference: Any = None
    inputs: Any = None
    shapes: Any = None
    backend: str | None = None
    search: str | None = None
    max_regression: float | None = None
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Settings:
    """Everything a user can set for one test, resolved.

    Attributes:
        epsilon: None where nothing sets it; a test that checks accuracy needs one.
        max_regression: share that the winner may be slower, 0.03 for 3 percent.
        route: the only route to run, from ``--gptune-route``; None for all.
        budget_s: seconds for the search; None without a limit.
        save_engine: folder for the winner's engine; None keeps none.
        engine: a kept engine to gate, or a folder of them; None builds all.
        searching: whether the search was asked for on the command line.
        places: where search, backend and metric were set, for messages.
    """

    model: str | Path | None
    epsilon: float | Mapping[str, float] | None
    metric: str
    atol: float
    rtol: float
    routes: str | None
    routes_where: str
    route_file: bool
    reference: Any
    inputs: Any
    shapes: Any
    backend: str
    search: str
    searching: bool
    max_regression: float
    options: Mapping[str, Any]
    route: str | None
    gate: str
    against: str
    update_goldens: bool
    update_baseline: bool
    require_baseline: bool
    require_backend: bool
    ambiguous_fails: bool
    max_routes: int
    mixed_max_routes: int
    final_builds: int
    budget_s: float | None
    priors: tuple[Path, ...]
    save_engine: Path | None
    save_all_engines: bool
    build_only: bool
    engine: Path | None
    places: Mapping[str, str]


def merge_markers(markers: Iterable[pytest.Mark], where: str) -> MarkerArguments:
    """The arguments of all gptune markers of a test; markers come nearest first, and the nearest wins.

    Raises:
        SettingsError: a positional or unknown argument, with the nearest known one.
    """
    known = [field.name for field in fields(MarkerArguments)]
    merged: dict[str, Any] = {}
    for marker in markers:
        if marker.args:
            raise SettingsError(
                f"the gptune marker takes no positional argument, it has {marker.args[0]!r}",
                where=f"{where}, {MARKER_WHERE}",
                mend=f"write {known[0]}={marker.args[0]!r}",
            )
        for name, value in marker.kwargs.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise SettingsError(
                    f"the gptune marker has no argument '{name}'",
                    where=f"{where}, {MARKER_WHERE}",
                    mend=f"write {near[0]}=" if near else f"use one of: {', '.join(known)}",
                )
            merged.setdefault(name, value)
    return MarkerArguments(**merged)


def report_paths(config: pytest.Config) -> tuple[Path, ...]:
    """Where reports are to be written: as the command line says, or else the ini key."""
    if given := config.getoption("gptune_report"):
        return tuple(config.invocation_params.dir / path for path in given)
    of_ini = config.getini("gptune_report")
    return (config.rootpath / of_ini,) if of_ini else ()


def given_routes(config: pytest.Config) -> tuple[str | None, str, bool]:
    """What options and ini keys give to tests without routes of their own.

    Returns:
        The expression, where it was written, and whether it is a route file's.

    Raises:
        SettingsError: the route file cannot be read.
    """
    if (text := config.getoption("gptune_routes")) is not None:
        return text, "--gptune-routes", False
    if (path := config.getoption("gptune_route_file")) is not None:
        return _read_routes(Path(path), "--gptune-route-file"), f"--gptune-route-file {path}", True
    if text := config.getini("gptune_routes"):
        return text, "ini gptune_routes", False
    if path := config.getini("gptune_route_file"):
        return _read_routes(config.rootpath / path, "ini gptune_route_file"), f"file {path}", True
    return None, "", False


def resolve(config: pytest.Config, arguments: MarkerArguments, where: str) -> Settings:
    """The settings of one test.

    Raises:
        SettingsError: a value of the wrong type or out of range.
    """
    source = _Source(config, arguments, where)
    search = source.text("search", "replay")
    backend = source.text("backend", "onnxruntime")
    routes, routes_where, from_file = source.routes(backend)
    max_regression = source.number("max_regression", 3.0, example="a number of percent, as 3")
    options = {} if arguments.options is None else arguments.options
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise SettingsError(
            f"options is {options!r}",
            where=f"{where}, {MARKER_WHERE}, options=",
            mend="write options={'name': value}",
        )
    return Settings(
        model=arguments.model,
        epsilon=source.epsilon(),
        metric=source.text("metric", "lInf"),
        atol=source.number("atol", 1e-5, example="1e-5"),
        rtol=source.number("rtol", 1e-5, example="1e-5"),
        routes=routes,
        routes_where=routes_where,
        route_file=from_file,
        reference=arguments.reference,
        inputs=arguments.inputs,
        shapes=arguments.shapes,
        backend=backend,
        search=search,
        searching=config.getoption("gptune_search") is not None,
        max_regression=max_regression / 100,
        options=options,
        route=config.getoption("gptune_route"),
        gate=source.text("gate", "auto"),
        against=source.text("against", ""),
        update_goldens=bool(config.getoption("gptune_update_goldens")),
        update_baseline=bool(config.getoption("gptune_update_baseline")),
        require_baseline=bool(config.getini("gptune_require_baseline")),
        require_backend=bool(config.getini("gptune_require_backend")),
        ambiguous_fails=config.getini("gptune_ambiguous") == "fail",
        max_routes=source.count("gptune_max_routes", 10_000),
        mixed_max_routes=source.count("gptune_mixed_max_routes", 256),
        final_builds=source.count("gptune_final_builds", 5),
        budget_s=source.positive("budget"),
        priors=source.paths("prior"),
        save_engine=source.path("save_engine"),
        save_all_engines=source.flag("save_all_engines"),
        build_only=source.flag("build_only"),
        engine=source.path("engine"),
        places={name: source.place(name) for name in ("search", "backend", "metric")},
    )


class _Source:
    """Looks one name up: command line over marker over ini."""

    def __init__(self, config: pytest.Config, arguments: MarkerArguments, where: str) -> None:
        self._config = config
        self._arguments = arguments
        self._where = where

    def _find(self, name: str) -> tuple[Any, str]:
        dest = f"gptune_{name}"
        value = self._config.getoption(dest, None)
        if value is not None:
            return value, f"--gptune-{name.replace('_', '-')}"
        value = getattr(self._arguments, name, None)
        if value is not None:
            return value, f"{self._where}, {MARKER_WHERE}, {name}="
        value = self._config.getini(dest)
        return (value, f"ini {dest}") if value not in (None, "") else (None, "")

    def place(self, name: str) -> str:
        """Where the value of ``name`` stands, empty where nothing sets it."""
        return self._find(name)[1]

    def text(self, name: str, default: str) -> str:
        value, where = self._find(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise SettingsError(f"{name} is {value!r}, not text", where=where, mend=f"write {name}='...'")
        return value

    def number(self, name: str, default: float, *, example: str) -> float:
        """A number of at least 0; ``example`` is what a message says to write."""
        value, where = self._find(name)
        return default if value is None else _number(name, value, where, example)

    def positive(self, name: str) -> float | None:
        value, where = self._find(name)
        if value is None:
            return None
        if not 0 < value < math.inf:
            raise SettingsError(
                f"{name} is {value:g}", where=where, mend="give seconds above 0, or leave it out"
            )
        return float(value)

    def flag(self, name: str) -> bool:
        return bool(self._find(name)[0])

    def path(self, name: str) -> Path | None:
        found = self.paths(name)
        return found[0] if found else None

    def paths(self, name: str) -> tuple[Path, ...]:
        """Paths of the command line from the current folder, those of ini from the root folder."""
        given = self._config.getoption(f"gptune_{name}")
        folder = self._config.invocation_params.dir
        if not given:
            given, folder = self._config.getini(f"gptune_{name}"), self._config.rootpath
        texts = given if isinstance(given, (list, tuple)) else [given] if given else []
        return tuple(folder / text for text in texts)

    def count(self, ini: str, default: int) -> int:
        value = self._config.getini(ini)
        if value is None:
            return default
        if not isinstance(value, int) or value < 1:
            raise SettingsError(f"ini {ini} is {value!r}", mend="write a whole number of at least 1")
        return value

    def epsilon(self) -> float | Mapping[str, float] | None:
        value, where = self._find("epsilon")
        if value is None:
            return None
        if isinstance(value, Mapping):
            return {str(k): _number(f"epsilon of '{k}'", v, where, "1e-3") for k, v in value.items()}
        return _number("epsilon", value, where, "1e-3")

    def routes(self, backend: str) -> tuple[str | None, str, bool]:
        """Expression, where it was written, and whether it is a route file's."""
        marker_where = f"{self._where}, {MARKER_WHERE}, routes="
        of_marker = self._arguments.routes
        if isinstance(of_marker, Mapping):
            # A backend that is not installed here may have routes beside this one's; where this one has none,
            # a name that is none would pass for no routes.
            try:
                check_registered(*(map(str, of_marker) if backend not in of_marker else ()))
            except SettingsError as error:
                raise error.located(marker_where) from None
            of_marker = of_marker.get(backend)
        if of_marker is not None and not isinstance(of_marker, str):
            raise SettingsError(
                f"routes is {of_marker!r}, not a route expression",
                where=marker_where,
                mend="write routes='-knob=[a|b]' or routes={'onnxruntime': '-knob=[a|b]'}",
            )
        # Unlike other options these are for tests that name no routes: a test's own expression is about
        # its own model.
        if of_marker is not None:
            return of_marker, marker_where, False
        return given_routes(self._config)


def _number(name: str, value: Any, where: str, example: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SettingsError(
            f"{name} is {value!r}, not a number", where=where, mend=f"write {name} as {example}"
        )
    if math.isnan(value) or value < 0:
        raise SettingsError(f"{name} is {value!r}", where=where, mend="write a number of at least 0")
    return float(value)


def _read_routes(path: Path, where: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingsError(
            f"cannot read the route file: {reason}", where=f"{where} {path}", mend="correct the path"
        ) from None
