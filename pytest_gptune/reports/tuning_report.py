"""The result of one tuning, as every report reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_gptune.records.route_record import RouteRecord, TuningSpec
from pytest_gptune.reports.layers import LayerTime
from pytest_gptune.verdict import Verdict


@dataclass(frozen=True)
class TuningReport:
    """One tuning when everything is known.

    Attributes:
        routes: records of all routes, in the order they ran; finalists with the figures of the finals.
        winner: key of the winning route, None without one.
        co_winners: keys of routes within 1 % of the fastest, or not slower for certain; fastest first.
        finalists: keys of the routes that were in the finals.
        environment: facts about machine and software.
        shapes: shape of each input of the timed case.
        cases: names of the golden's cases.
        notes: sentences for the reader, as what became of the paired gate.
        unfinished: why the search is not at its end; empty when it is.
        layers: what the compiler made otherwise of the winner than of the default: lines with ``-`` and
            ``+``; empty where it does not tell, or made the same.
        layer_times: what each layer of both takes; empty where the backend does not tell.
    """

    spec: TuningSpec
    routes: tuple[RouteRecord, ...]
    verdict: Verdict
    winner: str | None = None
    co_winners: tuple[str, ...] = ()
    finalists: tuple[str, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    cases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unfinished: str = ""
    layers: tuple[str, ...] = ()
    layer_times: tuple[LayerTime, ...] = ()

    def saying(self, sentence: str) -> TuningReport:
        """The same with a further sentence in the message of its verdict."""
        return replace(self, verdict=self.verdict.saying(sentence))

    @property
    def default(self) -> RouteRecord | None:
        """The default route's record, None if it did not run."""
        return self.record(self.spec.default_key)

    @property
    def winning(self) -> RouteRecord | None:
        """The winner's record."""
        return None if self.winner is None else self.record(self.winner)

    @property
    def inert_knobs(self) -> tuple[str, ...]:
        """Knobs without effect on the model: routes that differ from the default in one alone are inert."""
        default = _values(self.spec.default_route)
        effects: dict[str, list[bool]] = {}
        for record in self.routes:
            values = _values(record.route)
            differing = [name for name, value in values.items() if default.get(name) != value]
            if len(differing) == 1:
                effects.setdefault(differing[0], []).append(record.status == "inert")
        return tuple(knob for knob, inert in effects.items() if all(inert))

    def record(self, key: str) -> RouteRecord | None:
        """The record of a route, None if it did not run."""
        return next((record for record in self.routes if record.key == key), None)


def _values(route: str) -> dict[str, str]:
    return {name: value for name, _, value in (pair.partition("=") for pair in route.split())}
