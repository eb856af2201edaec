"""The tuning cache as the items of a run use it: a row for each route that ends, and rows taken up again."""

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
    append_header,
    append_row,
    read_cache,
)

if TYPE_CHECKING:
    from pytest_gptune.plugin.items import ItemRun
    from pytest_gptune.records.route_record import RouteRecord

# A route that ended otherwise ends the same way again; these are worth another try.
_RUN_AGAIN = frozenset({"test_failed", "unchecked", "skipped"})


class CacheUse:
    """One process's use of a tuning cache.

    Attributes:
        path: the file.
        resuming: whether finished rows are taken up instead of measured again.
    """

    def __init__(self, path: Path, *, resuming: bool) -> None:
        self.path = path
        self.resuming = resuming
        self._begun: set[str] = set()
        self._written = 0
        self._content: CacheContent | None = None

    def restored(self, item_run: ItemRun) -> RouteRecord | None:
        """The record of the item's route from an earlier run, None where it has to run.

        Raises:
            SettingsError: the earlier run's conditions were others; the difference is listed.
            CacheError: the file is not a tuning cache.
        """
        if not self.resuming:
            return None
        if self._content is None:
            self._content = read_cache(self.path)
            for text in self._content.warnings:
                warnings.warn(text, stacklevel=2)
        earlier = self._content.headers.get(item_run.tuning)
        if earlier is None:
            return None
        if differences := _header(item_run).differences(earlier):
            raise SettingsError(
                "the tuning cache was written under other conditions: " + "; ".join(differences),
                where=f"--gptune-continue, {self.path}",
                mend="give a new file to --gptune-cache, or restore the conditions",
            )
        record = self._content.record(item_run.tuning, item_run.planned.key)
        return None if record is None or record.status in _RUN_AGAIN else record

    def record(self, item_run: ItemRun, record: RouteRecord) -> None:
        """Append the row of a route that has ended in this run."""
        if item_run.tuning not in self._begun:
            self._begun.add(item_run.tuning)
            append_header(self.path, _header(item_run))
        append_row(self.path, item_run.tuning, self._written, record)
        self._written += 1


def _header(item_run: ItemRun) -> CacheHeader:
    spec = item_run.spec()
    environment = item_run.plan.backend.environment(item_run.plan.backend_options)
    golden = item_run.golden_path
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
        protocol={"atol": spec.atol, "rtol": spec.rtol},
    )
