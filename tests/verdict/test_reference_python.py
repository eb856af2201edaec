"""``--gptune-reference-python``: the reference engine under another interpreter, interleaved in one run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import models
import pytest

OLD_VERSION = "1.23.2"
REPORT = "--gptune-report=r.json"

# The two interpreters' processes may be on cores of different paces.
NO_LIMIT = "--gptune-max-regression=400"

TEST = """
import pytest

@pytest.mark.gptune(model="net.onnx", epsilon=1e-4, routes="-ort:intra_op_num_threads=1")
def test_net(gptune):
    gptune.check()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models.mlp(tmp_path / "net.onnx", layers=8, width=128, batch=16)
    (tmp_path / "test_net.py").write_text(TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\ngptune_final_builds = 2\n")
    done = run(tmp_path, "--gptune-update-goldens", "--gptune-update-baseline", "--gptune-search=fast")
    assert done.returncode == 0, done.stdout
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--gptune-report=r.json",
            *arguments,
        ],
        cwd=folder,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def verdict_of(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "r.json").read_text())["tests"][0]["verdict"]
    return found


def pretend_an_older_stack(folder: Path, version: str) -> None:
    """Let the baseline have been written by another version, as one is before an upgrade."""
    path = folder / "__gptune__" / "test_net" / "test_net.baseline.json"
    plain = json.loads(path.read_text())
    software = plain["entries"][0]["fingerprint"]["invalidating"]["software"]
    software["backend"] = f"onnxruntime {version}"
    path.write_text(json.dumps(plain))


def test_an_upgrade_is_gated_by_a_paired_comparison(folder: Path) -> None:
    pretend_an_older_stack(folder, "1.0.0")
    without = run(folder)
    assert verdict_of(folder)["gate"] == "absolute", without.stdout
    done = run(folder, f"--gptune-reference-python={sys.executable}", NO_LIMIT)
    verdict = verdict_of(folder)
    assert (done.returncode, verdict["outcome"], verdict["gate"]) == (0, "pass", "paired"), done.stdout
    assert isinstance(verdict["against_s"], float)
    assert "of --gptune-reference-python" in done.stdout


def test_an_interpreter_that_is_not_there(folder: Path) -> None:
    (folder / "r.json").unlink()
    done = run(folder, "--gptune-reference-python=no/such/python")
    assert done.returncode == 4
    assert done.stderr.splitlines()[:3] == [
        "ERROR: there is no interpreter 'no/such/python'",
        "  in: --gptune-reference-python",
        "  do: give the path of a python that has the old version, as old/bin/python",
    ]
    assert not (folder / "r.json").exists()


def test_an_interpreter_of_the_ini_file_that_is_not_there(folder: Path) -> None:
    """The file goes to machines that lack it, where other tests must run."""
    with (folder / "pytest.ini").open("a") as ini:
        ini.write("gptune_reference_python = no/such/python\n")
    pretend_an_older_stack(folder, "1.0.0")
    done = run(folder)
    assert "there is no interpreter 'no/such/python'" in done.stdout
    assert verdict_of(folder)["outcome"] == "incomparable"


def message_without(folder: Path, python: str) -> list[str]:
    """The message of a run whose reference interpreter cannot build the engine."""
    pretend_an_older_stack(folder, "1.0.0")
    done = run(folder, f"--gptune-reference-python={python}")
    verdict = verdict_of(folder)
    assert (done.returncode, verdict["outcome"], verdict["reason"]) == (0, "incomparable", "environment")
    assert "INTERNALERROR" not in done.stdout
    assert "Traceback" not in done.stdout
    return str(verdict["message"]).splitlines()


def test_an_interpreter_without_the_backend(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """It has no NumPy either."""
    bare = tmp_path_factory.mktemp("bare")
    venv.create(bare, symlinks=sys.platform != "win32")
    python = bare / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    assert message_without(folder, str(python)) == [
        "the reference engine cannot be built: backend 'onnxruntime' is not installed",
        f"  in: --gptune-reference-python, {python}",
        "  do: install it there (numpy and the backend's package are enough), or name another one",
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="a script is no program there")
def test_a_program_that_is_no_interpreter(folder: Path) -> None:
    program = folder / "python"
    program.write_text("#!/bin/sh\necho first\necho 'last words'\nexit 3\n")
    program.chmod(0o755)
    what, where, mend, *log = message_without(folder, "./python")
    assert what.startswith("the reference engine cannot be built: the worker exited with code 3")
    assert where == f"  in: --gptune-reference-python, {program}"
    assert mend.startswith("  do: install it there")
    assert log == ["  log: last words"]


@pytest.mark.long
def test_two_versions_of_onnxruntime_in_one_run(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each is built under its own interpreter, the older one with nothing but its package and numpy."""
    old = tmp_path_factory.mktemp("old")
    venv.create(old, with_pip=True, symlinks=sys.platform != "win32")
    python = old / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    subprocess.run([python, "-m", "pip", "install", "-q", f"onnxruntime=={OLD_VERSION}", "numpy"], check=True)
    pretend_an_older_stack(folder, OLD_VERSION)
    done = run(folder, f"--gptune-reference-python={python}", NO_LIMIT)
    verdict = verdict_of(folder)
    assert (verdict["outcome"], verdict["gate"]) == ("pass", "paired"), done.stdout
    assert f"built by onnxruntime {OLD_VERSION} of --gptune-reference-python" in done.stdout
    same = textwrap.dedent(
        """
        import importlib.util
        print(any(importlib.util.find_spec(name) for name in ("onnx", "loky", "psutil", "pytest")))
        """
    )
    seen = subprocess.run([python, "-c", same], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "False", "the older interpreter has none of this package's dependencies"
