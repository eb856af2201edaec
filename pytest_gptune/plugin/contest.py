"""The finals of one tuning: who takes part, and what each build has to pass before it is timed."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pytest_gptune.accuracy import AccuracyGate, Case, Golden
from pytest_gptune.engines.base import Backend, BuildRequest, Engine, ShapeRange
from pytest_gptune.engines.calibration import calibration_inputs, calibration_request
from pytest_gptune.engines.registry import expecting
from pytest_gptune.errors import GptuneError
from pytest_gptune.plugin.device_lock import DeviceLock
from pytest_gptune.plugin.finals_journal import FinalsJournal, signature_of
from pytest_gptune.plugin.golden_making import golden_shapes
from pytest_gptune.plugin.run import KeptFile, load_kept, route_pairs, run_cases
from pytest_gptune.records.kept_engine import read_sidecar
from pytest_gptune.records.route_record import RouteRecord, TuningSpec
from pytest_gptune.records.tuning_cache import FinalsRound, thinned
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


@dataclass(frozen=True)
class MeasuredBuild:
    """One build of a contestant.

    Attributes:
        facts: what its backend wants to see again before it loads the engine.
        path: the engine, put aside; None where it was not asked for or has no such form.
        layers: what the compiler made of the model, a line for each; empty where it does not tell.
        layer_times: seconds by layer; empty where the backend does not tell.
        latency_s: None until it is chosen.
    """

    digest: str
    facts: Mapping[str, str]
    path: Path | None
    layers: tuple[str, ...] = ()
    layer_times: Mapping[str, float] = field(default_factory=dict)
    latency_s: float | None = None


@dataclass
class Contest:
    """Finals that can be prolonged.

    Attributes:
        requests: what each contestant is built from, by key.
        reference_backend: builds the reference engine under another interpreter; None: as all others.
        unchecked: contestants that are a yardstick only: their outputs are not compared.
        result: what was measured so far.
        folder: for files of the contest, as the calibration model; None where there is none.
        kept: contestants that are loaded instead of built.
        saving: whether the engines of builds are put into ``folder``, so that the winner's can be kept.
        builds: what is known of each measured build.
        journal: rounds of an earlier run, and where those of this one go; None where there is no cache.
        lock: of the devices; held while the contest measures.
        not_inspected: why the layers of builds are not timed any more; empty where they are.
        graph_missing: whether none of its engines can have the graph that all were to have.
        purpose: tells its rounds in the journal from those of another contest of the tuning.
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
    kept: Mapping[str, KeptFile] = field(default_factory=dict)
    saving: bool = False
    builds: dict[str, list[MeasuredBuild]] = field(default_factory=dict)
    journal: FinalsJournal | None = None
    not_inspected: str = ""
    graph_missing: bool = False
    purpose: str = "finals"
    lock: DeviceLock = field(default_factory=DeviceLock)

    def run(self) -> None:
        """Build and measure all contestants as often as planned."""
        self._measure(tuple(self.requests), self.plan.builds)

    def prolong(self, keys: tuple[str, ...]) -> None:
        """Add some builds of ``keys``, up to the most that are made."""
        made = max(self.result.builds(key) for key in keys)
        self._measure(keys, max(1, min(self.plan.step, self.plan.most_builds - made)))

    def _measure(self, keys: tuple[str, ...], builds: int) -> None:
        with self.lock.held(self.backend, next(iter(self.requests.values()))):
            for _ in range(builds):
                self._round([key for key in self.requests if key in keys])

    def _round(self, keys: list[str]) -> None:
        """One build of each contestant that has not failed, measured now or taken from an earlier run."""
        keys = [key for key in keys if key not in self.result.failures]
        signature = self._signature(keys)
        earlier = self.journal.take(signature) if self.journal is not None else None
        if earlier is not None and set(earlier.blocks) == set(keys):
            for key in keys:
                build = MeasuredBuild(earlier.digests.get(key, ""), {}, None)
                self.builds.setdefault(key, []).append(build)
            self.result.add_round(
                earlier.blocks, earlier.counts, earlier.clocks_hz, earlier.latency_kind, earlier.statistic
            )
            return
        before = {key: self.result.builds(key) for key in keys}
        contestants = [
            Contestant(key, partial(self._build, key), partial(self._note, key), partial(self._inspect, key))
            for key in keys
        ]
        with expecting(self.backend, self._expected(keys)):
            run_finals(contestants, self.plan, self.rng, builds=1, result=self.result)
        measured = [key for key in keys if self.result.builds(key) > before[key]]
        # A round in which a contestant failed is not taken up: the failure belongs to the run that saw it.
        if self.journal is not None and measured == keys and keys:
            for key in keys:
                # What a run that resumes would have; a run that goes on must come to the same figures.
                self.result.blocks[key][-1] = [thinned(block) for block in self.result.blocks[key][-1]]
            self.journal.put(
                FinalsRound(
                    signature=signature,
                    latency_kind=self.result.latency_kind,
                    statistic=self.result.statistic,
                    blocks={key: self.result.blocks[key][-1] for key in keys},
                    counts={key: self.result.counts[key][-1] for key in keys},
                    clocks_hz={key: self.result.clocks_hz[key][-1] for key in keys},
                    digests={key: self.builds[key][-1].digest for key in keys},
                )
            )

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

    def chosen_build(self, key: str, *, described: bool = False) -> MeasuredBuild | None:
        """The build that stands for a contestant: the one whose latency is nearest to the median's.

        Args:
            key: the contestant.
            described: among those whose layers are known, which those of an earlier run are not.
        """
        latencies, builds = self.result.latencies(key), self.builds.get(key, [])
        numbers = [n for n, build in enumerate(builds) if build.layers or build.layer_times or not described]
        if not numbers or len(builds) != len(latencies):
            return None
        middle = self.result.latency(key)
        nearest = min(numbers, key=lambda number: abs(latencies[number] - middle))
        return replace(builds[nearest], latency_s=latencies[nearest])

    def _note(self, key: str, engine: Engine) -> None:
        """Note a build that was measured, and put its engine aside where one is to be kept."""
        made = self.builds.setdefault(key, [])
        del made[self.result.builds(key) :]  # of a round that was given up after this engine was noted
        path = None
        if self.saving and self.folder is not None and key not in (CALIBRATION, REFERENCE):
            data = engine.serialize()
            if data is not None:
                path = self.folder / f"{list(self.requests).index(key)}-{len(made)}.engine"
                path.write_bytes(data)
        info = engine.info
        made.append(MeasuredBuild(info.digest, dict(info.facts), path, tuple(info.layers)))

    def _inspect(self, key: str, engine: Engine) -> None:
        """Add to a build that was noted what its layers take."""
        if self.not_inspected or key in (CALIBRATION, REFERENCE) or self.purpose != "finals":
            return
        try:
            times = engine.layer_times()
        except GptuneError as error:
            # It may have cost a process that engines share: later rounds do without.
            self.not_inspected = error.what
            raise
        self.builds[key][-1] = replace(self.builds[key][-1], layer_times=times)

    def _signature(self, keys: Sequence[str]) -> str:
        """Of a round; one that was measured otherwise does not go with it, however many there are to be."""
        one_round = replace(self.plan, builds=1, step=1, most_builds=1)
        context = f"{self.purpose} {getattr(self.reference_backend, 'python', '')} {one_round}"
        return signature_of({key: self.requests[key] for key in keys}, context)

    def _expected(self, keys: Sequence[str]) -> list[BuildRequest]:
        """Builds to get ready for, in random order; none where some contestant is loaded, or built elsewhere.

        Where a process lands may depend on how many were started before it. Always in one order, or always
        after those that are ready, that would move one contestant in every round, and no number of builds
        would show it.
        """
        if any(key in self.kept or self._builder(key) is not self.backend for key in keys):
            return []
        requests = [self.requests[key] for key in keys]
        self.rng.shuffle(requests)
        return requests

    def _builder(self, key: str) -> Backend:
        other = self.reference_backend if key == REFERENCE else None
        return self.backend if other is None else other

    def _build(self, key: str) -> Engine:
        backend = self._builder(key)
        if (kept := self.kept.get(key)) is not None:
            engine = load_kept(backend, self.requests[key], kept)
        else:
            engine = backend.build(self.requests[key])
        try:
            if key != CALIBRATION and engine.info.graph_missing != self.graph_missing:
                has = "cannot have a CUDA graph" if engine.info.graph_missing else "has a CUDA graph"
                raise FinalistFailedError(f"built again, it {has}, and the others are otherwise")
            # The reference engine is another model: that it is accurate is the baseline's business.
            if key not in (CALIBRATION, REFERENCE) and key not in self.unchecked:
                accuracy = self.gate.compare(self.golden, run_cases(engine, self.golden))
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
    journal: FinalsJournal | None = None,
    lock: DeviceLock,
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
        journal: of the tuning's finals.
        lock: of the devices.
    """
    passing = [r for r in records.values() if r.status == "passed" and r.latency is not None]
    best = sorted(passing, key=lambda r: r.latency.value if r.latency else 0.0)[:_BEST]
    keys = {record.key for record in best}
    keys |= {r.key for r in passing if r.key in (guarded, spec.default_key) or r.kept}
    unchecked: set[str] = set()
    default = records.get(spec.default_key)
    if default is not None and default.status == "inaccurate":
        keys.add(spec.default_key)
        unchecked.add(spec.default_key)
    shapes = {name: ShapeRange.from_plain(plain) for name, plain in spec.shapes.items()}
    shapes = shapes or golden_shapes(golden, case)
    base = BuildRequest(
        spec.model_path,
        spec.model_sha256,
        (),
        shapes,
        spec.options,
        fresh=True,
        golden=spec.golden_path,
    )
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
        backend=backend,
        gate=gate,
        golden=golden,
        case=case,
        plan=plan,
        requests=requests,
        unchecked=frozenset(unchecked),
        reference_backend=reference_backend,
        folder=folder,
        kept={r.key: KeptFile(Path(r.kept), read_sidecar(Path(r.kept))) for r in passing if r.kept},
        saving=bool(spec.save_engine),
        graph_missing=any(r.graph_missing for r in passing),
        journal=journal,
        lock=lock,
    )
