"""Names and places of records, whole files or none, and locks across processes."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import boltons.fileutils
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_gptune import storage
from pytest_gptune.errors import StorageError
from pytest_gptune.storage import (
    cache_folder,
    lock_folder,
    locked,
    record_path,
    safe_name,
    scratch_folder,
    write_atomically,
)

RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}
ANY_TEXT = st.text(st.characters())
ODD = [
    *("", ".", "..", "...", " ", "~", "~root", "-rf", ".hidden", "trailing.", "trailing ", "a\0b", "a\nb"),
    *("a/b", "a\\b", "../../etc/passwd", "C:\\x", "C:x", "//server/share", 'a*?<>|":b', "test[a/b]"),
    *("CON", "con", "nul.txt", "NUL.golden", "Com1", "lpt9.a.b", "aux ", "prn.", "com\u00b9", "\uff23ON"),
    *("\u00fc", "\u00e9" * 50, "\udc80", "\U0001f389", "x" * 120, "x" * 121, "x" * 300),
    "Class.test_x[float32-1]",
]

HOLD = """
import sys
from pathlib import Path
from pytest_gptune.storage import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""
WRITE = """
import sys
from pathlib import Path
from pytest_gptune.storage import write_atomically
letter, size = sys.argv[2].encode(), 200_000
for _ in range(25):
    write_atomically(Path(sys.argv[1]), letter * size)
"""
FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from pytest_gptune.errors import StorageError
from pytest_gptune.storage import write_atomically
# A limit on the size of files fails where a full disk does: within write, or as the buffer is flushed.
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    write_atomically(Path(sys.argv[1]), b"n" * int(sys.argv[2]))
except StorageError as error:
    print(error.what)
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


# Names.


def check_name(name: str) -> None:
    """A single component of a path, on every system."""
    assert 1 <= len(name) <= 120
    assert name.isascii()
    assert name.isprintable()
    assert not set(name) & set('/\\:*?"<>|\0')
    assert name not in (".", "..")
    assert name[-1] not in ". "
    assert name[0] not in ". ~"
    assert name.split(".")[0].lower() not in RESERVED
    assert PurePosixPath("folder", name).name == name
    assert PureWindowsPath("folder", name).name == name
    assert PureWindowsPath("folder", name).parent.name == "folder"


@given(ANY_TEXT)
def test_any_text_gives_a_safe_name(text: str) -> None:
    check_name(safe_name(text))
    assert safe_name(text) == safe_name(text)


@pytest.mark.parametrize("text", ODD, ids=lambda text: ascii(text)[:20])
def test_odd_texts_give_safe_names(text: str, tmp_path: Path) -> None:
    name = safe_name(text)
    check_name(name)
    (tmp_path / name).write_text("it can be made")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_odd_texts_give_distinct_names() -> None:
    assert len({safe_name(text) for text in ODD}) == len(ODD)


@given(st.lists(ANY_TEXT, min_size=2, max_size=2, unique=True))
@example(["x" * 119 + "a", "x" * 119 + "b"])
@example(["x" * 300, "x" * 301])
@example(["a/b", "a_b"])
@example(["a/b", "a\\b"])
@example(["\u00e9", "e\u0301"])
@example(["test.", "test"])
@example(["con", "_con"])
@example(["", "_"])
def test_distinct_texts_give_distinct_names(texts: list[str]) -> None:
    assert safe_name(texts[0]) != safe_name(texts[1])


@given(ANY_TEXT)
def test_a_name_made_from_another_is_told_apart(text: str) -> None:
    """Someone may name a test as the name of another test came out."""
    name = safe_name(text)
    if name != text:
        assert safe_name(name) != name


@pytest.mark.parametrize(
    "text",
    [
        "test_x",
        "Class.test_x[float32-1]",
        "test_x[a=1,b=2]",
        "test_x[1.5]",
        "a@b+c",
        "x" * 120,
        "-rf",
        "console",
    ],
)
def test_plain_texts_stay_as_they_are(text: str) -> None:
    assert safe_name(text) == text


