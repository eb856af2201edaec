"""Lines that say how far a search is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from report_records import MS, record, spec

from pytest_gptune.plugin.progress import Progress, best_so_far, duration


class Reporter:
    """Stands in for pytest's terminal reporter."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._tw = SimpleNamespace(width_of_current_line=0)

    def ensure_newline(self) -> None:
        pass

    def write_line(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def reporter() -> Reporter:
    return Reporter()


def progress(reporter: Reporter | None, now: list[float]) -> Progress:
    manager = SimpleNamespace(getplugin=lambda name: reporter)
    config: Any = SimpleNamespace(pluginmanager=manager)
    return Progress(config, clock=lambda: now[0])


def routes(count: int) -> dict[str, Any]:
    made = [record("" if n == 0 else f"-ort:k{n}=1", (1 - 0.1 * n) * MS, wall_s=2.0) for n in range(count)]
    return {made_record.key: made_record for made_record in made}


def test_the_first_route_says_what_the_search_will_take(reporter: Reporter) -> None:
    progress(reporter, [0.0]).route_ended(spec(), routes(1), 20)
    (line,) = reporter.lines
    assert line.endswith("20 routes at about 2.0 s: about 40 s and the finals")


def test_from_time_to_time_count_best_and_what_is_left(reporter: Reporter) -> None:
    now = [0.0]
    told = progress(reporter, now)
    for count in range(1, 6):
        told.route_ended(spec(), routes(count), 20)
        now[0] += 6.0
    _, later = reporter.lines
    assert later.endswith("4 of 20 routes, best so far ort:k3=1 (~1.43x), about 32 s left")


def test_short_searches_and_quiet_terminals_are_left_alone(reporter: Reporter) -> None:
    progress(reporter, [0.0]).route_ended(spec(), routes(1), 3)
    progress(reporter, [0.0]).route_ended(spec(), {}, 30)
    assert reporter.lines == []
    progress(None, [0.0]).route_ended(spec(), routes(1), 30)


def test_late_routes_of_a_search_that_began_with_one(reporter: Reporter) -> None:
    """Nothing was said at the first route: it was all that was known to come."""
    now = [0.0]
    told = progress(reporter, now)
    told.route_ended(spec(), routes(1), 1)
    for count in (2, 3):
        told.route_ended(spec(), routes(count), 9)
        now[0] += 20.0
    (line,) = reporter.lines
    assert "3 of 9 routes" in line


def test_best_so_far_in_words() -> None:
    assert best_so_far(spec(), {}) == "none passed so far"
    assert best_so_far(spec(), routes(1)) == "best so far default"
    alone = {"-ort:k=1": record("-ort:k=1", MS)}
    assert best_so_far(spec(), alone) == "best so far ort:k=1"
    assert best_so_far(spec(), {"": record("", MS, "inaccurate")}) == "none passed so far"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (119, "119 s"), (600, "10 min"), (7199, "120 min"), (9000, "2.5 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
