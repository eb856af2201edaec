"""Which engines of a tuning are known already, so that identical ones are neither timed nor built again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_gptune.records.route_record import RouteRecord

if TYPE_CHECKING:
    import numpy as np


@dataclass
class KnownEngine:
    """One engine of a tuning.

    Attributes:
        key, id: the route that has it.
        outputs: digest of its outputs on the golden's inputs; empty until it ran.
        latency_s: None until it was timed.
    """

    key: str
    id: str
    outputs: str = ""
    latency_s: float | None = None


@dataclass
class KnownEngines:
    """The engines of one tuning, in one process, by digest."""

    by_digest: dict[str, KnownEngine] = field(default_factory=dict)

    def twin(self, digest: str | None, key: str) -> KnownEngine | None:
        """The engine of another route with this digest."""
        known = self.by_digest.get(digest or "")
        return known if known is not None and known.key != key else None

    def add(self, digest: str, key: str, route_id: str) -> KnownEngine:
        """Note the engine of a route; the first route that has it stands for it."""
        return (
            self.by_digest.setdefault(digest, KnownEngine(key, route_id)) if digest else KnownEngine(key, "")
        )

    def missing(self, key: str) -> bool:
        """Whether no engine of the route is known."""
        return all(known.key != key for known in self.by_digest.values())


def outputs_digest(outputs: Sequence[Mapping[str, np.ndarray]]) -> str:
    """A digest of the outputs of all cases, to the bit."""
    import numpy as np

    digest = hashlib.sha256()
    for case in outputs:
        for name in sorted(case):
            array = np.ascontiguousarray(case[name])
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


def mark_inert(
    records: Sequence[RouteRecord], *, default_key: str, guarded: frozenset[str]
) -> tuple[RouteRecord, ...]:
    """The records, with those marked whose engine is that of a plainer route.

    Processes that ran side by side did not know of each other's engines. Of routes with one engine the
    default stands for it, else the one with the fewest knobs, else the first. Routes of the baseline stay
    what they are: a verdict is about them.
    """
    groups: dict[str, list[RouteRecord]] = {}
    for record in records:
        if record.engine_digest and record.digest_proves:
            groups.setdefault(record.engine_digest, []).append(record)
    plainest = {
        digest: min(group, key=lambda r: (r.key != default_key, r.status == "inert", r.knobs))
        for digest, group in groups.items()
    }
    marked = []
    for record in records:
        first = plainest.get(record.engine_digest) if record.digest_proves else None
        if first is None or first.key == record.key or record.key in guarded or record.status == "inert":
            marked.append(record)
        else:
            text = f"the same engine as {first.id}"
            marked.append(replace(record, status="inert", error=text, same_as=first.id, latency=None))
    return tuple(marked)
