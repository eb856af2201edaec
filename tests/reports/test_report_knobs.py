"""The knob space as a table, or stacked where a table would cut it."""

from __future__ import annotations

import pytest

from pytest_gptune.engines.registry import load_backend
from pytest_gptune.reports.knobs import knob_lines
from pytest_gptune.routes import Knob, KnobSpace

WIDTHS = [40, 60, 80, 100, 119, 120, 160, 200]
SPACE = KnobSpace.from_json(load_backend("onnxruntime").knob_space(None, {}))
THREADS = Knob(
    "-ort:intra_op_num_threads",
    tuple(map(str, range(1, 65))),
    "64",
    "Threads within an operator.",
    searched=("1", "2", "4", "8", "16", "32", "64"),
)
ODD = KnobSpace(
    "2 [beta]",
    (
        THREADS,
        Knob("-open", None, "16", "Any number [experimental] :smile: of blocks."),
        Knob("-asked", ("on", "off"), "on", "Only when asked.", on_request=True),
    ),
)


def squeezed(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = knob_lines("onnxruntime", SPACE, SPACE, "", width)
    assert all(len(line) <= width for line in lines[1:-1])
    assert all(line == line.rstrip() for line in lines)
    assert not any("…" in line or "\x1b" in line for line in lines)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("knob", SPACE.knobs, ids=lambda knob: knob.name.removeprefix("-ort:"))
def test_nothing_is_cut(width: int, knob: Knob) -> None:
    one = KnobSpace(SPACE.tuner_version, (knob,))
    text = " ".join(knob_lines("onnxruntime", SPACE, one, "x", width)[1:-1])
    assert squeezed(knob.name) in squeezed(text)
    for word in (*(knob.values or ()), knob.default, *knob.help.split()):
        assert word in text or squeezed(word) in squeezed(text)


@pytest.mark.parametrize("width", [40, 80, 120, 160])
def test_ranges_open_knobs_and_requests(width: int) -> None:
    text = squeezed(" ".join(knob_lines("x", ODD, ODD, "", width)))
    assert "1..64,searched:" in text
    assert "any" in text
    for knob in ("-open", "-asked", "-ort:intra_op_num_threads"):
        assert knob in text
    if width < 120:
        assert "[experimental]:smile:ofblocks." in text
        assert "Onlywhenasked.(onrequest)" in text
    assert "[experimental]" in text
    assert ":smile:" in text
    assert "(onrequest)" in text


def test_the_head_says_whose_and_how_many() -> None:
    shown = SPACE.filter("mem")
    head = knob_lines("onnxruntime", SPACE, shown, "mem", 80)[0]
    assert head == f"onnxruntime {SPACE.tuner_version}: {len(SPACE)} knobs, {len(shown)} with 'mem'"
    assert knob_lines("x", ODD, ODD, "", 80)[0] == "x 2 [beta]: 3 knobs"


def test_a_filter_that_finds_nothing() -> None:
    nothing = SPACE.filter("no knob has this in it")
    lines = knob_lines("onnxruntime", SPACE, nothing, "no knob has this in it", 80)
    assert len(lines) == 2
    assert "0 with 'no knob has this in it'" in lines[0]


def test_the_size_of_the_search_is_that_of_the_space() -> None:
    fast, full = SPACE.expression().fast().count, SPACE.expression().full().count
    for shown in (SPACE, SPACE.filter("mem")):
        last = knob_lines("onnxruntime", SPACE, shown, "", 80)[-1]
        assert f"{fast} routes" in last
        assert f"a full one {full}" in last


@pytest.mark.parametrize("width", WIDTHS)
def test_two_hundred_knobs_are_counted_exactly(width: int) -> None:
    space = KnobSpace("1", tuple(Knob(f"-k{n}", ("a", "b"), "a", "") for n in range(200)))
    lines = knob_lines("x", space, space, "", width)
    assert f"has 201 routes, a full one {2**200}." in lines[-1]


def test_notes_are_printed_within_the_width() -> None:
    note = "No build routes: this compiler has no tuner. The knobs of its builder remain."
    space = KnobSpace("1", (Knob("-k", ("a", "b"), "a", ""),), (note,))
    lines = knob_lines("x", space, space, "", 50)
    assert note in " ".join(lines)
    assert all(len(line) <= 50 for line in lines[1:-1])
