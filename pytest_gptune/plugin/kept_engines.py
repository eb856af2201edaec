"""Keeps engines: the winner's very build, and those of all routes where they are asked for."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gptune.engines.base import Environment
from pytest_gptune.records.fingerprint import Fingerprint
from pytest_gptune.records.kept_engine import Sidecar, engine_path, save_engine
from pytest_gptune.records.route_record import RouteRecord, TuningSpec

if TYPE_CHECKING:
    from pytest_gptune.plugin.contest import Contest
    from pytest_gptune.plugin.run import RouteRun


def keep_route_engine(spec: TuningSpec, run: RouteRun, environment: Environment) -> None:
    """Keep the engine of a route that passed, as the search built it.

    Raises:
        StorageError: it cannot be written.
        RouteFailureError: its backend cannot serialise it.
    """
    if run.engine is None:
        return
    data, record = run.engine.serialize(), run.record
    if data is None:
        return
    path = engine_path(Path(spec.save_engine), spec.file, spec.owner, spec.backend, record.id)
    info = run.engine.info
    latency_s = record.latency.value if record.latency else None
    save_engine(
        path, data, _sidecar(spec, record, environment, data, info.digest, dict(info.facts), latency_s)
    )


def keep_winner(
    spec: TuningSpec, record: RouteRecord, contest: Contest, environment: Environment
) -> tuple[str, ...]:
    """Keep the build of the winner that the finals measured, the one nearest to the median.

    Returns:
        Notes for the report.

    Raises:
        StorageError: it cannot be written.
    """
    if not spec.save_engine or record.kept:
        return ()
    build = contest.chosen_build(record.key)
    if build is None or build.path is None:
        return (f"no engine was kept: {spec.backend} cannot write this one to a file",)
    data = build.path.read_bytes()
    path = engine_path(Path(spec.save_engine), spec.file, spec.owner, spec.backend)
    facts = dict(build.facts)
    sidecar = _sidecar(spec, record, environment, data, build.digest, facts, build.latency_s)
    save_engine(path, data, sidecar)
    return (f"kept:    {path}",)


def _sidecar(
    spec: TuningSpec,
    record: RouteRecord,
    environment: Environment,
    data: bytes,
    digest: str,
    facts: dict[str, str],
    latency_s: float | None,
) -> Sidecar:
    import math

    loss = record.loss
    return Sidecar(
        tuning=spec.tuning,
        backend=spec.backend,
        tuner_version=environment.tuner_version,
        device_class=environment.device_class,
        route=record.key,
        model_sha256=spec.model_sha256,
        file_sha256=hashlib.sha256(data).hexdigest(),
        engine_digest=digest,
        facts=facts,
        shapes=dict(spec.shapes),
        options=dict(spec.options),
        loss=loss if loss is not None and math.isfinite(loss) else None,
        metric=spec.metric,
        latency_s=latency_s,
        latency_kind=record.latency.latency_kind if record.latency else "",
        statistic=record.latency.statistic if record.latency else "",
        fingerprint=Fingerprint.of(environment).as_plain()["invalidating"],
    )
