"""The terminal summary: nothing cut, nothing too wide, and the rows that must be there."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_records import (
    BASELINE,
    LONG,
    MS,
    NODE,
    full_report,
    latency,
    ratio,
    record,
    report,
    spec,
    verdict,
)

from pytest_gptune.records.route_record import RouteRecord
from pytest_gptune.reports.terminal import duration, number, summary_lines, verdict_text
from pytest_gptune.reports.tuning_report import TuningReport
from pytest_gptune.search.base import ROUTE_STATUSES
from pytest_gptune.verdict import Verdict

WIDTHS = [40, 60, 72, 80, 100, 120, 160]
COMMANDS = ("  alone:  ", "  next:   ")
WIDE_ENOUGH = [width for width in WIDTHS if width >= 72]


def rows(lines: list[str]) -> list[tuple[str, str, list[str]]]:
    """Mark, route and figures of each row of the table, folded routes put together."""
    (head,) = (line for line in lines if re.match(r" +route +latency", line))
    start = head.index("route")
    found: list[tuple[str, str, list[str]]] = []
    for line in lines[lines.index(head) + 2 :]:
        if not re.match(rf"[*=+ ] {{{start - 1}}}\S", line) or line.startswith("    and "):
            break
        route, *figures = re.split(" {2,}", line[start:])
        if figures:
            found.append((line[0].strip(), route, figures))
        else:
            mark, earlier, before = found.pop()
            found.append((mark, earlier + route, before))
    return found


def stacked(lines: list[str]) -> list[tuple[str, str]]:
    """Mark and text of each row on a narrow terminal, without white space."""
    found: list[tuple[str, str]] = []
    start = next(i for i, line in enumerate(lines) if re.match(r"[*=+] {2}\S", line))
    for line in lines[start:]:
        if not re.match(r"[*=+ ] {2}", line):
            break
        text = "".join(line[3:].split())
        if line[0] != " ":
            found.append((line[0], text))
        elif found:
            found[-1] = (found[-1][0], found[-1][1] + text)
    return found


def squeezed(lines: list[str]) -> str:
    return "".join("".join(lines).split())


def check_lines(lines: list[str], width: int) -> None:
    for line in lines:
        assert line == line.rstrip()
        assert "\x1b" not in line
        assert "…" not in line
        if not line.startswith(COMMANDS):
            assert len(line) <= width, line


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    check_lines(summary_lines(full_report(), width), width)


@pytest.mark.parametrize("width", WIDE_ENOUGH)
def test_long_routes_are_folded_not_cut(width: int) -> None:
    table = rows(summary_lines(full_report(), width))
    assert table[0][1] == LONG.replace("-ort:", "ort:").replace(" ", ",")
    assert table[0][2][0] == "500 us"
    assert table[0][2][-1] == "passed"


def test_on_a_narrow_terminal_figures_stand_below_routes() -> None:
    lines = summary_lines(full_report(), 40)
    winner, *_others = stacked(lines)
    route = LONG.replace("-ort:", "ort:").replace(" ", ",")
    assert winner == ("*", f"{route}500us,speedup2.00x,loss1.5e-07,passed")
    assert any("default" in line for line in lines)


@pytest.mark.parametrize("width", WIDE_ENOUGH)
def test_winner_co_winners_and_finalists_are_marked(width: int) -> None:
    marks = {route: mark for mark, route, _figures in rows(summary_lines(full_report(), width))}
    assert [mark for mark in marks.values() if mark] == ["*", "=", "+"]
    assert marks["default"] == "+"
    assert marks["ort:enable_mem_pattern=off"] == "="


def test_the_winner_is_named_with_its_speedup() -> None:
    assert "winner:  ort:a=1, 2.00x the default's speed" in "\n".join(
        summary_lines(report([record(), record("-ort:a=1", 0.5 * MS)], winner="-ort:a=1"), 100)
    )
    for ends, shown in (((1.95, 2.05), " (1.95x to 2.05x)"), ((1.97, 2.03), "")):
        sure = record("-ort:a=1", 0.5 * MS, speedup_interval=ends)
        lines = summary_lines(report([record(), sure], winner="-ort:a=1"), 100)
        assert f"  winner:  ort:a=1, 2.00x the default's speed{shown}" in lines
    lines = summary_lines(report([record()], winner=""), 100)
    assert "  winner:  default" in lines
    assert not any(line.startswith("  alone:") for line in lines)
    assert "  winner:  none" in summary_lines(report([record()]), 100)


@pytest.mark.parametrize("width", [40, 80, 160])
def test_default_and_baseline_always_have_a_row(width: int) -> None:
    """However slow they are, and however few rows there may be."""
    fast = [record(f"-ort:n={number}", number * 1e-6) for number in range(1, 40)]
    slow = [record(value=1.0), record("-ort:base=1", 2.0)]
    tuning = report(
        [*fast, *slow],
        spec=spec(baseline_keys={"-ort:base=1": "-ort:base=1", "-ort:gone=1": None}),
        winner="-ort:n=1",
    )
    for most in (0, 1, 3, 10):
        lines = summary_lines(tuning, width, rows=most)
        if width >= 72:
            routes = [route for _mark, route, _figures in rows(lines)]
            assert {"default", "ort:base=1", "ort:n=1"} <= set(routes)
            assert len(routes) == max(most, 3)
        hidden = 41 - max(most, 3)
        assert f"and{hidden}moreroutes:" in squeezed(lines)


def test_a_default_that_failed_has_a_row() -> None:
    tuning = report([record(value=None, status="crashed"), *(record(f"-ort:n={n}") for n in range(20))])
    assert ("", "default", ["-", "-", "-", "1.5e-07", "crashed"]) in rows(summary_lines(tuning, 160, rows=5))


def test_one_hidden_route_is_one_route() -> None:
    tuning = report([record(), record("-ort:a=1"), record("-ort:b=1")], winner="-ort:a=1")
    assert any("and 1 more route:" in line for line in summary_lines(tuning, 80, rows=2))
    assert not any("more route" in line for line in summary_lines(tuning, 80, rows=3))


def test_finalists_come_first_then_what_passed_then_the_rest() -> None:
    tuning = report(
        [
            record("-ort:bad=1", 0.1 * MS, "inaccurate"),
            record("-ort:first=1", 0.2 * MS),
            record("-ort:final=1", 0.9 * MS),
            record("-ort:win=1", 0.8 * MS),
            record("-ort:later=1", 0.3 * MS),
        ],
        winner="-ort:win=1",
        finalists=("-ort:final=1", "-ort:win=1"),
    )
    routes = [route for _mark, route, _figures in rows(summary_lines(tuning, 80))]
    assert routes == ["ort:win=1", "ort:final=1", "ort:first=1", "ort:later=1", "ort:bad=1"]


@pytest.mark.parametrize("status", ROUTE_STATUSES)
@pytest.mark.parametrize("width", [40, 72, 80, 160])
def test_every_status_has_room(status: str, width: int) -> None:
    tuning = report([record(), record(LONG, 123.456, status, speedup=12345.678, losses={"y": 1.234e-100})])
    lines = summary_lines(tuning, width)
    check_lines(lines, width)
    text = squeezed(lines)
    assert f"1.2e-100{status}" in text.replace(",", "")
    assert "12345.68x" in text
    assert "123.5s" in text


def test_a_wide_terminal_has_the_interval() -> None:
    tuning = report([record(latency=latency(1 * MS, interval=(0.9 * MS, 1.1 * MS)))])
    wide, narrow = summary_lines(tuning, 100), summary_lines(tuning, 99)
    assert rows(wide)[0][2] == ["1 ms", "10.0%", "1.00x", "1.5e-07", "passed"]
    assert rows(narrow)[0][2] == ["1 ms", "1.00x", "1.5e-07", "passed"]
    unknown = report([record(latency=latency(1 * MS, interval=None))])
    assert rows(summary_lines(unknown, 100))[0][2][1] == "-"


def test_colour_changes_nothing_but_colour() -> None:
    for width in (40, 80, 160):
        plain = summary_lines(full_report(), width)
        coloured = summary_lines(full_report(), width, colour=True)
        assert any("\x1b[" in line for line in coloured)
        assert [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in coloured] == plain


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "CLICOLOR_FORCE"])
def test_the_environment_does_not_bring_colour_in(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there is colour is pytest's business, and so the caller's."""
    monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    check_lines(summary_lines(full_report(), 80), 80)


