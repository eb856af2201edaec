"""The result of one tuning, as every report reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_gptune.records.route_record import RouteRecord, TuningSpec
from pytest_gptune.verdict import Verdict


@dataclass(frozen=True)
class TuningReport:
    """One tuning when everything is known.

    Attributes:
        routes: records of all routes, in the order they ran; finalists with the figures of the finals.
        winner: key of the winning route, None without one.
        co_winners: keys of routes within 1 % of the fastest, fastest first.
        finalists: keys of the routes that were in the finals.
        environment: facts about machine and software.
        shapes: shape of each input of the timed case.
        cases: names of the golden's cases.
        notes: sentences for the reader, as what became of the paired gate.
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

    @property
    def default(self) -> RouteRecord | None:
        """The default route's record, None if it did not run."""
        return self.record(self.spec.default_key)

    @property
    def winning(self) -> RouteRecord | None:
        """The winner's record."""
        return None if self.winner is None else self.record(self.winner)

    def record(self, key: str) -> RouteRecord | None:
        """The record of a route, None if it did not run."""
        return next((record for record in self.routes if record.key == key), None)
