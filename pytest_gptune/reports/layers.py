"""What a compiler made of a model at one route and not at another, and what each layer takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff


@dataclass(frozen=True)
class LayerTime:
    """Seconds that a layer takes in an engine of the default and in one of the winner.

    Attributes:
        default_s, winner_s: None where the engine has no such layer.
    """

    layer: str
    default_s: float | None
    winner_s: float | None


def layer_times(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[LayerTime, ...]:
    """Both engines layer by layer, in the order of the second's and then of what only the first has."""
    names = dict.fromkeys((*after, *before))
    return tuple(LayerTime(name, before.get(name), after.get(name)) for name in names)


def slowest_layers(times: Sequence[LayerTime], most: int) -> list[tuple[str, float]]:
    """The layers of the winner that take most, with their share of the sum of all its layers."""
    taken = [(time.layer, time.winner_s) for time in times if time.winner_s is not None]
    total = sum(seconds for _, seconds in taken)
    if total <= 0:
        return []
    ordered = sorted(taken, key=lambda pair: pair[1], reverse=True)
    return [(layer, seconds / total) for layer, seconds in ordered[:most]]


def layer_difference(before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """What differs between the layers of two engines, as lines that begin with ``-`` or ``+``."""
    lines = unified_diff(list(before), list(after), n=0, lineterm="")
    return tuple(line for line in lines if not line.startswith(("---", "+++", "@@")))
