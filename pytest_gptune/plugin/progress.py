"""Lines that say how far a search is: what it will take, how much is done, what is best so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from pytest_gptune.records.route_record import RouteRecord, TuningSpec

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

# A search of fewer routes is over before it needs a word.
_EXPLAIN_AFTER = 4

_EVERY_S = 15.0


@dataclass
class Progress:
    """Writes to the terminal, where there is one; plain lines, so that a log of CI has them too.

    Attributes:
        clock: seconds that only go forward.
    """

    config: pytest.Config
    clock: Callable[[], float] = time.monotonic
    _said_s: dict[str, float] = field(default_factory=dict)

    def route_ended(self, spec: TuningSpec, records: Mapping[str, RouteRecord], planned: int) -> None:
        """After the first route, and then from time to time, say how the search stands.

        Args:
            spec: the tuning.
            records: of the routes that have ended, the last one last.
            planned: routes that are known to come, those that ended included.
        """
        if planned < _EXPLAIN_AFTER or not records:
            return
        now, left = self.clock(), planned - len(records)
        timed = [record.wall_s for record in records.values() if record.wall_s > 0]
        if not timed or left <= 0:
            return
        mean_s = sum(timed) / len(timed)  # routes of an earlier run took no time in this one
        if len(records) == 1:
            total = duration(mean_s * planned)
            text = f"{planned} routes at about {mean_s:.1f} s: about {total} and the finals"
        elif now - self._said_s.setdefault(spec.tuning, now) >= _EVERY_S:
            text = f"{len(records)} of {planned} routes, {best_so_far(spec, records)}, "
            text += f"about {duration(mean_s * left)} left"
        else:
            return
        self._said_s[spec.tuning] = now
        self.write(f"{spec.tuning}: {text}")

    def write(self, text: str) -> None:
        """One line of ours, on a line of its own."""
        reporter: TerminalReporter | None = self.config.pluginmanager.getplugin("terminalreporter")
        if reporter is None:
            return
        reporter.ensure_newline()
        if reporter._tw.width_of_current_line:  # with -q the line has no file name, only dots
            reporter._tw.line()
        reporter.write_line(f"gptune: {text}")


def best_so_far(spec: TuningSpec, records: Mapping[str, RouteRecord]) -> str:
    """The fastest route that passed by first measurements, in words."""
    passed = [record for record in records.values() if record.status == "passed" and record.latency]
    if not passed:
        return "none passed so far"
    best = min(passed, key=lambda record: record.latency.value if record.latency else 0.0)
    default = records.get(spec.default_key)
    if best.key == spec.default_key:
        return "best so far default"
    gain = ""
    if default is not None and default.latency is not None and best.latency is not None:
        gain = f" (~{default.latency.value / best.latency.value:.2f}x)"
    return f"best so far {best.id}{gain}"


def duration(seconds: float) -> str:
    """A time as one would say it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
