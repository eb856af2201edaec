"""``gptune`` on tuning caches: a real one, small ones, and what is none."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cache_rows import HEADER, TRTEXEC_HEADER, foreign_row, record, write, write_foreign

from pytest_gptune.cli import main

EXAMPLE = Path(__file__).parents[1] / "example_project"
READING = ("show", "best", "what-if", "effects")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return write(
        tmp_path / "c.jsonl",
        [
            record("", 3e-3, 0.0, engine_digest="0123456789abcdef"),
            record("-a=1", 2e-3, 0.05),
            record("-b=1", 1e-3, 0.5, "inaccurate"),
            record("-c=1", None, None, "crashed", error="signal 11"),
        ],
    )


@pytest.fixture
def several(cache: Path) -> Path:
    return write(cache, [record("", 1e-3, 0.5, "inaccurate")], replace(HEADER, tuning="test_y.py::test_y"))


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> list[str]:
    """What the command prints; it has nothing to complain of."""
    assert main([str(argument) for argument in arguments]) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.splitlines()


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What the command complains of; its exit code is 2."""
    given: object
    try:
        given = main([str(argument) for argument in arguments])
    except SystemExit as error:  # argparse's own
        given = error.code
    captured = capsys.readouterr()
    assert given == 2
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def squeezed(lines: list[str]) -> list[str]:
    """The cells of each line, however wide the columns are."""
    return [" ".join(line.split()) for line in lines]


def test_show(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    lines = run(capsys, "show", cache)
    assert lines == [
        "test_x.py::test_x",
        "  onnxruntime 1.0",
        "  search full, 4 routes: 2 passed, 1 inaccurate, 1 crashed",
        "  metric lInf, epsilon 0.1",
        "  b=1",
        "    1 ms, speedup 3.00x, loss 0.5, inaccurate",
        "  a=1",
        "    2 ms, speedup 1.50x, loss 0.05, passed",
        "  default",
        "    3 ms, speedup 1.00x, loss 0, passed, 01234567",
        "  c=1",
        "    crashed",
        "",
    ]


def test_show_on_a_wide_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    lines = squeezed(run(capsys, "show", cache))
    assert "route latency speedup loss status digest" in lines
    assert "b=1 1 ms 3.00x 0.5 inaccurate -" in lines
    assert "c=1 - - - crashed -" in lines
    assert "default 3 ms 1.00x 0 passed 01234567" in lines


@pytest.mark.parametrize(
    ("epsilon", "route"),
    [("0", "default"), ("0.049", "default"), ("0.05", "-a=1"), ("0.5", "-b=1"), ("y=0.05", "-a=1")],
)
def test_best(capsys: pytest.CaptureFixture[str], cache: Path, epsilon: str, route: str) -> None:
    lines = run(capsys, "best", cache, "--epsilon", epsilon)
    assert lines[:2] == ["test_x.py::test_x", f"  '--gptune-route={route}'"]


def test_best_without_epsilon_takes_the_tunings(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    assert run(capsys, "best", cache)[1:] == [
        "  '--gptune-route=-a=1'",
        "  2 ms, 1.50x the default's speed, loss 0.05, one of 2 eligible",
    ]


WAITS = ("enqueue-bound: the host needs 97% of the device's time to enqueue",)


@pytest.mark.parametrize(
    ("default", "winner", "said"),
    [
        ((), (), None),
        (("throttled: sw_power_cap",), (), None),
        (WAITS, (), "the default's is the host's pace, which moves: finals decide"),
        ((), WAITS, "its latency is the host's pace, which moves: finals decide"),
        (
            WAITS,
            WAITS,
            "its latency and the default's are the host's pace, which moves: finals decide",
        ),
    ],
)
def test_a_latency_at_the_hosts_pace_is_told(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    default: tuple[str, ...],
    winner: tuple[str, ...],
    said: str | None,
) -> None:
    kind = "device_queued"
    records = [
        record("", 3e-3, 0, kind=kind, warnings=default),
        record("-a=1", 2e-3, 0, kind=kind, warnings=winner),
        record("-b=1", 4e-3, 0, kind=kind),
        record("-c=1", None, None, "crashed"),
    ]
    path = write(tmp_path / "waiting.jsonl", records)
    lines = run(capsys, "best", path)
    assert [line.strip() for line in lines[3:]] == ([] if said is None else [said])
    shown = [line for line in run(capsys, "show", path) if "pace" in line]
    count = sum(warnings == WAITS for warnings in (default, winner))
    assert shown == ([f"  {count} of 3 latencies are the host's pace, and move with it"] if count else [])


def test_the_pace_is_that_of_the_engine_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    records = [
        record("", 3e-3, 0, kind="device_queued", warnings=WAITS, engine_digest="e"),
        record("-a=1", None, None, "inert", engine_digest="e"),
    ]
    lines = run(capsys, "show", write(tmp_path / "inert.jsonl", records))
    assert "  2 of 2 latencies are the host's pace, and move with it" in lines


def test_best_of_none_is_exit_code_1(capsys: pytest.CaptureFixture[str], several: Path) -> None:
    lines = run(capsys, "best", several, code=1)
    assert "  '--gptune-route=-a=1'" in lines, "the tuning that has one is told all the same"
    assert lines[-1] == "  no route is eligible at epsilon 0.1: the smallest at which one is: 0.5"
    assert run(capsys, "best", several, "--epsilon", "0.5")


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([foreign_row(0, "-a=0", gpu_time=1.0)], "the cache has no losses"),
        ([foreign_row(0, "-a=0", 0.0)], "the cache has no latencies"),
        ([foreign_row(0, "-a=0", float("nan"), 1.0)], "no route has both a latency and a finite loss"),
    ],
)
def test_why_no_route_is_eligible_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, rows: list[dict[str, object]], why: str
) -> None:
    path = write_foreign(tmp_path / "t", rows, TRTEXEC_HEADER)
    assert run(capsys, "best", path, code=1)[-1].endswith(why)
    assert run(capsys, "what-if", path)[-2].endswith(why)