@pytest.mark.parametrize("name", ["COLUMNS", "LINES"])
def test_the_environment_does_not_change_the_width(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = summary_lines(full_report(), 80)
    monkeypatch.setenv(name, "30")
    assert summary_lines(full_report(), 80) == plain


def test_the_facts_are_there() -> None:
    lines = summary_lines(full_report(), 160)
    text = "\n".join(lines)
    assert lines[0] == NODE
    assert "encoder.onnx on onnxruntime 1.32.0, cpu:AMD EPYC 7763 64-Core Processor:2" in text
    assert "search fast: 35 of 35 routes: 32 passed, 2 inaccurate, 1 out_of_memory" in text
    assert "metric lInf, epsilon logits 0.01, ids 0, 2 cases, timed on tokens[8,128]" in text
    assert "latency: host_wall p25; * winner" in text
    assert "pruned: -ort:intra_op_num_threads=8: this process may use 2 cores" in text
    assert "reference engine: models/encoder.onnx of commit 0123456789ab" in text
    assert "changed: model: another digest; route: another route won" in text


def test_facts_of_a_tuning_without_golden_and_figures() -> None:
    tuning = report([record(value=None, status="crashed", losses={})], cases=(), shapes={}, environment={})
    tuning = replace(tuning, spec=spec(epsilon=None, model_path="C:\\models\\net.onnx"))
    text = "\n".join(summary_lines(tuning, 80))
    assert "net.onnx on onnxruntime\n" in text
    assert "  metric lInf, epsilon none\n" in text  # nothing is known of a golden, and nothing said
    assert "latency:" not in text
    assert "one" in text
    check_lines(text.splitlines(), 80)


def test_a_tuning_without_routes() -> None:
    lines = summary_lines(report([], verdict("incomparable", "partial_run")), 80)
    assert not any("route " in line and "latency" in line for line in lines)
    assert "  verdict: incomparable, partial_run" in lines


@pytest.mark.parametrize("width", [40, 80, 160])
def test_commands_are_never_folded(width: int) -> None:
    lines = summary_lines(full_report(), width)
    (alone,) = (line for line in lines if line.startswith("  alone:"))
    (following,) = (line for line in lines if line.startswith("  next:"))
    assert alone == f"  alone:   python -m pytest '{NODE}' '--gptune-route={LONG}'"
    assert following.endswith(f"'{NODE}' --gptune-search fast --gptune-update-baseline")


def test_brackets_and_colons_are_no_markup() -> None:
    tuning = report(
        [record(), record("-ort:a=1", id="ort:[bold]a=:smile:")],
        verdict("fail", "every_route_failed", message="[red]shape [2, 3] :boom:[/red]"),
        winner="-ort:a=1",
        notes=("[link=x]note[/link]",),
    )
    for width in (40, 80):
        text = squeezed(summary_lines(tuning, width))
        for part in ("ort:[bold]a=:smile:", "[red]shape[2,3]:boom:[/red]", "[link=x]note[/link]"):
            assert part in text


TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=80)
NUMBERS = st.floats(1e-12, 1e6)


