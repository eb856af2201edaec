"""``gptune``: what needs no test run."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

from pytest_gptune import __version__
from pytest_gptune.cli import main
from pytest_gptune.engines.registry import load_backend
from pytest_gptune.routes import KnobSpace

MEM = "-ort:enable_mem_pattern=[on|off]"
SPACE = KnobSpace.from_json(load_backend("onnxruntime").knob_space(None, {}))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """What the command prints; it succeeds and has nothing to complain of."""
    assert main(list(arguments)) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.splitlines()


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command complains of; its exit code is 2."""
    code: object
    try:
        code = main(list(arguments))
    except SystemExit as error:  # argparse's own
        code = error.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def test_it_is_installed_as_a_command() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="gptune")
    assert script.load() is main


def test_knobs(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "knobs")
    assert lines[0] == f"onnxruntime {SPACE.tuner_version}: {len(SPACE)} knobs"
    text = "\n".join(lines)
    assert all(knob.name in text for knob in SPACE)
    assert f"{SPACE.expression().fast().count} routes" in lines[-1]


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_knobs_fit_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert all(len(line) <= columns for line in run(capsys, "knobs")[:-1])


def test_knobs_by_name_or_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(run(capsys, "knobs", "MEM_REUSE"))
    assert "-ort:enable_mem_reuse" in text
    assert "-ort:execution_mode" not in text
    assert "1 with 'MEM_REUSE'" in text
    assert "-ort:session.intra_op.allow_spinning" in "\n".join(run(capsys, "knobs", "spin while"))


def test_knobs_that_nothing_matches(capsys: pytest.CaptureFixture[str]) -> None:
    assert "0 with 'nothing at all'" in run(capsys, "knobs", "nothing at all")[0]


@pytest.mark.parametrize("wanted", ["", "mem", "thread", "nothing at all"])
def test_knobs_as_json_are_the_space(capsys: pytest.CaptureFixture[str], wanted: str) -> None:
    text = "\n".join(run(capsys, "knobs", "--json", *([wanted] if wanted else [])))
    assert KnobSpace.from_json(text) == SPACE.filter(wanted)


@pytest.mark.parametrize("expression", [MEM, f" {MEM}", f"{MEM}  ", f"\n{MEM}\n"])
def test_routes(capsys: pytest.CaptureFixture[str], expression: str) -> None:
    """An expression of one knob has no white space, and argparse would take it for an option."""
    lines = run(capsys, "routes", expression)
    assert lines == ["2 routes", "-ort:enable_mem_pattern=on", "-ort:enable_mem_pattern=off"]


def test_routes_fast_and_full(capsys: pytest.CaptureFixture[str]) -> None:
    expression = f"{MEM} -ort:enable_mem_reuse=[on|off] -ort:execution_mode=parallel"
    fast = run(capsys, "routes", expression)
    full = run(capsys, "routes", expression, "--search", "full")
    assert run(capsys, "routes", "--search", "full", expression) == full
    assert fast[0] == "3 routes"
    assert full[0] == "4 routes"
    assert set(fast[1:]) < set(full[1:])
    assert all(line.endswith("-ort:execution_mode=parallel") for line in full[1:])


def test_routes_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "routes", MEM, "--most", "1")
    assert lines == ["2 routes", "-ort:enable_mem_pattern=on", "... and 1 more (--most)"]
    assert run(capsys, "routes", MEM, "--most=0")[1:] == ["... and 2 more (--most)"]


@pytest.mark.parametrize("most", ["-1", "x", "1.5", ""])
def test_a_number_that_is_none(capsys: pytest.CaptureFixture[str], most: str) -> None:
    assert "is not a number of routes" in fails(capsys, "routes", MEM, f"--most={most}")


def test_routes_of_very_many(capsys: pytest.CaptureFixture[str]) -> None:
    expression = " ".join(
        f"{knob.name}=[{'|'.join(knob.values)}]" for knob in SPACE if knob.values and len(knob.values) > 1
    )
    lines = run(capsys, "routes", "--search", "full", "--most", "2", expression)
    assert int(lines[0].split()[0]) > 10**9
    assert len(lines) == 4


def test_pruned_values_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "routes", "-ort:intra_op_num_threads=[1|4096]")
    assert not any("4096" in line for line in lines[:-1])
    assert lines[-1].startswith("pruned: -ort:intra_op_num_threads=4096: this process may use")


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("-ort:enable_mem_patern=[on|off]", "-ort:enable_mem_pattern"),
        ("ort:enable_mem_pattern=[on|off]", "-ort:enable_mem_pattern, with its leading dash"),
        ("-ort:enable_mem_pattern=[on|maybe]", "maybe"),
        ("-ort:enable_mem_pattern=[on|", "expression"),
        ("-half=[on|off]", "unknown knob '-half' at character 1"),
        ("hello", "hello"),
    ],
)
def test_expressions_that_are_wrong(capsys: pytest.CaptureFixture[str], expression: str, said: str) -> None:
    message = fails(capsys, "routes", expression)
    assert message.startswith("gptune: ")
    assert said in message
    assert "  in: expression" in message


@pytest.mark.parametrize("command", [("knobs",), ("knobs", "--json"), ("routes", MEM)])
@pytest.mark.parametrize(
    ("backend", "said"), [("onnxruntme", "write onnxruntime"), ("zzz", "use one of: onnxruntime")]
)
def test_backends_that_are_not_there(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...], backend: str, said: str
) -> None:
    message = fails(capsys, *command, "--backend", backend)
    assert f"gptune: unknown backend '{backend}'" in message
    assert said in message


@pytest.mark.parametrize("arguments", [(), ("unheard-of",), ("routes",), ("knobs", "--unheard-of")])
def test_command_lines_that_are_wrong(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert "usage: gptune" in fails(capsys, *arguments)


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["--version"], f"pytest-gptune {__version__}"),
        (["--help"], "pytest --gptune-search fast"),
        (["routes", "--help"], "quote it"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 0
        assert said in capsys.readouterr().out


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no broken pipes")
def test_a_reader_that_leaves_early_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest_gptune.cli", "knobs"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1
    process.stderr.close()
