"""What ``gptune`` prints of a tuning cache: routes, epsilons and winners, effects of knobs."""

from __future__ import annotations

import io
import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pytest_gptune.records.cached_tuning import CachedRoute, CachedTuning, Epsilon
from pytest_gptune.records.effects import Effect
from pytest_gptune.records.what_if import Rung
from pytest_gptune.reports.terminal import duration, number, rounded_up

if TYPE_CHECKING:
    from rich.table import Table

_DIGEST = 8

# Below this width names of knobs would fold at every few letters, so figures stand on a line of their own.
_WIDE = 110


def heading(tuning: CachedTuning) -> list[str]:
    """What the tuning is, and what its routes were measured and compared with."""
    software = " ".join(part for part in (tuning.backend, tuning.tuner_version) if part)
    counts = Counter(route.status for route in tuning.routes)
    statuses = ", ".join(f"{count} {status or 'without a status'}" for status, count in counts.most_common())
    count = len(tuning.routes)
    facts = [f"search {tuning.search}"] if tuning.search else []
    facts += [f"{count} route{'s' if count != 1 else ''}: {statuses}"]
    accuracy = f"metric {tuning.metric or 'not recorded'}, epsilon {epsilon_text(tuning.epsilon)}"
    name = tuning.tuning or f"a cache of {tuning.writer}"
    lines = [name, f"  {software}" if software else "", f"  {', '.join(facts)}", f"  {accuracy}"]
    untimed = sum(route.latency_s is not None for route in tuning.routes) - len(tuning.comparable)
    if untimed:
        lines.append(f"  {untimed} timed otherwise (kind, graph or case) and not compared")
    if waiting := sum(route.at_hosts_pace for route in tuning.comparable):
        lines.append(
            f"  {waiting} of {len(tuning.comparable)} latencies are the host's pace, and move with it"
        )
    return [line for line in lines if line]


def epsilon_text(epsilon: Epsilon | None) -> str:
    """An epsilon in words, never less than it is."""
    if isinstance(epsilon, Mapping):
        return ", ".join(f"{name} {rounded_up(value)}" for name, value in epsilon.items())
    return "not recorded" if epsilon is None else rounded_up(epsilon)


def show_lines(tuning: CachedTuning, width: int) -> list[str]:
    """Every route: the fastest first, those without a latency last."""
    ordered = sorted(tuning.routes, key=lambda route: route.latency_s or math.inf)
    if width < _WIDE:
        return [line for route in ordered for line in _stacked_route(tuning, route, width)]
    table = _table("route")
    _right(table, "latency", "speedup", "loss")
    table.add_column("status", no_wrap=True)
    table.add_column("digest", no_wrap=True)
    for route in ordered:
        table.add_row(
            route.id,
            _latency(route),
            _speedup(tuning.speedup(route)),
            "-" if route.loss is None else f"{route.loss:.2g}",
            route.status,
            route.engine_digest[:_DIGEST] or "-",
        )
    return _rendered(table, width)


def best_lines(tuning: CachedTuning, rung: Rung) -> list[str]:
    """The winner at an epsilon, on a line of its own that can be pasted after ``pytest``."""
    if rung.winner is None:
        return [f"  no route is eligible at epsilon {epsilon_text(rung.epsilon)}: {_why(tuning)}"]
    winner = rung.winner
    loss = "-" if winner.loss is None else f"{winner.loss:.2g}"
    speedup = "" if rung.speedup is None else f", {rung.speedup:.2f}x the default's speed"
    figures = f"{_latency(winner)}{speedup}, loss {loss}, one of {rung.eligible} eligible"
    lines = [f"  '--gptune-route={winner.route}'", f"  {figures}"]
    default = tuning.default
    waiting = ["its latency"] if winner.at_hosts_pace else []
    if default is not None and default is not winner and default.at_hosts_pace:
        waiting.append("the default's")
    if waiting:
        verb = "are" if len(waiting) > 1 else "is"
        lines.append(f"  {' and '.join(waiting)} {verb} the host's pace, which moves: finals decide")
    return lines


def what_if_lines(tuning: CachedTuning, rungs: Sequence[Rung], width: int) -> list[str]:
    """A row for each epsilon: how many routes are eligible, and which wins."""
    if not rungs:
        return [f"  no route is eligible at any epsilon: {_why(tuning)}"]
    table = _table()
    multiples = any(rung.multiple is not None for rung in rungs)
    _right(table, "x epsilon" if multiples else "epsilon", "eligible")
    table.add_column("winner", overflow="fold", ratio=1)
    _right(table, "latency", "speedup")
    for rung in rungs:
        winner = rung.winner
        table.add_row(
            epsilon_text(rung.epsilon) if rung.multiple is None else rounded_up(rung.multiple),
            f"{rung.eligible} of {len(tuning.routes)}",
            "none" if winner is None else winner.id,
            "-" if winner is None else _latency(winner),
            _speedup(rung.speedup),
        )
    return _rendered(table, width)


