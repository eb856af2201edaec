"""The finals of one tuning: who takes part, and what each build has to pass before it is timed."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_gptune.accuracy import AccuracyGate, Case, Golden
from pytest_gptune.engines.base import Backend, BuildRequest, Engine, ShapeRange
from pytest_gptune.engines.calibration import calibration_inputs, calibration_request
from pytest_gptune.plugin.golden_making import golden_shapes
from pytest_gptune.plugin.run import compare, device_locked, route_pairs
from pytest_gptune.records.route_record import RouteRecord, TuningSpec
from pytest_gptune.timing.finals import (
    Contestant,
    FinalistFailedError,
    FinalsPlan,
    FinalsResult,
    run_finals,
)

REFERENCE = "(reference engine)"
CALIBRATION = "(calibration engine)"

# The best routes of the search that are built anew; more cost time, fewer let a lucky one win.
_BEST = 3


@dataclass
class Contest:
    """Finals that can be prolonged.

    Attributes:
        requests: what each contestant is built from, by key.
        reference_backend: builds the reference engine under another interpreter; None: as all others.
        unchecked: contestants that are a yardstick only: their outputs are not compared.
        result: what was measured so far.
        folder: for files of the contest, as the calibration model; None where there is none.
    """

    backend: Backend
    gate: AccuracyGate
    golden: Golden
    case: Case
    plan: FinalsPlan
    requests: dict[str, BuildRequest]
    unchecked: frozenset[str] = frozenset()
    reference_backend: Backend | None = None
    result: FinalsResult = field(default_factory=FinalsResult)
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    folder: Path | None = None

    def run(self) -> None:
        """Build and measure all contestants as often as planned."""
        self._measure(tuple(self.requests), self.plan.builds)

    def prolong(self, keys: tuple[str, ...]) -> None:
        """Add some builds of ``keys``, up to the most that are made."""
        made = max(self.result.builds(key) for key in keys)
        self._measure(keys, max(1, min(self.plan.step, self.plan.most_builds - made)))

    def _measure(self, keys: tuple[str, ...], builds: int) -> None:
        wanted = [key for key in self.requests if key in keys]
        contestants = [Contestant(key, lambda key=key: self._build(key)) for key in wanted]  # type: ignore[misc]
        with device_locked(self.backend, next(iter(self.requests.values()))):
            run_finals(contestants, self.plan, self.rng, builds=builds, result=self.result)

    def calibrate(self, beside: str, route: str) -> None:
        """Measure the calibration engine on ``route``, interleaved with further builds of ``beside``.

        On the route of what it calibrates: with other threads, load would move the two differently.
        """
        if self.folder is None or CALIBRATION in self.requests:
            return
        like = next(iter(self.requests.values()))
        request = calibration_request(self.folder)
        self.requests[CALIBRATION] = replace(
            request, route=route_pairs(route), options=like.options, fresh=True
        )
        self._measure((beside, CALIBRATION), self.plan.builds)

    def standing(self, key: str) -> bool:
        """Whether the contestant was measured and has not failed."""
        return self.result.builds(key) > 0

    def _build(self, key: str) -> Engine:
        backend = self.backend
        if key == REFERENCE and self.reference_backend is not None:
            backend = self.reference_backend
        engine = backend.build(self.requests[key])
        try:
            # The reference engine is another model: that it is accurate is the baseline's business.
            if key not in (CALIBRATION, REFERENCE) and key not in self.unchecked:
                accuracy = compare(engine, self.golden, self.gate)
                if not accuracy.passed:
                    raise FinalistFailedError(f"built again, it is inaccurate: {accuracy.message}")
            engine.load(calibration_inputs() if key == CALIBRATION else self.case.inputs)
        except BaseException:
            engine.close()
            raise
        return engine


def make_contest(
    spec: TuningSpec,
    records: Mapping[str, RouteRecord],
    *,
    backend: Backend,
    gate: AccuracyGate,
    golden: Golden,
    case: Case,
    guarded: str | None,
    old_model: tuple[Path, str] | None,
    folder: Path,
    reference_backend: Backend | None = None,
) -> Contest:
    """Choose the contestants: the best passing routes, the default, the baseline's, and engines to compare.

    Args:
        spec: the tuning.
        records: what is known of each route, by key.
        backend: builds the engines.
        gate: accuracy, checked again on each build.
        golden: the golden.
        case: the case that is timed.
        guarded: key of the baseline's route, None without one.
        old_model: the baseline's model and digest where it is another one than this run's.
        reference_backend: builds the reference engine, from this run's model where ``old_model`` is None.
        folder: for files of the contest; outlives it.
    """
    passing = [r for r in records.values() if r.status == "passed" and r.latency is not None]
    best = sorted(passing, key=lambda r: r.latency.value if r.latency else 0.0)[:_BEST]
    keys = {record.key for record in best} | {r.key for r in passing if r.key in (guarded, spec.default_key)}
    unchecked: set[str] = set()
    default = records.get(spec.default_key)
    if default is not None and default.status == "inaccurate":
        keys.add(spec.default_key)
        unchecked.add(spec.default_key)
    shapes = {name: ShapeRange.from_plain(plain) for name, plain in spec.shapes.items()}
    shapes = shapes or golden_shapes(golden, case)
    base = BuildRequest(spec.model_path, spec.model_sha256, (), shapes, spec.options, fresh=True)
    requests = {
        key: replace(base, route=route_pairs(key))
        for key in sorted(keys, key=lambda key: list(records).index(key))
    }
    if reference_backend is not None and old_model is None:
        old_model = Path(spec.model_path), spec.model_sha256
    if old_model is not None and guarded is not None:
        path, sha256 = old_model
        requests[REFERENCE] = replace(base, model=str(path), model_sha256=sha256, route=route_pairs(guarded))
    plan = FinalsPlan(
        builds=spec.final_builds, step=math.ceil(0.6 * spec.final_builds), most_builds=5 * spec.final_builds
    )
    return Contest(
        backend, gate, golden, case, plan, requests, frozenset(unchecked), reference_backend, folder=folder
    )
