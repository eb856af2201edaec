"""Engines whose samples are written down, on a clock that only they advance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from time import get_clock_info
from types import SimpleNamespace
from typing import Any

from pytest_gptune.engines.base import EngineInfo, LatencyKind, SampleBlock


@dataclass
class Clock:
    """Stands in for the module ``time``."""

    now: float = 0.0
    resolution: float = 1e-9

    def perf_counter(self) -> float:
        return self.now

    def get_clock_info(self, name: str) -> Any:
        return SimpleNamespace(**{**vars(get_clock_info(name)), "resolution": self.resolution})


@dataclass
class ScriptedEngine:
    """Returns one block of ``script`` at each call; a block that is an exception is raised.

    Attributes:
        enqueue_share: of every block.
        calls: seconds and batch of each call of ``sample``.
        costs: what a block adds to the clock, in the seconds asked for.
    """

    script: Iterable[list[float] | BaseException]
    kind: LatencyKind = "host_wall"
    clock: Clock = field(default_factory=Clock)
    costs: float = 1.0
    enqueue_share: float | None = None
    when_sampled: Callable[[float, int], None] = lambda seconds, batch: None
    calls: list[tuple[float, int]] = field(default_factory=list)
    closed: int = 0

    def __post_init__(self) -> None:
        self._blocks: Iterator[list[float] | BaseException] = iter(self.script)

    @property
    def info(self) -> EngineInfo:
        return EngineInfo("digest", self.kind, 0.1)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        raise AssertionError("nobody asked for outputs")

    def load(self, inputs: Mapping[str, Any]) -> None:
        raise AssertionError("inputs are loaded before")

    def sample(self, seconds: float, at_most: int, batch: int = 1) -> SampleBlock:
        assert not self.closed, "sampled after it was closed"
        self.calls.append((seconds, batch))
        self.when_sampled(seconds, batch)
        self.clock.now += seconds * self.costs
        block = next(self._blocks)
        if isinstance(block, BaseException):
            raise block
        assert 0 < len(block) <= at_most
        return SampleBlock(tuple(block), enqueue_share=self.enqueue_share)

    def layer_times(self) -> dict[str, float]:
        return {}

    def serialize(self) -> bytes | None:
        return None

    def close(self) -> None:
        self.closed += 1