def effect_lines(tuning: CachedTuning, found: Sequence[Effect], width: int) -> list[str]:
    """A row for each value of each knob, the greatest gain first."""
    if not found:
        return ["  no route differs from the default route, so no knob has an effect to tell"]
    ordered = sorted(found, key=lambda effect: (effect.ratio is None, effect.ratio or 0))
    if width < _WIDE:
        return [line for effect in ordered for line in _stacked_effect(tuning, effect, width)]
    table = _table("knob")
    _right(table, "latency", "interval", "over", f"loss{_loss_unit(tuning)}", "interval")
    for effect in ordered:
        table.add_row(
            _setting(effect),
            "-" if effect.ratio is None else f"{effect.ratio:.3f}",
            _ratio_interval(effect) or "-",
            _basis(effect),
            _loss_change(effect),
            _loss_interval(effect) or "-",
        )
    return _rendered(table, width)


def effects_legend() -> list[str]:
    """What the columns of ``effect_lines`` mean."""
    return [
        "latency: with the value over without, from pairs of routes that differ in this knob alone.",
        "interval: 95 %; over n pairs, or for 1 pair from the intervals of its two measurements, which",
        "know nothing of the variance between builds (about 1 %). inert: a pair that is one engine.",
        "loss: mean change of the worst loss, with its interval over the pairs.",
    ]


def _stacked_route(tuning: CachedTuning, route: CachedRoute, width: int) -> list[str]:
    speedup = tuning.speedup(route)
    figures = [
        *([_latency(route)] if route.latency_s is not None else []),
        *([f"speedup {_speedup(speedup)}"] if speedup is not None else []),
        *([] if route.loss is None else [f"loss {route.loss:.2g}"]),
        route.status,
        *([route.engine_digest[:_DIGEST]] if route.engine_digest else []),
    ]
    return _folded(route.id, ", ".join(figures), width)


def _stacked_effect(tuning: CachedTuning, effect: Effect, width: int) -> list[str]:
    latency = _basis(effect)
    if effect.ratio is not None:
        latency = f"latency {effect.ratio:.3f} {_ratio_interval(effect)}".rstrip() + f" over {latency}"
    loss = f"loss{_loss_unit(tuning)} {_loss_change(effect)} {_loss_interval(effect)}".rstrip()
    return _folded(_setting(effect), f"{latency}; {loss}", width)


def _folded(head: str, figures: str, width: int) -> list[str]:
    """A line for what it is, which may be longer than the terminal lest a name be cut, and its figures."""
    body = textwrap.wrap(figures, max(width, 20), initial_indent="    ", subsequent_indent="    ")
    return [f"  {head}", *body]


def _setting(effect: Effect) -> str:
    against = f" (not {effect.against})" if effect.against else ""
    return f"{effect.knob[1:]}={effect.value}{against}"


def _ratio_interval(effect: Effect) -> str:
    return "" if effect.interval is None else f"[{number(effect.interval[0])}, {number(effect.interval[1])}]"


def _loss_interval(effect: Effect) -> str:
    return "" if effect.loss_interval is None else "[{:+.2g}, {:+.2g}]".format(*effect.loss_interval)


def _basis(effect: Effect) -> str:
    text = f"{effect.pairs or 'no'} pair{'s' if effect.pairs > 1 else ''}"
    if effect.inert:
        text += f", {effect.inert} inert"
    return f"{text}, {effect.failed} failed" if effect.failed else text


def _loss_change(effect: Effect) -> str:
    if effect.loss_change is None:
        return "infinite" if effect.loss_infinite else "-"
    infinite = f" ({effect.loss_infinite} infinite)" if effect.loss_infinite else ""
    return f"{effect.loss_change:+.2g}{infinite}"


def _loss_unit(tuning: CachedTuning) -> str:
    return " / epsilon" if isinstance(tuning.epsilon, Mapping) else ""


def _why(tuning: CachedTuning) -> str:
    """Why no route is eligible."""
    if not tuning.outputs:
        return "the cache has no losses"
    if not tuning.comparable:
        return "the cache has no latencies"
    finite = [value for route in tuning.candidates if (value := tuning.needed(route)) is not None]
    smallest = min(finite, default=math.inf)
    if math.isinf(smallest):
        return "no route has both a latency and a finite loss"
    if isinstance(tuning.epsilon, Mapping):
        return f"the smallest at which one is: {rounded_up(smallest)} times that of the tuning"
    return f"the smallest at which one is: {rounded_up(smallest)}"


def _latency(route: CachedRoute) -> str:
    return "-" if route.latency_s is None else duration(route.latency_s)


def _speedup(speedup: float | None) -> str:
    return "-" if speedup is None else f"{speedup:.2f}x"


def _table(first: str = "") -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    if first:
        table.add_column(first, overflow="fold", ratio=1)
    return table


def _right(table: Table, *headings: str) -> None:
    for text in headings:
        table.add_column(text, justify="right", overflow="fold")


def _rendered(table: Table, width: int) -> list[str]:
    from rich.console import Console

    stream = io.StringIO()
    console = Console(
        file=stream,
        width=max(width - 2, 20),
        color_system=None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    console.print(table)
    return [f"  {line.rstrip()}" for line in stream.getvalue().splitlines()]