@st.composite
def records(draw: st.DrawFn) -> RouteRecord:
    key = draw(TEXT)
    timed = draw(st.booleans())
    return record(
        key,
        draw(NUMBERS) if timed else None,
        draw(st.sampled_from(ROUTE_STATUSES)),
        id=draw(TEXT.filter(str.strip)),
        losses=draw(st.dictionaries(TEXT, st.floats(0, allow_nan=False), max_size=2)),
        speedup=draw(st.none() | NUMBERS),
        error=draw(TEXT),
    )


@st.composite
def reports(draw: st.DrawFn) -> TuningReport:
    routes = draw(st.lists(records(), max_size=15, unique_by=lambda item: item.key))
    keys = st.sampled_from([item.key for item in routes]) if routes else st.none()
    chosen = st.lists(keys, max_size=4) if routes else st.just([])
    outcome = draw(st.sampled_from(["pass", "fail", "ambiguous", "new", "incomparable"]))
    return report(
        routes,
        Verdict(
            outcome,
            draw(TEXT),
            draw(st.sampled_from(["", "paired", "absolute", "relative", "off"])),
            draw(st.none() | st.builds(ratio, NUMBERS, st.just(0.0), st.just(float("inf")))),
            draw(NUMBERS),
            tuple(draw(st.lists(TEXT, max_size=2))),
            draw(TEXT),
            draw(TEXT),
            draw(NUMBERS | st.none()),
            draw(st.sampled_from([{}, BASELINE])),
        ),
        winner=draw(keys | st.none()),
        co_winners=tuple(draw(chosen)),
        finalists=tuple(draw(chosen)),
        notes=tuple(draw(st.lists(TEXT, max_size=2))),
    )


@settings(deadline=None, max_examples=60)
@given(reports(), st.integers(20, 200), st.integers(0, 20))
def test_any_tuning_fits_any_terminal(tuning: TuningReport, width: int, most: int) -> None:
    lines = summary_lines(tuning, width, rows=most)
    for line in lines:
        assert "\x1b" not in line
        if not line.startswith(COMMANDS):
            assert len(line) <= width
    # Whatever the width, the verdict is there in full.
    assert "verdict:" + "".join(verdict_text(tuning).split()) in squeezed(lines)


