"""The terminal summary of a tuning: one table of routes, the winner, the verdict with its numbers."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Mapping
from decimal import ROUND_CEILING, Context, Decimal
from typing import TYPE_CHECKING

from pytest_gptune.records.baseline import shapes_text
from pytest_gptune.records.route_record import Latency, RouteRecord
from pytest_gptune.reports.layers import slowest_layers
from pytest_gptune.reports.tuning_report import TuningReport

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_ROWS = 10

# Layers that differ, shown; the JSON report has all.
_LAYERS = 4

# Below this width the interval has no column: routes need the room.
_WIDE = 100

# Below this width routes have no column of their own either: their figures stand on the line below.
_NARROW = 72

# Half an interval of the winner's speedup wider than this share of it is shown.
_UNCERTAIN = 0.02

_OUTCOME_STYLE = {"pass": "bold green", "fail": "bold red", "ambiguous": "bold yellow"}


def summary_lines(report: TuningReport, width: int, *, colour: bool = False, rows: int = _ROWS) -> list[str]:
    """The summary as lines of at most ``width`` columns.

    Args:
        report: the tuning.
        width: columns of the terminal.
        colour: whether lines may have escape sequences for colour.
        rows: the most routes that are shown; the winner, the default and the baseline's always are.
    """
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    stream = io.StringIO()
    console = Console(
        file=stream,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
        legacy_windows=False,
    )
    console.print(Text(report.spec.tuning, style="bold"))
    for line in _facts(report):
        console.print(Padding(Text(line), (0, 0, 0, 2)))
    shown = _chosen(report, rows)
    if shown:
        console.print(_stacked(report, shown) if width < _NARROW else _table(report, shown, width >= _WIDE))
    hidden = len(report.routes) - len(shown)
    if hidden:
        text = f"and {hidden} more route{'s' if hidden > 1 else ''}: --gptune-report x.json has all"
        console.print(Padding(Text(text, style="dim"), (0, 0, 0, 4)))
    for line in _finalist_lines(report):
        console.print(Padding(Text(line, style="dim"), (0, 0, 0, 2)))
    for knob, value, reason in report.spec.pruned:
        console.print(Padding(Text(f"pruned: {knob}={value}: {reason}"), (0, 0, 0, 2)))
    console.print(Padding(Text(_winner_text(report)), (0, 0, 0, 2)))
    if report.winning is not None and report.winning.key != report.spec.default_key:
        _print_command(console, "alone:  ", _alone_command(report))
    style = _OUTCOME_STYLE.get(report.verdict.outcome, "bold")
    verdict = Text("verdict: ").append(report.verdict.outcome, style=style)
    verdict.append(verdict_text(report).removeprefix(report.verdict.outcome))
    console.print(Padding(verdict, (0, 0, 0, 2)))
    if report.verdict.command:
        _print_command(console, "next:   ", report.verdict.command)
    for note in report.notes:
        console.print(Padding(Text(note), (0, 0, 0, 2)))
    if report.verdict.changed:
        console.print(Padding(Text("changed: " + "; ".join(report.verdict.changed)), (0, 0, 0, 2)))
    # Trailing spaces are what tables pad with; they only bloat a log.
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def verdict_text(report: TuningReport) -> str:
    """Outcome, reason, gate and numbers of a verdict, in one sentence or two."""
    verdict = report.verdict
    head: str = verdict.outcome
    if verdict.reason not in ("", verdict.outcome):
        head += f", {verdict.reason}"
    if verdict.gate:
        head += f" (gate {verdict.gate})"
    parts = [head]
    winner = report.winning
    if verdict.ratio is not None:
        ratio = verdict.ratio
        latencies = ""
        if winner is not None and winner.latency is not None and verdict.against_s is not None:
            whom = "the reference engine's" if verdict.gate == "paired" else "the baseline's"
            latencies = f"{duration(winner.latency.value)} against {whom} {duration(verdict.against_s)}, "
        interval = f"[{number(ratio.low)}, {number(ratio.high)}]"
        parts.append(
            f"{latencies}ratio {ratio.value:.3f} {interval} over {ratio.builds} "
            f"build{'s' if ratio.builds != 1 else ''}, limit {verdict.limit:.3g}"
        )
    text = ": ".join(parts)
    return f"{text}. {verdict.message}".strip() if verdict.message else text


_STOPPED = {
    "finals": "as planned",
    "decided": "until it was certain",
    "most_builds": "the most that are made",
}


def _finalist_lines(report: TuningReport) -> list[str]:
    """What stands behind the latency of each finalist."""
    lines = []
    for key in report.finalists:
        record = report.record(key)
        if record is None or record.latency is None:
            continue
        latency = record.latency
        builds = f"{latency.builds} build{'s' if latency.builds != 1 else ''}"
        facts = (
            f"{builds} ({_STOPPED.get(latency.stop_reason, latency.stop_reason)}), {latency.samples} samples"
        )
        if latency.interval is not None:
            low, high = latency.interval
            facts += f", {duration(low)} to {duration(high)}"
        lines.append(f"final:   {record.id}: {facts}")
        lines += [f"note:    {record.id}: {text}" for text in (*latency.warnings, *record.warnings)]
    if report.layers:
        shown = "; ".join(report.layers[:_LAYERS])
        more = f"; and {len(report.layers) - _LAYERS} more" if len(report.layers) > _LAYERS else ""
        lines.append(f"layers:  of the default (-) and the winner (+): {shown}{more}")
    if slowest := slowest_layers(report.layer_times, _LAYERS):
        shares = ", ".join(f"{layer} {share:.0%}" for layer, share in slowest)
        lines.append(f"layers:  the winner spends most in {shares} (profiled)")
    return lines


def _facts(report: TuningReport) -> list[str]:
    spec, environment = report.spec, report.environment
    model = spec.model_path.replace("\\", "/").rsplit("/", 1)[-1]
    counts = Counter(record.status for record in report.routes)
    planned = max(spec.planned, len(report.routes))  # late routes come on top
    by_status = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    software = environment.get("software", {}).get("backend", spec.backend)
    lines = [f"{model} on {software}, {environment.get('device_class', '')}".rstrip(", ")]
    ran = len(report.routes) - counts["skipped"]
    lines.append(f"search {spec.search}: {ran} of {planned} routes: {by_status}")
    if counts["skipped"] and spec.budget_s is not None:
        lines.append(f"budget: {spec.budget_s:g} s were spent; {counts['skipped']} routes were not tried")
    if inert := counts["inert"]:
        were = f"{inert} of {len(report.routes)} routes are engines that were there already"
        knobs = ", ".join(knob.removeprefix("-") for knob in report.inert_knobs)
        lines.append(f"inert: {were}" + (f"; knobs without effect on this model: {knobs}" if knobs else ""))
    lines.append(f"metric {spec.metric}, epsilon {_epsilon(spec.epsilon)}")
    if report.cases:  # not known where the run ended before the golden was read again
        lines[-1] += f", {len(report.cases)} case{'s' if len(report.cases) != 1 else ''}"
        lines[-1] += f", timed on {shapes_text(report.shapes)}" if report.shapes else ""
    kinds = sorted({f"{r.latency.latency_kind} {r.latency.statistic}" for r in report.routes if r.latency})
    if kinds:
        lines.append(f"latency: {', '.join(kinds)}; * winner, = co-winner, + in the finals")
        if report.finalists and any(r.latency and r.key not in report.finalists for r in report.routes):
            lines.append("~ of first measurements, of another minute: only the finals rank routes")
    return lines


def _epsilon(epsilon: float | Mapping[str, float] | None) -> str:
    if isinstance(epsilon, Mapping):
        return ", ".join(f"{name} {value:g}" for name, value in epsilon.items())
    return "none" if epsilon is None else f"{epsilon:g}"


def _chosen(report: TuningReport, rows: int) -> list[RouteRecord]:
    """Routes worth a row: those that must be there, then the fastest, then what failed."""
    must = {report.winner, report.spec.default_key, *report.spec.baseline_keys.values()}

    def rank(record: RouteRecord) -> tuple[bool, bool, bool, float]:
        # Figures of the finals and of first measurements are of different minutes: not mixed in one order.
        latency = record.latency.value if record.latency else math.inf
        later = record.key not in report.finalists
        return record.key != report.winner, later, record.status != "passed", latency

    ranked = sorted(report.routes, key=rank)
    room = max(rows - sum(record.key in must for record in ranked), 0)
    kept = []
    for record in ranked:
        if record.key in must:
            kept.append(record)
        elif room > 0:
            kept.append(record)
            room -= 1
    return kept


def _stacked(report: TuningReport, records: list[RouteRecord]) -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(width=1)
    table.add_column(overflow="fold", ratio=1)
    for record in records:
        figures = [duration(record.latency.value)] if record.latency else []
        figures += [f"speedup {_speedup(report, record)}"] if record.speedup else []
        figures += [] if record.loss is None else [f"loss {record.loss:.2g}"]
        table.add_row(
            _mark(report, record),
            f"{record.id}\n  {', '.join([*figures, record.status])}",
            style="bold" if record.key == report.winner else None,
        )
    return table


def _table(report: TuningReport, records: list[RouteRecord], wide: bool) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    table.add_column("", width=1)
    table.add_column("route", overflow="fold", ratio=1)
    for heading in ("latency", *(["±"] if wide else []), "speedup", "loss"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for record in records:
        latency = record.latency
        table.add_row(
            _mark(report, record),
            record.id,
            duration(latency.value) if latency else "-",
            *([_half_width(latency)] if wide else []),
            _speedup(report, record),
            "-" if record.loss is None else f"{record.loss:.2g}",
            record.status,
            style="bold" if record.key == report.winner else None,
        )
    return table


def _mark(report: TuningReport, record: RouteRecord) -> str:
    if record.key == report.winner:
        return "*"
    if record.key in report.co_winners:
        return "="
    return "+" if record.key in report.finalists else ""


def _speedup(report: TuningReport, record: RouteRecord) -> str:
    """The speedup over the default; marked where both figures are of first measurements, of other minutes."""
    if record.speedup is None:
        return "-"
    rough = "~" if report.finalists and record.key not in report.finalists else ""
    return f"{rough}{record.speedup:.2f}x"


def _half_width(latency: Latency | None) -> str:
    """Half of the interval, in percent of the latency."""
    if latency is None or latency.interval is None:
        return "-"
    low, high = latency.interval
    return f"{(high - low) / 2 / latency.value:.1%}"


def _winner_text(report: TuningReport) -> str:
    winner = report.winning
    if winner is None:
        return "winner:  none"
    is_default = winner.key == report.spec.default_key
    speedup = f", {winner.speedup:.2f}x the default's speed" if winner.speedup and not is_default else ""
    return f"winner:  {winner.id}{speedup}{_uncertain(winner) if speedup else ''}"


def _uncertain(winner: RouteRecord) -> str:
    """The interval of its speedup where that is wide: between such ends the figure itself says little."""
    if winner.speedup is None or winner.speedup_interval is None:
        return ""
    low, high = winner.speedup_interval
    return f" ({low:.2f}x to {high:.2f}x)" if (high - low) / 2 > _UNCERTAIN * winner.speedup else ""


def _alone_command(report: TuningReport) -> str:
    return f"python -m pytest '{report.spec.command_id}' '--gptune-route={report.winner}'"


def _print_command(console: Console, label: str, command: str) -> None:
    """A command on a line of its own, never folded, so that it can be copied."""
    from rich.text import Text

    console.print(Text(f"  {label} {command}"), soft_wrap=True)


def duration(seconds: float) -> str:
    """A time with four digits and its unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def number(value: float) -> str:
    """A ratio's end with three digits; infinity as a word."""
    return f"{value:.3f}" if math.isfinite(value) else "unbounded"


def rounded_up(value: float, digits: int = 4) -> str:
    """So many digits that are not less than the value: an epsilon that is printed has to pass."""
    shown = f"{value:.{digits}g}"
    if float(shown) < value:
        above = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(value))
        shown = f"{float(above):.{digits}g}"
    return shown