def test_what_if(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    lines = squeezed(run(capsys, "what-if", cache))
    assert lines[4:6] == ["epsilon eligible winner latency speedup", lines[5]]
    assert lines[6:] == [
        "0 1 of 4 default 3 ms 1.00x",
        "0.05 2 of 4 a=1 2 ms 1.50x",
        "0.5 3 of 4 b=1 1 ms 3.00x",
        "",
    ]


def test_what_if_at_given_epsilons(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    lines = squeezed(run(capsys, "what-if", cache, "--epsilon", "1", "--epsilon=0.06"))
    assert lines[6:8] == ["1 3 of 4 b=1 1 ms 3.00x", "0.06 2 of 4 a=1 2 ms 1.50x"]


def test_what_if_as_json(capsys: pytest.CaptureFixture[str], several: Path) -> None:
    text = "\n".join(run(capsys, "what-if", several, "--json", "--epsilon", "0.07"))
    report = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert report["schema"] == 1
    first, second = report["tunings"]
    assert first == {
        "tuning": "test_x.py::test_x",
        "metric": "lInf",
        "epsilon": 0.1,
        "routes": 4,
        "ladder": [
            {
                "epsilon": 0.07,
                "multiple": None,
                "eligible": 2,
                "winner": "-a=1",
                "latency_s": 2e-3,
                "speedup": pytest.approx(1.5),
            }
        ],
    }
    (rung,) = second["ladder"]
    assert (rung["eligible"], rung["winner"], rung["latency_s"], rung["speedup"]) == (0, None, None, None)


def test_with_an_epsilon_for_each_output_the_ladder_is_of_multiples(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    records = [record("", 2e-3, {"y": 0.01}), record("-a=1", 1e-3, {"y": 0.123456}, "inaccurate")]
    path = write(tmp_path / "c", records, replace(HEADER, epsilon={"y": 0.1}))
    lines = squeezed(run(capsys, "what-if", path))
    assert lines[3] == "metric lInf, epsilon y 0.1"
    assert lines[4].startswith("x epsilon eligible")
    assert lines[6:8] == ["0.1 1 of 2 default 2 ms 1.00x", "1.235 2 of 2 a=1 1 ms 2.00x"]
    report = json.loads("\n".join(run(capsys, "what-if", path, "--json")))
    assert report["tunings"][0]["ladder"][1]["epsilon"] == {"y": pytest.approx(0.123456)}


@pytest.mark.parametrize(("name", "magic"), [("w.png", b"\x89PNG"), ("sub/w.SVG", b"<?xml")])
def test_what_if_is_drawn(
    capsys: pytest.CaptureFixture[str], several: Path, tmp_path: Path, name: str, magic: bytes
) -> None:
    pytest.importorskip("matplotlib")
    run(capsys, "what-if", several, "--plot", tmp_path / name)
    drawn = (tmp_path / name).read_bytes()
    assert drawn.startswith(magic)
    if magic == b"<?xml":
        run(capsys, "what-if", several, "--plot", tmp_path / name)
        assert (tmp_path / name).read_bytes() == drawn, "the same ladder is the same picture"
        assert b"matplotlib version" in drawn or b"<svg" in drawn


@pytest.mark.parametrize("name", ["w.pdf", "w", "png"])
def test_a_plot_of_another_kind_is_refused(
    capsys: pytest.CaptureFixture[str], cache: Path, tmp_path: Path, name: str
) -> None:
    assert f"--plot writes .png or .svg, not '{name}'" in fails(
        capsys, "what-if", cache, "--plot", tmp_path / name
    )


def test_a_plot_without_matplotlib_says_what_to_install(
    capsys: pytest.CaptureFixture[str], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = fails(capsys, "what-if", cache, "--plot", tmp_path / "w.png")
    assert 'python -m pip install "pytest-gptune[report]"' in said


def test_effects(capsys: pytest.CaptureFixture[str], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = run(capsys, "effects", cache)
    assert lines[4:10] == [
        "  b=1 (not 0)",
        "    latency 0.333 [0.327, 0.340] over 1 pair; loss +0.5",
        "  a=1 (not 0)",
        "    latency 0.667 [0.653, 0.680] over 1 pair; loss +0.05",
        "  c=1 (not 0)",
        "    no pair, 1 failed; loss -",
    ]
    assert lines[-1].startswith("loss: ")
    monkeypatch.setenv("COLUMNS", "140")
    wide = squeezed(run(capsys, "effects", cache))
    assert "a=1 (not 0) 0.667 [0.653, 0.680] 1 pair +0.05 -" in wide
    assert "c=1 (not 0) - - no pair, 1 failed - -" in wide


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("columns", [40, 60, 80, 140])
def test_figures_fit_the_terminal(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
    columns: int,
) -> None:
    long = "-ort:session.a_long_name_of_a_knob"
    path = write(tmp_path / "c", [record("", 2e-3, 0.0), record(f"{long}=1", 1e-3, 0.01)])
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = run(capsys, command, path)
    assert any("0.01" in line or "2 of 2" in line for line in lines)
    tables = [line for line in lines if line.startswith("    ")]
    assert all(len(line) <= columns for line in tables)


@pytest.mark.parametrize("command", READING)
def test_only_some_tunings(capsys: pytest.CaptureFixture[str], several: Path, command: str) -> None:
    text = "\n".join(run(capsys, command, several, "--tuning", "test_x"))
    assert "test_x.py" in text
    assert "test_y.py" not in text
    message = fails(capsys, command, several, "--tuning", "test_z")
    assert "no tuning whose name contains 'test_z'" in message
    assert "name one of test_x.py::test_x, test_y.py::test_y" in message


def test_merge(capsys: pytest.CaptureFixture[str], cache: Path, tmp_path: Path) -> None:
    more = write(tmp_path / "more", [record("-a=1 -b=1", 1e-3, 0.0)])
    out = tmp_path / "out.jsonl"
    assert run(capsys, "merge", out, cache, more) == [f"{out}: tunings 1, routes 5, rows 5"]
    assert run(capsys, "best", out)[1] == "  '--gptune-route=-a=1 -b=1'"
    assert "exists already" in fails(capsys, "merge", out, cache)
    other = write(tmp_path / "other", [record("", 1.0, 0.0)], replace(HEADER, tuner_version="2.0"))
    assert "tuner_version: 1.0 -> 2.0" in fails(capsys, "merge", tmp_path / "new", cache, other)


def test_convert(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [foreign_row(0, "-a=0", 0.0, 2.0), foreign_row(1, "-a=1", 0.05, 1.0)]
    source, out = write_foreign(tmp_path / "trt.jsonl", rows, TRTEXEC_HEADER), tmp_path / "ours.jsonl"
    lines = run(capsys, "convert", source, out, "--tuning", "my test")
    assert lines[0] == f"{out}: routes 2, from a cache of trtexec"
    assert all(line.startswith("  missing: ") for line in lines[1:])
    assert len(lines) > 3
    assert run(capsys, "best", out)[:2] == ["my test", "  '--gptune-route=-a=1'"]
    assert run(capsys, "best", source)[:2] == ["a cache of trtexec", "  '--gptune-route=-a=1'"]


def test_a_torn_line_is_a_warning(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    cache.write_bytes(cache.read_bytes()[:-9])
    assert main(["show", str(cache)]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("gptune: warning: c.jsonl: the last line is torn")
    assert "3 routes" in captured.out


def mistake(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / "x.jsonl"
    if kind == "directory":
        path.mkdir()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "golden":
        shutil.copy(next(EXAMPLE.rglob("*.golden.npz")), path)
    elif kind == "baseline":
        shutil.copy(next(EXAMPLE.rglob("*.baseline.json")), path)
    elif kind == "no route":
        path.write_text('{"build_route": 5}\n')
    elif kind == "other schema":
        path.write_text('{"schema": 99}\n')
    return path


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("missing", "there is no such tuning cache"),
        ("empty", "the file has no row of a route"),
        ("directory", "cannot read the tuning cache: "),
        ("golden", "is not a line of a tuning cache"),
        ("baseline", "is not a line of a tuning cache"),
        ("no route", "5 is not a build route"),
        ("other schema", "the tuning cache has schema 99, this version reads 1"),
    ],
)
@pytest.mark.parametrize("command", [*READING, "merge", "convert"])
def test_mistakes_are_one_message(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, kind: str, said: str
) -> None:
    path = mistake(tmp_path, kind)
    arguments = {"merge": [tmp_path / "out", path], "convert": [path, tmp_path / "out"]}.get(command, [path])
    message = fails(capsys, command, *arguments)
    assert message.startswith("gptune: ")
    assert said in message
    assert f"  in: {path}" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("epsilon", ["-1", "x", "nan", "inf", "", "y=", "y=1,z", "1e999"])
def test_an_epsilon_that_is_none(capsys: pytest.CaptureFixture[str], cache: Path, epsilon: str) -> None:
    assert f"'{epsilon}' is not an epsilon" in fails(capsys, "best", cache, f"--epsilon={epsilon}")


def test_an_epsilon_of_another_output(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    message = fails(capsys, "best", cache, "--epsilon", "z=1")
    assert "output 'y' has no epsilon; there is no output 'z'" in message


def test_a_cache_without_an_epsilon_asks_for_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    header = {**TRTEXEC_HEADER, "accuracy_parameter": {}}
    path = write_foreign(tmp_path / "t", [foreign_row(0, "-a=0", 0.0, 1.0)], header)
    assert "give --epsilon X" in fails(capsys, "best", path)
    run(capsys, "show", path)


@pytest.mark.parametrize(
    "arguments",
    [("show",), ("show", "x", "--epsilon", "1"), ("merge", "x"), ("convert", "x"), ("whatif", "x")],
)
def test_command_lines_that_are_wrong(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert "usage: gptune" in fails(capsys, *arguments)


def test_an_infinite_epsilon_is_null_in_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Everything passes under it; JSON has no number for it, and Python's own writes one that is none."""
    path = tmp_path / "c.jsonl"
    header = {"default_build_route": "-a=1", "accuracy_parameter": {"epsilon": {"y": math.inf}}}
    row = {"build_route": "-a=1", "accuracy_loss": {"y": 0.5}, "gpu_time": 1.0, "crash": False}
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, row)))
    text = "\n".join(run(capsys, "what-if", path, "--json"))
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    (tuning,) = json.loads(text)["tunings"]
    assert tuning["epsilon"] == {"y": None}


def test_a_real_cache_of_the_example_project(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    """One search over the encoder, whose approximation of Gelu is not accurate enough; each command on it."""
    shutil.copytree(EXAMPLE, pytester.path / "example", ignore=shutil.ignore_patterns("*.baseline.json"))
    test = pytester.path / "example/tests/test_encoder.py"
    test.write_text(
        test.read_text()
        .replace("disable|basic|extended|all", "basic|all")
        .replace("-ort:session.disable_prepacking=[0|1]", "")
        .replace("-ort:pass:SkipLayerNormFusion=[on|off]", "")
    )
    result = pytester.runpytest_subprocess(
        "example",
        "-kencoder",
        "--gptune-search=full",
        "--gptune-cache=c.jsonl",
        "--gptune-isolation=none",
        "-ogptune_final_builds=1",
        "-pno:cacheprovider",
    )
    assert result.parseoutcomes()["xfailed"] == 1
    cache = pytester.path / "c.jsonl"
    capsys.readouterr()

    assert "4 routes: 2 passed, 1 inert, 1 inaccurate" in "\n".join(run(capsys, "show", cache))
    (tuning,) = json.loads("\n".join(run(capsys, "what-if", cache, "--json")))["tunings"]
    counts = [rung["eligible"] for rung in tuning["ladder"]]
    assert counts == sorted(counts)
    assert counts[-1] == 4
    within = [rung for rung in tuning["ladder"] if rung["multiple"] <= 1]
    assert within[-1]["eligible"] == 3
    best = run(capsys, "best", cache)[1]
    assert best == f"  '--gptune-route={within[-1]['winner']}'"
    for rung in tuning["ladder"]:
        epsilon = ",".join(f"{name}={value!r}" for name, value in rung["epsilon"].items())
        assert run(capsys, "best", cache, "--epsilon", epsilon)[1] == f"  '--gptune-route={rung['winner']}'"
    effects = "\n".join(run(capsys, "effects", cache))
    assert "ort:graph_optimization_level=basic (not all)\n    latency " in effects
    assert effects.count("over 2 pairs") == 2
    merged = pytester.path / "m.jsonl"
    run(capsys, "merge", merged, cache, cache)
    assert merged.read_bytes() == cache.read_bytes()


def test_it_runs_as_a_module(cache: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "pytest_gptune.cli", "best", str(cache), "--epsilon", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert "--gptune-route=default" in found.stdout
