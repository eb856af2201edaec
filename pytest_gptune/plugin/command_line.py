"""What is checked of the command line and the ini file once, before anything is collected."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_gptune.errors import GptuneError, SettingsError
from pytest_gptune.plugin.options import INI_KEYS, OPTIONS
from pytest_gptune.plugin.settings import given_routes, report_paths

_AGAINST = "--gptune-against"


def check_command_line(config: pytest.Config) -> None:
    """Refuse what cannot be meant, before anything is collected.

    Raises:
        SettingsError: options that exclude each other, or a value that no test could use.
    """
    for key in INI_KEYS:
        try:
            config.getini(key)
        except (TypeError, ValueError, pytest.UsageError) as error:
            raise SettingsError(f"ini {key} cannot be used: {error}", mend="correct its value") from None
    if config.getoption("gptune_dry_run") and config.getoption("gptune_search") in ("mixed", "coordinate"):
        raise SettingsError(
            f"--gptune-dry-run cannot print the routes of {config.getoption('gptune_search')}",
            mend="its later routes depend on what the earlier ones measure: use fast or full",
        )
    cache = config.getoption("gptune_cache") or config.getini("gptune_cache")
    if cache and (config.invocation_params.dir / cache).is_dir():
        raise SettingsError(
            f"--gptune-cache is a folder: {cache}", mend="give a file, as --gptune-cache=tune.jsonl"
        )
    if config.getoption("gptune_continue") and not (
        config.getoption("gptune_cache") or config.getini("gptune_cache")
    ):
        raise SettingsError(
            "--gptune-continue has no tuning cache to take routes from", mend="give --gptune-cache=PATH"
        )
    folder = config.getoption("gptune_save_engine") or config.getini("gptune_save_engine")
    if config.getoption("gptune_save_all_engines") and not folder:
        raise SettingsError(
            "--gptune-save-all-engines does not say where", mend="add --gptune-save-engine=DIR"
        )
    if folder and (config.invocation_params.dir / folder).is_file():
        raise SettingsError(f"--gptune-save-engine is a file: {folder}", mend="give a folder")
    engine = config.getoption("gptune_engine")
    if engine and not (config.invocation_params.dir / engine).exists():
        raise SettingsError(f"--gptune-engine: {engine} does not exist", mend="correct the path")
    if engine and config.getoption("gptune_route"):
        raise SettingsError(
            "--gptune-engine and --gptune-route exclude each other",
            mend="leave out --gptune-route: the engine's sidecar names its route",
        )
    if config.getoption("gptune_build_only"):
        for name in ("update_goldens", "update_baseline", "engine"):
            if config.getoption(f"gptune_{name}"):
                flag = f"--gptune-{name.replace('_', '-')}"
                raise SettingsError(
                    f"--gptune-build-only and {flag} exclude each other",
                    mend="leave one of them out: nothing is run where engines are only built",
                )
    if engine and config.getoption("gptune_search") not in (None, "replay"):
        raise SettingsError(
            f"--gptune-engine and --gptune-search {config.getoption('gptune_search')} exclude each other",
            mend="leave out the search: a kept engine is gated as it is",
        )
    priors = config.getoption("gptune_prior") or config.getini("gptune_prior")
    if priors and config.getoption("gptune_budget") is None and config.getini("gptune_budget") is None:
        raise SettingsError(
            "--gptune-prior changes the order of a search, which matters under a budget alone",
            mend="add --gptune-budget=SECONDS, or leave it out",
        )
    if config.getoption("gptune_routes") and config.getoption("gptune_route_file"):
        raise SettingsError(
            "--gptune-routes and --gptune-route-file exclude each other", mend="give one of them"
        )
    _check_routes(config)
    for path in report_paths(config):
        if path.suffix != ".json":
            raise SettingsError(
                f"--gptune-report writes .json, not '{path.name}'", mend="give a path that ends in .json"
            )
    # argparse holds the command line to the choices of an option; nothing holds the ini file to them.
    words = {option.dest: option.choices for option in OPTIONS if option.choices}
    for key, choices in (words | {"gptune_ambiguous": ("warn", "fail")}).items():
        if (word := config.getini(key)) not in (None, "", *choices):
            raise SettingsError(f"ini {key} is '{word}'", mend=f"write {_either(choices)}")
    _check_route_timeout(config)
    # A key of the ini file goes with the project to machines that lack what it names, and to runs without a
    # test of ours: there the verdict says so. What is asked for on the command line is meant for this run.
    if python := config.getoption("gptune_reference_python"):
        find_interpreter(python, config.invocation_params.dir)
    if revision := config.getoption("gptune_against"):
        _check_revision(revision, config)


def find_interpreter(python: str, folder: Path) -> str:
    """The path of the interpreter that ``--gptune-reference-python`` names: in ``folder``, or a command.

    Raises:
        SettingsError: there is none.
    """
    path = shutil.which(str(folder / python)) or shutil.which(python)
    if path is None:
        raise SettingsError(
            f"there is no interpreter '{python}'",
            where="--gptune-reference-python",
            mend="give the path of a python that has the old version, as old/bin/python",
        )
    return path


def _check_routes(config: pytest.Config) -> None:
    """Refuse a malformed expression; where all tests have routes of their own, no test would.

    Raises:
        GptuneError: it is malformed, or in a file that cannot be read.
    """
    from pytest_gptune.routes import RouteExpression

    text, where, from_file = given_routes(config)
    if text is not None:
        RouteExpression.check_grammar(text, where=where, comments=from_file)


def _check_route_timeout(config: pytest.Config) -> None:
    """Refuse a time that no route could keep to, or none at all."""
    for where, seconds in (
        ("--gptune-route-timeout", config.getoption("gptune_route_timeout")),
        ("ini gptune_route_timeout", config.getini("gptune_route_timeout")),
    ):
        if seconds is not None and not 0 < seconds < math.inf:
            raise SettingsError(
                f"route_timeout is {seconds:g}",
                where=where,
                mend="give seconds above 0, or leave it out for 3600",
            )


def _either(choices: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(choices[:-1]), choices[-1]]))


def _check_revision(revision: str, config: pytest.Config) -> None:
    """Refuse a revision that no repository of this run has.

    Raises:
        GptuneError: there is none, or no git, or no repository.
    """
    from pytest_gptune.records.history import find_commit, required_root

    here = config.invocation_params.dir
    named = [here / argument.partition("::")[0] for argument in config.args]
    folders = [config.rootpath, *(path if path.is_dir() else path.parent for path in named)]
    first: GptuneError | None = None
    for folder in dict.fromkeys(folder for folder in folders if folder.is_dir()):
        try:
            root = required_root(folder)
            find_commit(root, revision)
        except GptuneError as error:
            first = first or error
            continue
        return
    # A test's baseline may lie in a submodule, which has revisions of its own.
    if first is not None and not (config.rootpath / ".gitmodules").exists():
        raise first if first.where == _AGAINST else first.located(_AGAINST)
