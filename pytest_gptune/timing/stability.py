"""What is known of the conditions a series was measured under, and what to tell of them."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_gptune.engines.base import SampleBlock
from pytest_gptune.engines.host_pace import enqueue_bound

# Half an interval wider than this share of the latency is worth a word.
_WIDE = 0.02

# Other processes that take less of the cores than this were not seen to move a p25.
_BUSY = 0.10

_ENQUEUE_BOUND = "enqueue-bound"

_CLOCK_MOVES = 0.02


def keeps_waiting(blocks: Sequence[SampleBlock]) -> bool:
    """Whether the engine of these blocks keeps the device waiting: its latency is the host's pace."""
    return enqueue_bound(_median([block.enqueue_share for block in blocks]))


def told_enqueue_bound(warnings: Sequence[object]) -> bool:
    """Whether the warnings of a latency, as a record or a cache has them, say that it is the host's pace."""
    return any(isinstance(words, str) and words.startswith(_ENQUEUE_BOUND) for words in warnings)


@dataclass(frozen=True)
class Conditions:
    """The conditions of a series of blocks.

    Attributes:
        others_share: median share of the usable cores' time that other processes took; None where unknown.
        enqueue_share: median of the blocks' enqueue shares; None on the host.
        clocks_hz: lowest, mean and highest clock of the device; None where there is none.
        disturbed: what disturbed blocks, with the number of blocks it disturbed.
        blocks: how many blocks there were.
    """

    others_share: float | None
    enqueue_share: float | None
    clocks_hz: tuple[float, float, float] | None
    disturbed: tuple[tuple[str, int], ...]
    blocks: int

    @classmethod
    def of(cls, blocks: Sequence[SampleBlock]) -> Conditions:
        """The conditions of these blocks."""
        clocks = [block.sm_clock_hz for block in blocks if block.sm_clock_hz is not None]
        counted = Counter(word for block in blocks for word in set(block.conditions))
        return cls(
            others_share=_median([b.others_share for b in blocks]),
            enqueue_share=_median([b.enqueue_share for b in blocks]),
            clocks_hz=(min(clocks), statistics.fmean(clocks), max(clocks)) if clocks else None,
            disturbed=tuple(sorted(counted.items())),
            blocks=len(blocks),
        )

    def causes(self) -> tuple[str, ...]:
        """What may have moved the samples, a few words each."""
        found = [f"{words} ({count} of {self.blocks} blocks)" for words, count in self.disturbed]
        if self.others_share is not None and self.others_share > _BUSY:
            found.append(f"other processes took {self.others_share:.0%} of the cores")
        if self.clocks_hz is not None and self.clocks_hz[2] > self.clocks_hz[0] * (1 + _CLOCK_MOVES):
            low, _, high = self.clocks_hz
            found.append(f"the device's clock moved from {low / 1e6:.0f} to {high / 1e6:.0f} MHz")
        return tuple(found)

    def warnings(self, latency_s: float, interval: tuple[float, float]) -> tuple[str, ...]:
        """What a reader of the latency has to know: that it is uncertain and why, or not the engine's own.

        Args:
            latency_s: the latency, in seconds.
            interval: its confidence interval, in seconds.
        """
        found = []
        if enqueue_bound(self.enqueue_share):
            found.append(
                f"{_ENQUEUE_BOUND}: the host needs {self.enqueue_share:.0%} of the device's time to enqueue"
            )
        half = (interval[1] - interval[0]) / 2 / latency_s if latency_s > 0 else 0.0
        if not math.isfinite(half):
            half = 0.0  # a single build has no interval
        causes = self.causes()
        if half > _WIDE:
            unexplained = "the host's pace is what is measured" if found else "no cause was seen"
            found.append(f"unstable, within {half:.0%}: {'; '.join(causes) or unexplained}")
        else:
            # Rare stops leave the statistic alone; a device that was slowed down does not.
            found += [words for words in causes if self.clocks_hz is not None]
        return tuple(found)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
