"""What a compiler made of a model at one route and not at another."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import unified_diff


def layer_difference(before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """What differs between the layers of two engines, as lines that begin with ``-`` or ``+``."""
    lines = unified_diff(list(before), list(after), n=0, lineterm="")
    return tuple(line for line in lines if not line.startswith(("---", "+++", "@@")))