@pytest.mark.parametrize("text", ["a/b", "nul.txt", "x" * 300, "\u00fc"])
def test_changed_texts_carry_a_digest(text: str) -> None:
    assert re.fullmatch(r".+~[0-9a-f]{8}", safe_name(text))


@given(ANY_TEXT, ANY_TEXT, st.sampled_from(["golden.npz", "baseline.json"]))
@example("../../x", "../../y", "golden.npz")
@example("..", "..", "golden.npz")
def test_a_record_stays_below_its_folder(stem: str, owner: str, kind: str) -> None:
    folder = Path("tests") / "inner"
    # The file of a test exists, so its own name has no separator.
    stem = re.sub(r"[/\\\0]", "_", stem) or "x"
    path = record_path(folder / f"{stem}.py", owner, kind)
    relative = path.relative_to(folder)
    assert relative.parts[0] == "__gptune__"
    assert len(relative.parts) == 3
    assert ".." not in relative.parts
    assert path.name.endswith(f".{kind}")
    assert len(path.name) <= 255


def test_a_record_has_the_place_that_is_documented() -> None:
    path = record_path(Path("tests/test_encoder.py"), "TestEncoder.test_encoder[fp16]", "golden.npz")
    assert path.as_posix() == "tests/__gptune__/test_encoder/TestEncoder.test_encoder[fp16].golden.npz"


def test_composed_and_decomposed_names_are_two() -> None:
    composed, decomposed = (unicodedata.normalize(form, "\u00e9") for form in ("NFC", "NFD"))
    assert safe_name(composed) != safe_name(decomposed)


# Files.


def only(path: Path) -> bytes:
    """The content of the only file in its folder."""
    assert [item.name for item in path.parent.iterdir()] == [path.name]
    return path.read_bytes()


@pytest.mark.parametrize("content", [b"", b"new", b"\r\n\x00\xff" * 1000])
def test_a_file_is_written_whole(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "new" / "folder" / "file.json"
    write_atomically(path, content)
    assert only(path) == content
    write_atomically(path, b"again")
    assert only(path) == b"again"


def test_a_name_with_dots_and_brackets(tmp_path: Path) -> None:
    path = tmp_path / "test_x[a=1].golden.npz"
    write_atomically(path, b"new")
    assert only(path) == b"new"


def test_a_part_file_that_was_left_behind_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    (tmp_path / "file.json.part").write_bytes(b"of a run that was killed")
    write_atomically(path, b"new")
    assert only(path) == b"new"


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions")
def test_permissions_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, b"old")
    path.chmod(0o640)
    write_atomically(path, b"new")
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), PermissionError(13, "Permission denied")]
)
def test_a_failure_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, b"old")

    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(boltons.fileutils, "atomic_rename", fail)
    with pytest.raises(StorageError) as caught:
        write_atomically(path, b"new")
    assert "cannot write file.json" in caught.value.what
    assert str(error.strerror) in caught.value.what
    assert caught.value.where == str(tmp_path)
    assert caught.value.mend
    assert only(path) == b"old"


@pytest.mark.skipif(os.name != "posix", reason="needs limits of POSIX")
@pytest.mark.parametrize("size", [2000, 200_000], ids=["as it is flushed", "as it is written"])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, b"old")
    run = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path), str(size)], capture_output=True, text=True, check=True
    )
    assert run.stdout == "cannot write file.json: File too large\n"
    assert only(path) == b"old"


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write anywhere"
)
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file.json"
    write_atomically(path, b"old")
    path.parent.chmod(0o500)
    try:
        with pytest.raises(StorageError, match="Permission denied"):
            write_atomically(path, b"new")
        assert only(path) == b"old"
    finally:
        path.parent.chmod(0o700)


@pytest.mark.parametrize("name", ["folder", "folder/file.json/more.json"])
def test_a_place_that_is_taken(tmp_path: Path, name: str) -> None:
    """A folder where the file should be, or a file where its folder should be."""
    write_atomically(tmp_path / "folder" / "file.json", b"old")
    with pytest.raises(StorageError, match="cannot write"):
        write_atomically(tmp_path / name, b"new")
    assert only(tmp_path / "folder" / "file.json") == b"old"


