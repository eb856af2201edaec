"""The baseline's model, out of git: the paired gate compares with it in the same run.

Git is the one thing asked; nothing is written to the repository. The model is taken from the commit that
wrote the baseline (or from the one that is named) and counts only if its digest is the baseline's.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_gptune.engines.onnx_model import external_data_files, model_digest, parse_model
from pytest_gptune.errors import GptuneError

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"

# Git sets these for its hooks; the repository meant here is the one of the folder.
_OF_A_HOOK = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
)

# How many commits that wrote a baseline are looked at.
_MOST_COMMITS = 20


class HistoryError(GptuneError):
    """The baseline's model cannot be had from git."""


@dataclass(frozen=True)
class OldModel:
    """The baseline's model, written out.

    Attributes:
        path: the file.
        commit: full id of the commit it is from.
    """

    path: Path
    commit: str


def repository_root(folder: Path) -> Path | None:
    """The top folder of the git repository that contains ``folder``, None where there is none or no git."""
    try:
        return required_root(folder)
    except HistoryError:
        return None


def required_root(folder: Path) -> Path:
    """The top folder of the git repository that contains ``folder``.

    Raises:
        HistoryError: there is none, there is no git, or git refuses to touch it.
    """
    try:
        out = _git(folder, "rev-parse", "--show-toplevel")
    except HistoryError as error:
        if "dubious ownership" in error.what:
            raise HistoryError(
                error.what, mend=f"git config --global --add safe.directory '{folder}' or a folder above it"
            ) from None
        if "not a git repository" in error.what:
            raise HistoryError(
                "the project is not in a git repository", mend="commit it, so that old models can be had"
            ) from None
        raise
    return Path(os.fsdecode(out).rstrip("\r\n"))


def find_commit(root: Path, revision: str) -> str:
    """The full id of the commit that ``revision`` names.

    Raises:
        HistoryError: git knows none; in a shallow clone that is what mends it.
    """
    try:
        return _git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").decode().strip()
    except HistoryError:
        raise HistoryError(
            f"git knows no revision '{revision}'",
            where="--gptune-against",
            mend=_mend(root, "name a commit, tag or branch that is there (git fetch)"),
        ) from None


def old_model(
    *, root: Path, baseline: Path, model_path: str, sha256: str, into: Path, against: str = ""
) -> OldModel:
    """Write the model that the baseline was made with into the folder ``into``.

    Args:
        root: top folder of the repository.
        baseline: the baseline file.
        model_path: the model's path relative to ``root``, as the baseline has it.
        sha256: the model's digest, as the baseline has it.
        into: an existing, empty folder.
        against: revision to take it from; empty for the commit that wrote the baseline.

    Raises:
        HistoryError: why it cannot be had, and what mends that.
        ModelError: what is in git is no model.
    """
    first: GptuneError | None = None
    for commit in [find_commit(root, against)] if against else _commits_of(root, baseline, sha256):
        try:
            return OldModel(_written(root, commit, model_path, sha256, into), commit)
        except GptuneError as error:
            first = first or error
    assert first is not None  # there is at least one commit
    raise first


def _written(root: Path, commit: str, model_path: str, sha256: str, into: Path) -> Path:
    """Write the model of a commit into ``into``, with its external data."""
    content = _show(root, commit, model_path)
    name = Path(model_path).name
    where = f"{model_path} at {commit[:12]}"
    model = parse_model(content, where)
    (into / name).write_bytes(content)
    data: list[tuple[str, Path]] = []
    folder = Path(model_path).parent
    for location in external_data_files(model, where):
        target = into / location
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(_show(root, commit, (folder / location).as_posix()))
        data.append((location, target))
    if model_digest(content, data) != sha256:
        raise HistoryError(
            "the model in git is not the one the baseline was made with", where=where, mend=_mend(root)
        )
    return into / name


def _commits_of(root: Path, baseline: Path, sha256: str) -> Iterator[str]:
    """Commits that wrote the baseline: the last one, then those that wrote the entry of this model.

    A file has an entry for each device; the last commit of the file may be about another one.
    """
    try:
        relative = baseline.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        raise HistoryError(
            "the baseline is not in the repository of the root folder", where=str(baseline)
        ) from None
    last = _git(root, "log", "-1", "--format=%H", "--", relative).decode().strip()
    if not last:
        raise HistoryError(
            "the baseline has not been committed, so no commit has its model",
            where=relative,
            mend="commit the baseline together with its model",
        )
    yield last
    of_entry = _git(root, "log", f"-{_MOST_COMMITS}", "--format=%H", f"-S{sha256}", "--", relative)
    yield from (commit for commit in of_entry.decode().split() if commit != last)


def _show(root: Path, commit: str, path: str) -> bytes:
    """The file as a checkout would have it: filters applied, so that an LFS pointer becomes its content."""
    name = f"{commit}:{path}"
    try:
        content = _git(root, "cat-file", "--filters", name)
    except HistoryError as error:
        try:
            content = _git(root, "cat-file", "blob", name)
        except HistoryError:
            raise HistoryError(
                f"{path} is not in commit {commit[:12]}", where=error.what, mend=_mend(root)
            ) from None
        if not content.startswith(_LFS_POINTER):
            raise
    if content.startswith(_LFS_POINTER):
        raise HistoryError(
            f"{path} in commit {commit[:12]} is a Git LFS pointer whose content is not here",
            where=str(root),
            mend=f"git lfs install && git lfs fetch origin {commit[:12]}",
        )
    return content


def _mend(root: Path, otherwise: str = "") -> str:
    if _git(root, "rev-parse", "--is-shallow-repository").decode().strip() == "true":
        return "this is a shallow clone: git fetch --unshallow (actions/checkout: fetch-depth: 0)"
    return otherwise or (
        "commit model and baseline together, or name the commit of the model: --gptune-against REF"
    )


def _git(folder: Path, *arguments: str) -> bytes:
    environment = {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}
    # A password that a filter asks for at the terminal would never come.
    environment["GIT_TERMINAL_PROMPT"] = "0"
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=120,
            env=environment,
        )
    except FileNotFoundError:
        raise HistoryError("git is not installed", mend="install git") from None
    except subprocess.TimeoutExpired:
        raise HistoryError(f"git {arguments[0]} took more than two minutes", where=str(folder)) from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"git {arguments[0]} failed"]
        fatal = next((line for line in lines if line.startswith("fatal: ")), lines[-1])
        raise HistoryError(fatal.removeprefix("fatal: "), where=str(folder))
    return done.stdout
