"""The conditions a latency holds for, and what differs between two of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_gptune.engines.base import Environment

DEVICE = "device"
SOFTWARE = "software"


@dataclass(frozen=True)
class Fingerprint:
    """Conditions of a measurement, as plain JSON values.

    Attributes:
        invalidating: ``software`` and ``device`` facts: where one differs, absolute latencies do not compare.
        noted: recorded for the reader, never compared.
    """

    invalidating: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    noted: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, environment: Environment) -> Fingerprint:
        """The fingerprint of a backend's environment."""
        return cls(
            {SOFTWARE: dict(environment.software), DEVICE: dict(environment.device)}, dict(environment.noted)
        )

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Fingerprint:
        """From the JSON object of a baseline."""
        return cls(plain["invalidating"], plain["noted"])

    def as_plain(self) -> dict[str, Any]:
        """As the JSON object of a baseline."""
        return {
            "invalidating": {name: dict(facts) for name, facts in self.invalidating.items()},
            "noted": dict(self.noted),
        }

    def changes(self, other: Fingerprint, part: str) -> list[str]:
        """What differs from ``other`` (the earlier one) in ``software`` or ``device``, a line each."""
        now, then = self.invalidating.get(part, {}), other.invalidating.get(part, {})
        return [
            f"{key}: {_shown(then.get(key))} -> {_shown(now.get(key))}"
            for key in sorted({*now, *then})
            if now.get(key) != then.get(key)
        ]


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)
