"""Where records stand, how their names are made, and how they are written.

Goldens and baselines stand beside the test that owns them, in
``__gptune__/<test file stem>/<Class>.<test>[<user parameters>].<kind>``. A name is sanitised so that no
test id can leave that folder, and carries a digest whenever sanitising or cutting changed it: two tests
never share a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import platform
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

from pytest_gptune.errors import StorageError

FOLDER = "__gptune__"

# Windows refuses these as file names whatever their extension; a repository is shared across systems.
_RESERVED = {"con", "prn", "aux", "nul"} | {f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10)}
_UNSAFE = re.compile(r"[^A-Za-z0-9._=,@+\[\]-]+")
_MAX_NAME = 120


def safe_name(text: str) -> str:
    """``text`` as a file name without separators, at most 120 characters, distinct for distinct texts.

    A text that already is a safe name is kept as it is; any other gets ``~`` and 8 hex digits of its
    SHA-256, so that cutting and replacing never make two texts one. Parameters with capitals get them too:
    ``[A]`` and ``[a]`` are one file where the system folds case.
    """
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    name = _UNSAFE.sub("_", plain).strip(". ")
    if not name or name.split(".")[0].lower() in _RESERVED:
        name = f"_{name}"
    parameters = name.partition("[")[2]
    if name == text and len(name) <= _MAX_NAME and parameters == parameters.lower():
        return name
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name[: _MAX_NAME - 9]}~{digest}"


def record_path(test_file: Path, owner: str, kind: str) -> Path:
    """The file of one test's record.

    Args:
        test_file: the test module.
        owner: ``Class.test[user parameters]`` as the test is named, without the route.
        kind: ``golden.npz`` or ``baseline.json``.
    """
    return test_file.parent / FOLDER / safe_name(test_file.stem) / f"{safe_name(owner)}.{kind}"


@contextlib.contextmanager
def locked(
    path: Path,
    timeout_s: float = 600.0,
    *,
    after_s: float = math.inf,
    waiting: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Hold the lock of ``path`` across processes; the lock file stands in the user's cache folder.

    Args:
        path: what is locked.
        timeout_s: seconds to wait at most.
        after_s: seconds after which ``waiting`` is called.
        waiting: says that it takes long.

    Raises:
        StorageError: the lock was not to be had within ``timeout_s``.
    """
    import filelock

    folder = lock_folder()
    digest = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / f"{digest}.lock", timeout=min(timeout_s, after_s))
        try:
            lock.acquire()
        except filelock.Timeout:
            if after_s >= timeout_s:
                raise
            waiting()
            lock.acquire(timeout=timeout_s - after_s)
    except filelock.Timeout:
        raise StorageError(
            f"another process has held the lock on {path.name} for {timeout_s:.0f} s",
            where=str(path),
            mend="wait for the other run to end, or stop it",
        ) from None
    except OSError as error:
        raise StorageError(
            f"cannot make a lock: {error.strerror or error}",
            where=str(folder),
            mend="make that folder writable, or set XDG_CACHE_HOME to one that is",
        ) from None
    try:
        yield
    finally:
        lock.release()


def lock_folder() -> Path:
    """Where lock files stand: the user's cache folder, so that no project folder fills with them."""
    return cache_folder() / "locks"


def cache_folder() -> Path:
    """The user's cache folder for this package, by the convention of the platform; not created here."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("pytest-gptune", appauthor=False))


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for files of this process, in the cache folder; gone afterwards.

    What a process that was killed left behind is removed by the next one that asks.

    Raises:
        StorageError: it cannot be made.
    """
    import psutil

    parent, here = cache_folder() / "scratch", safe_name(platform.node())
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for left in parent.iterdir():
            owner, _, host = left.name.partition("@")[0].partition("-")
            # A cache folder may be shared by several machines, whose process numbers say nothing here.
            if owner.isdigit() and host == here and not psutil.pid_exists(int(owner)):
                shutil.rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-{here}@", dir=parent))
    except OSError as error:
        raise StorageError(
            f"cannot make a scratch folder: {error.strerror or error}",
            where=str(parent),
            mend="make that folder writable, or set XDG_CACHE_HOME to one that is",
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``, whole or not at all, synced to disk before it takes the name.

    Raises:
        StorageError: the file cannot be written; the old one, if any, is untouched.
    """
    with locked(path):
        write_while_locked(path, content)


def write_while_locked(path: Path, content: bytes) -> None:
    """What ``write_atomically`` does, for a caller that holds the lock of ``path`` since it read it.

    Raises:
        StorageError: the file cannot be written; the old one, if any, is untouched.
    """
    import boltons.fileutils

    part_path = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with boltons.fileutils.atomic_save(str(path), text_mode=False, overwrite_part=True) as part:
                part.write(content)
        except OSError:
            # On a full disk atomic_save fails once more as it flushes, before it removes its part file.
            with contextlib.suppress(OSError):
                part_path.unlink()
            raise
    except OSError as error:
        raise StorageError(
            f"cannot write {path.name}: {error.strerror or error}",
            where=str(path.parent),
            mend="make the folder writable and free some space; the old file is as it was",
        ) from None
