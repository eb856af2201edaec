"""The knob space as a table."""

from __future__ import annotations

import io
import textwrap

from pytest_gptune.routes import Knob, KnobSpace

# Below this width a table would fold the names of knobs.
_WIDE = 120


def knob_lines(backend: str, space: KnobSpace, shown: KnobSpace, wanted: str, width: int) -> list[str]:
    """Knobs with their values, default and help.

    Args:
        backend: whose knobs they are.
        space: all of them.
        shown: those to show.
        wanted: what they were filtered by.
        width: columns to use.
    """
    expression = space.expression()
    head = f"{backend} {space.tuner_version}: {len(space)} knobs"
    if wanted:
        head += f", {len(shown)} with '{wanted}'"
    lines = [head]
    if len(shown):
        lines += _table(shown, width) if width >= _WIDE else _stacked(shown, width)
    for note in space.notes:
        lines += textwrap.wrap(note, max(width, 40), break_on_hyphens=False)
    lines.append(
        f"A fast search over every knob that is not on request has {expression.fast().count} routes, "
        f"a full one {expression.full().count}."
    )
    return lines


def _table(shown: KnobSpace, width: int) -> list[str]:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    table.add_column("knob", no_wrap=True, overflow="fold")
    table.add_column("values", overflow="fold")
    table.add_column("default", no_wrap=True)
    table.add_column("help", overflow="fold")
    for knob in shown:
        table.add_row(knob.name, _values(knob), knob.default, _help(knob))
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, highlight=False, markup=False, emoji=False).print(
        table
    )
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def _stacked(shown: KnobSpace, width: int) -> list[str]:
    lines = []
    for knob in shown:
        head = f"{knob.name}: {_values(knob)} (default {knob.default})"
        lines += textwrap.wrap(head, width, subsequent_indent="  ", break_on_hyphens=False)
        lines += textwrap.wrap(_help(knob), width, initial_indent="    ", subsequent_indent="    ")
    return lines


def _values(knob: Knob) -> str:
    if knob.values is None:
        return "any"
    if knob.searched is not None and len(knob.values) > len(knob.searched):
        return f"{knob.values[0]}..{knob.values[-1]}, searched: {' '.join(knob.searched)}"
    return " ".join(knob.values)


def _help(knob: Knob) -> str:
    return f"{knob.help} (on request)" if knob.on_request else knob.help
