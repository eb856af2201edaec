"""The baseline's entry of a winner, from the finals it won."""

from __future__ import annotations

import math
from pathlib import Path

from pytest_gptune.plugin.contest import CALIBRATION, Contest
from pytest_gptune.records.baseline import BaselineEntry, DefaultRecord
from pytest_gptune.records.fingerprint import Fingerprint
from pytest_gptune.records.graphs import baseline_kind
from pytest_gptune.records.history import repository_root
from pytest_gptune.reports.tuning_report import TuningReport


def new_entry(
    report: TuningReport, contest: Contest, winner: str, fingerprint: Fingerprint, golden_sha256: str
) -> BaselineEntry:
    """The entry that records ``winner``.

    Args:
        report: the tuning, with the figures of the finals.
        contest: the finals.
        winner: key of the winning route.
        fingerprint: of this run.
        golden_sha256: digest of the golden's file.
    """
    spec, result = report.spec, contest.result
    record, default = report.record(winner), report.default
    assert record is not None
    build = contest.chosen_build(winner)
    default_record = None
    if default is not None and contest.standing(default.key):
        loss = default.loss
        default_record = DefaultRecord(
            result.latency(default.key),
            finite_interval(result.interval(default.key)),
            loss if loss is not None and math.isfinite(loss) else None,
        )
    root = repository_root(Path(spec.baseline_path).parent) or Path(spec.root)
    return BaselineEntry(
        backend=spec.backend,
        device_class=str(report.environment["device_class"]),
        shapes=report.shapes,
        latency_kind=baseline_kind(result.latency_kind, graph_missing=contest.graph_missing),
        statistic=result.statistic,
        route=winner,
        latency_s=result.latency(winner),
        interval=finite_interval(result.interval(winner)),
        builds=result.builds(winner),
        between_build_spread=result.spread(winner),
        default=default_record,
        calibration_s=result.latency(CALIBRATION) if contest.standing(CALIBRATION) else None,
        loss=record.loss,
        metric=spec.metric,
        epsilon=spec.epsilon if spec.epsilon is not None else 0.0,
        model_sha256=spec.model_sha256,
        model_path=relative_to(Path(spec.model_path), root),
        golden_sha256=golden_sha256,
        tuner_version=str(report.environment["tuner_version"]),
        defaults_digest=spec.defaults_digest,
        engine_sha256=build.digest if build is not None else record.engine_digest,
        fingerprint=fingerprint,
    )


def finite_interval(interval: tuple[float, float]) -> tuple[float, float] | None:
    """The interval, None where an end is not a number: a single build has none."""
    return interval if all(map(math.isfinite, interval)) else None


def relative_to(path: Path, root: Path) -> str:
    """``path`` relative to ``root`` with forward slashes; absolute where it lies elsewhere."""
    path, root = path.resolve(), root.resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