def test_two_writers_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, b"a" * 200_000)
    writers = [subprocess.Popen([sys.executable, "-c", WRITE, str(path), letter]) for letter in "ab"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        content = path.read_bytes()
        assert len(content) == 200_000
        seen |= set(content)
        assert len(set(content)) == 1
    assert [writer.wait() for writer in writers] == [0, 0]
    assert seen <= set(b"ab")
    only(path)


# Locks.


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of ``file`` until it is told to stop."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "file")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_lock_excludes_other_processes(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(StorageError) as caught, locked(tmp_path / "file", timeout_s=0.05):
        pytest.fail("the lock was not exclusive")
    assert "another process has held the lock on file" in caught.value.what
    assert caught.value.where == str(tmp_path / "file")
    assert caught.value.mend
    with locked(tmp_path / "other", timeout_s=0.05):
        pass  # another file has another lock
    holder.communicate("\n")
    with locked(tmp_path / "file", timeout_s=60):
        pass


def test_a_process_that_dies_leaves_no_lock(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    with locked(tmp_path / "file", timeout_s=60):
        pass


def test_a_lock_is_released_on_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), locked(tmp_path / "file"):
        raise KeyError
    with locked(tmp_path / "file", timeout_s=1):
        pass


def test_an_error_within_a_lock_is_its_own(tmp_path: Path) -> None:
    """Not one of the lock's."""
    with pytest.raises(OSError, match="of the caller") as caught, locked(tmp_path / "file"):
        raise OSError("of the caller")
    assert not isinstance(caught.value, StorageError)


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_one_file_by_two_names_has_one_lock(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with (
        pytest.raises(StorageError, match="another process"),
        locked(tmp_path / "link" / "file", timeout_s=0.05),
    ):
        pytest.fail("the lock was not exclusive")


def test_locks_stand_in_the_cache_folder(tmp_path: Path) -> None:
    with locked(tmp_path / "file"):
        assert list(lock_folder().glob("*.lock"))
    assert list(tmp_path.iterdir()) == []
    assert lock_folder().is_relative_to(cache_folder())


def test_a_cache_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setattr(storage, "cache_folder", lambda: tmp_path / "taken")
    for make in (lambda: locked(tmp_path / "file"), scratch_folder):
        with pytest.raises(StorageError) as caught, make():
            pytest.fail("it was made")
        assert "cannot make" in caught.value.what
        assert "XDG_CACHE_HOME" in caught.value.mend


# Scratch.


def test_a_scratch_folder_is_gone_afterwards() -> None:
    with scratch_folder() as folder, scratch_folder() as other:
        assert folder != other
        assert folder.is_dir()
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("content")
    assert not folder.exists()
    with pytest.raises(KeyError), scratch_folder() as folder:
        raise KeyError
    assert not folder.exists()


def test_scratch_of_the_dead_is_removed_and_of_the_living_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "cache_folder", lambda: tmp_path)
    parent = tmp_path / "scratch"
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    here = safe_name(platform.node())
    left = parent / f"{dead.stdout.strip()}-{here}@abc"
    living = parent / f"{os.getpid()}-{here}@abc"
    elsewhere = parent / f"{dead.stdout.strip()}-another-machine@abc"
    foreign = parent / "notes"
    for folder in (left, living, elsewhere, foreign):
        folder.mkdir(parents=True)
        (folder / "file").write_text("content")
    with scratch_folder():
        assert not left.exists()
        assert living.exists()
        assert elsewhere.exists(), "a number of a process on another machine says nothing here"
        assert foreign.exists()


def test_parameters_that_differ_by_case_alone_have_names_that_differ_otherwise() -> None:
    names = {safe_name("test_x[A]").lower(), safe_name("test_x[a]").lower()}
    assert len(names) == 2
    assert safe_name("TestClass.test_x[a]") == "TestClass.test_x[a]"