@pytest.mark.parametrize(
    ("judged", "text"),
    [
        (
            verdict("pass", "unchanged", message="nothing changed.", baseline=BASELINE),
            "pass, unchanged. nothing changed.",
        ),
        (
            verdict(
                "pass", "improved", gate="paired", ratio=ratio(0.8, 0.79, 0.81), limit=1.03, against_s=1.25e-3
            ),
            "pass, improved (gate paired): 1 ms against the reference engine's 1.25 ms, "
            "ratio 0.800 [0.790, 0.810] over 4 builds, limit 1.03",
        ),
        (
            verdict("pass", "within_limit", gate="absolute", ratio=ratio(), limit=1.13, against_s=2e-3),
            "pass, within_limit (gate absolute): 1 ms against the baseline's 2 ms, "
            "ratio 1.010 [0.990, 1.020] over 4 builds, limit 1.13",
        ),
        (
            verdict("fail", "slower", gate="paired", ratio=ratio(2, 1.9, 2.1), limit=1.03, message="Twice."),
            "fail, slower (gate paired): ratio 2.000 [1.900, 2.100] over 4 builds, limit 1.03. Twice.",
        ),
        (
            verdict("fail", "tail", gate="paired", ratio=ratio(1, 0.9, float("inf"), 1), limit=1.03),
            "fail, tail (gate paired): ratio 1.000 [0.900, unbounded] over 1 build, limit 1.03",
        ),
        (
            verdict("fail", "no_route_passes", message="the smallest epsilon: 0.5."),
            "fail, no_route_passes. the smallest epsilon: 0.5.",
        ),
        (verdict("fail", "every_route_failed"), "fail, every_route_failed"),
        (verdict("fail", "baseline_route_inaccurate"), "fail, baseline_route_inaccurate"),
        (
            verdict("ambiguous", "noise", gate="relative", ratio=ratio(), limit=1.03),
            "ambiguous, noise (gate relative): ratio 1.010 [0.990, 1.020] over 4 builds, limit 1.03",
        ),
        (verdict("new", "new", message="no baseline yet. "), "new. no baseline yet."),
        (verdict("new", "written", message="written."), "new, written. written."),
        (verdict("incomparable", "shapes", message="other shapes."), "incomparable, shapes. other shapes."),
        (verdict("incomparable", "off", gate="off"), "incomparable, off (gate off)"),
        (verdict("incomparable", ""), "incomparable"),
    ],
)
def test_the_verdict_as_text(judged: Verdict, text: str) -> None:
    tuning = report([record(), record("-ort:a=1", 1 * MS)], judged, winner="-ort:a=1")
    assert verdict_text(tuning) == text
    for width in (40, 80, 160):
        lines = summary_lines(tuning, width)
        check_lines(lines, width)
        assert "verdict:" + "".join(text.split()) in squeezed(lines)


def test_a_verdict_without_a_winner_has_no_latencies() -> None:
    judged = verdict("ambiguous", "noise", gate="paired", ratio=ratio(), limit=1.03)
    assert " against " not in verdict_text(report([record()], judged))
    assert " against " not in verdict_text(report([record(value=None)], judged, winner=""))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (12.3456, "12.35 s"),
        (1.0, "1 s"),
        (0.9, "900 ms"),
        (1.23456e-3, "1.235 ms"),
        (1e-3, "1 ms"),
        (9.009e-4, "900.9 us"),
        (1.5e-6, "1.5 us"),
        (2.5e-7, "250 ns"),
        (1e-12, "0.001 ns"),
        (0.0, "0 ns"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_numbers() -> None:
    assert number(1.23456) == "1.235"
    assert number(float("inf")) == "unbounded"


def test_every_finalist_shows_builds_samples_interval_and_why_it_stopped() -> None:
    measured = latency(0.9 * MS, stop_reason="most_builds", builds=25, warnings=("unstable",))
    final = record("-ort:final=1", latency=measured)
    tuning = report([final, record("-ort:first=1", 0.8 * MS)], finalists=("-ort:final=1",))
    lines = [line.strip() for line in summary_lines(tuning, 160)]
    assert [line for line in lines if line.startswith(("final:", "note:"))] == [
        "final:   ort:final=1: 25 builds (the most that are made), 100 samples, 891 us to 909 us",
        "note:    ort:final=1: unstable",
    ]
