"""The bridge to pytest-benchmark: samples measured by us become a row of its own.

Its public way to record samples measured elsewhere is a timer that replays them. The timer is read when the
``benchmark`` fixture is made, before anything was measured, so it is put on the item first and filled later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_gptune.records.route_record import RouteRecord
    from pytest_gptune.timing.protocol import Measurement


class ReplayTimer:
    """A clock that advances by the samples it is given, one for each pair of readings."""

    def __init__(self) -> None:
        self._readings: list[float] = []
        self.samples: tuple[float, ...] = ()

    def replay(self, samples: Iterable[float]) -> None:
        """Let the following pairs of readings differ by ``samples``, in seconds."""
        self.samples = tuple(samples)
        self._readings = [reading for sample in reversed(self.samples) for reading in (sample, 0.0)]

    def __call__(self) -> float:
        """The next reading: 0 before a sample, the sample after it."""
        return self._readings.pop() if self._readings else 0.0


def prepare_item(item: pytest.Item) -> None:
    """Give the item a replaying timer and its test as a group, leaving what the user's own marker says."""
    own = item.get_closest_marker("benchmark")
    given: dict[str, Any] = dict(own.kwargs) if own else {}
    given.setdefault("group", item.nodeid.split("[")[0])
    given["timer"] = ReplayTimer()
    item.add_marker(pytest.mark.benchmark(**given), append=False)


def record_row(benchmark: Any, measurement: Measurement, record: RouteRecord, backend: str) -> None:
    """Record the samples of a measurement as the test's row; at most 1,000, by decimation."""
    benchmark.extra_info.update(
        gptune_route=record.route,
        gptune_backend=backend,
        gptune_status=record.status,
        gptune_loss=record.loss,
        gptune_latency_s=measurement.latency_s,
        gptune_statistic=measurement.statistic,
        gptune_latency_kind=measurement.latency_kind,
        gptune_engine_digest=record.engine_digest,
    )
    timer = benchmark._timer
    if isinstance(timer, ReplayTimer):
        timer.replay(measurement.kept)
    benchmark.pedantic(_nothing, rounds=len(measurement.kept), iterations=1)


def _nothing() -> None:
    """What pytest-benchmark calls between two readings of the replaying timer."""
