"""The finals in the tuning cache: each round is written as it ends, and a run that resumes takes it up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from pytest_gptune.engines.base import BuildRequest
from pytest_gptune.plugin.state import State
from pytest_gptune.records.route_record import TuningSpec
from pytest_gptune.records.tuning_cache import FinalsRound


@dataclass
class FinalsJournal:
    """The rounds of one tuning's finals.

    A round holds one build of every contestant, measured in turns: it is the smallest piece that can be kept,
    since builds of one round compare with each other alone.

    Attributes:
        restored: how many rounds were taken up.
    """

    spec: TuningSpec
    state: State
    restored: int = 0
    _taken: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: TuningSpec, state: State) -> FinalsJournal | None:
        """The journal of a tuning, None where there is no cache."""
        return None if state.cache is None else cls(spec, state)

    def take(self, signature: str) -> FinalsRound | None:
        """The next round that an earlier run measured with these contestants.

        None where an engine is to be kept: it has to be one that was built and timed in this run.
        """
        cache = self.state.cache
        if cache is None or self.spec.save_engine:
            return None
        rounds = cache.restored_finals(self.spec, signature)
        number = self._taken.get(signature, 0)
        self._taken[signature] = number + 1
        if number >= len(rounds):
            return None
        self.restored += 1
        return rounds[number]

    def put(self, finals: FinalsRound) -> None:
        """Write a round that was measured."""
        if self.state.cache is not None:
            self.state.writing_cache(lambda cache: cache.record_finals(self.spec, finals))


def signature_of(requests: Mapping[str, BuildRequest], context: str) -> str:
    """Of contestants: what each is built from, and what for."""
    plain = {key: asdict(request) | {"model": ""} for key, request in requests.items()}
    text = json.dumps([plain, context], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
