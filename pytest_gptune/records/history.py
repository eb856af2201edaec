"""The baseline's model, out of git: the paired gate compares with it in the same run.

Git is the one thing asked; nothing is written to the repository. The model is taken from the commit that
wrote the baseline (or from the one that is named) and counts only if its digest is the baseline's.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from pytest_gptune.engines.onnx_model import external_data_files, model_digest, parse_model
from pytest_gptune.errors import GptuneError

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


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
        out = _git(folder, "rev-parse", "--show-toplevel")
    except HistoryError:
        return None
    return Path(out.decode().strip())


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
    """
    commit = _resolve(root, against) if against else _commit_of(root, baseline)
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
            "the model in git is not the one the baseline was made with",
            where=where,
            mend=_shallow_mend(root)
            or "commit model and baseline together, or name the commit of the model: --gptune-against REF",
        )
    return OldModel(into / name, commit)


def _commit_of(root: Path, baseline: Path) -> str:
    """The commit that last wrote the baseline file."""
    try:
        relative = baseline.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        raise HistoryError(
            "the baseline is not in the repository of the root folder", where=str(baseline)
        ) from None
    commit = _git(root, "log", "-1", "--format=%H", "--", relative).decode().strip()
    if not commit:
        raise HistoryError(
            "the baseline has not been committed, so no commit has its model",
            where=relative,
            mend="commit the baseline together with its model",
        )
    return commit


def _resolve(root: Path, revision: str) -> str:
    try:
        return _git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").decode().strip()
    except HistoryError:
        raise HistoryError(
            f"git knows no revision '{revision}'",
            where="--gptune-against",
            mend=_shallow_mend(root) or "name a commit, tag or branch that is there (git fetch)",
        ) from None


def _show(root: Path, commit: str, path: str) -> bytes:
    """The file as a checkout would have it: filters applied, so that an LFS pointer becomes its content."""
    try:
        content = _git(root, "cat-file", "--filters", f"{commit}:{path}")
    except HistoryError as error:
        raise HistoryError(
            f"{path} is not in commit {commit[:12]}",
            where=error.what,
            mend=_shallow_mend(root)
            or "commit model and baseline together, or name the commit of the model: --gptune-against REF",
        ) from None
    if content.startswith(_LFS_POINTER):
        raise HistoryError(
            f"{path} in commit {commit[:12]} is a Git LFS pointer whose content is not here",
            where=str(root),
            mend=f"git lfs install && git lfs fetch origin {commit[:12]}",
        )
    return content


def _shallow_mend(root: Path) -> str:
    if _git(root, "rev-parse", "--is-shallow-repository").decode().strip() == "true":
        return "this is a shallow clone: git fetch --unshallow (actions/checkout: fetch-depth: 0)"
    return ""


def _git(folder: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=120,
        )
    except FileNotFoundError:
        raise HistoryError("git is not installed", mend="install git") from None
    except subprocess.TimeoutExpired:
        raise HistoryError(f"git {arguments[0]} took more than two minutes", where=str(folder)) from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"git {arguments[0]} failed"]
        raise HistoryError(lines[-1], where=str(folder))
    return done.stdout
