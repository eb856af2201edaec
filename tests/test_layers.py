"""The package as a whole: layers, sizes, and what a start of pytest imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_gptune
from pytest_gptune.plugin.options import GATE_CHOICES
from pytest_gptune.verdict import GATES

ROOT = Path(__file__).parents[1]
PACKAGE = Path(pytest_gptune.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES = 500
BACKENDS = {"onnxruntime", "tensorrt", "tensorrt_rtx", "cuda", "pynvml"}
HEAVY = (
    "numpy",
    "onnx",
    "onnxruntime",
    "ml_dtypes",
    "tensorrt",
    "cuda",
    "rich",
    "loky",
    "filelock",
    "boltons",
    "matplotlib",
)

STARTED = """
import sys
import pytest
before = set(sys.modules)
import pytest_gptune.plugin
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def imported(path: Path) -> set[str]:
    """Top-level names of all absolute imports of a file, wherever they stand in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names


def contracts() -> list[dict[str, object]]:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 or later reads the configuration")
    found: list[dict[str, object]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"][
        "importlinter"
    ]["contracts"]
    return found


def test_the_contracts_are_kept() -> None:
    pytest.importorskip("importlinter")
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "0 broken" in run.stdout


def test_the_contracts_are_about_the_whole_package() -> None:
    """A new layer that no contract names would be free to import anything."""
    everything = {
        f"pytest_gptune.{path.stem}"
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    } - {"pytest_gptune.__init__"}
    by_name = {str(contract["name"]): contract for contract in contracts()}
    layers = by_name["Data flows one way"]["layers"]
    assert isinstance(layers, list)
    assert {name.strip() for layer in layers for name in layer.split("|")} == everything
    without_pytest = by_name["Only the plugin layer imports pytest"]["source_modules"]
    assert isinstance(without_pytest, list)
    assert set(without_pytest) == everything - {"pytest_gptune.plugin"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_is_of_a_size_to_read(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= MOST_LINES


def test_only_engines_import_backends() -> None:
    importing = {name_of(path) for path in FILES if imported(path) & BACKENDS}
    assert {name for name in importing if not name.startswith("engines/")} == set()


def test_only_the_plugin_imports_pytest() -> None:
    importing = {name_of(path) for path in FILES if imported(path) & {"pytest", "_pytest", "xdist"}}
    assert {name for name in importing if not name.startswith("plugin/")} == set()


def test_a_start_of_pytest_imports_nothing_heavy() -> None:
    run = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, check=True)
    names = set(run.stdout.split())
    assert "pytest_gptune" in names
    assert names & set(HEAVY) == set()


def test_the_plugins_gates_are_the_verdicts() -> None:
    """The options are read at every start of pytest, so they have a list of their own."""
    assert GATE_CHOICES == GATES


def test_type_information_is_shipped() -> None:
    assert (PACKAGE / "py.typed").exists()
