"""The tuning cache as a run uses it: a row for each route that ends, and rows taken up again."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gptune.errors import SettingsError
from pytest_gptune.records.fingerprint import Fingerprint
from pytest_gptune.records.tuning_cache import (
    CacheContent,
    CacheHeader,
    append_finals,
    append_header,
    append_row,
    check_begun,
    read_cache,
)
from pytest_gptune.timing.protocol import MEASURING

if TYPE_CHECKING:
    import pytest

    from pytest_gptune.plugin.state import State
    from pytest_gptune.records.route_record import RouteRecord, TuningSpec
    from pytest_gptune.records.tuning_cache import FinalsRound

# A route that ended otherwise ends the same way again; these are worth another try.
_RUN_AGAIN = frozenset({"test_failed", "unchecked", "skipped"})


def check_cache(config: pytest.Config) -> None:
    """Refuse a file that is no tuning cache before anything is measured: what is appended to it is lost.

    Raises:
        CacheError: there is such a file.
    """
    path = config.getoption("gptune_cache") or config.getini("gptune_cache")
    if path:
        check_begun(config.invocation_params.dir / path)


class CacheUse:
    """One process's use of a tuning cache.

    Attributes:
        path: the file.
        resuming: whether finished rows are taken up instead of measured again.
    """

    def __init__(self, path: Path, state: State, *, resuming: bool) -> None:
        self.path = path
        self.resuming = resuming
        self._state = state
        self._begun: set[str] = set()
        self._written = 0
        self._content: CacheContent | None = None

    def restored(self, spec: TuningSpec, key: str) -> RouteRecord | None:
        """The record of a route from an earlier run, None where it has to run.

        Raises:
            SettingsError: the earlier run's conditions were others; the difference is listed.
            CacheError: the file is not a tuning cache.
        """
        content = self._earlier(spec)
        record = None if content is None else content.record(spec.tuning, key)
        return None if record is None or record.status in _RUN_AGAIN else record

    def restored_finals(self, spec: TuningSpec, signature: str) -> tuple[FinalsRound, ...]:
        """The rounds of the finals that an earlier run measured, with the same contestants."""
        content = self._earlier(spec)
        if content is None:
            return ()
        return tuple(r for r in content.finals.get(spec.tuning, ()) if r.signature == signature)

    def record(self, spec: TuningSpec, record: RouteRecord) -> None:
        """Append the row of a route that has ended in this run."""
        self._begin(spec)
        append_row(self.path, spec.tuning, self._written, record)
        self._written += 1

    def record_finals(self, spec: TuningSpec, finals: FinalsRound) -> None:
        """Append a round of the finals."""
        self._begin(spec)
        append_finals(self.path, spec.tuning, finals)

    def _begin(self, spec: TuningSpec) -> None:
        if spec.tuning not in self._begun:
            self._begun.add(spec.tuning)
            append_header(self.path, self._header(spec))

    def _earlier(self, spec: TuningSpec) -> CacheContent | None:
        """What the file held when the run began, where it has the tuning under the same conditions."""
        if not self.resuming:
            return None
        if self._content is None:
            self._content = read_cache(self.path)
            for text in self._content.warnings:
                warnings.warn(text, stacklevel=2)
        earlier = self._content.headers.get(spec.tuning)
        if earlier is None:
            return None
        if differences := self._header(spec).differences(earlier):
            raise SettingsError(
                "the tuning cache was written under other conditions: " + "; ".join(differences),
                where=f"--gptune-continue, {self.path}",
                mend="give a new file to --gptune-cache, or restore the conditions",
            )
        return self._content

    def _header(self, spec: TuningSpec) -> CacheHeader:
        environment = self._state.environment(self._state.backend(spec.backend), spec.options)
        golden = Path(spec.golden_path)
        return CacheHeader(
            tuning=spec.tuning,
            backend=spec.backend,
            model_sha256=spec.model_sha256,
            golden_sha256=hashlib.sha256(golden.read_bytes()).hexdigest() if golden.exists() else "",
            expression=spec.expression,
            search=spec.search,
            metric=spec.metric,
            epsilon=spec.epsilon,
            default_build_route=spec.default_route,
            tuner_version=environment.tuner_version,
            fingerprint=Fingerprint.of(environment).as_plain()["invalidating"],
            protocol={
                "atol": spec.atol,
                "rtol": spec.rtol,
                "shapes": dict(spec.shapes),
                "options": dict(spec.options),
                "test": spec.test_sha256,
                "measuring": MEASURING,
            },
            resumed=self.resuming,
        )
