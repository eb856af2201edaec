"""Figures of a tuning as its report shows them: of first measurements, of the finals, and of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_gptune.engines.base import Environment
from pytest_gptune.plugin.baseline_entry import finite_interval
from pytest_gptune.records.route_record import Latency, RouteRecord, TuningSpec
from pytest_gptune.timing.finals import FinalsResult
from pytest_gptune.timing.statistics import summarise


def finals_latency(result: FinalsResult, key: str) -> Latency:
    """The latency of a finalist, over all its builds."""
    summary = summarise([sample for build in result.blocks[key] for block in build for sample in block])
    return Latency(
        value=result.latency(key),
        min=summary.min,
        p25=summary.p25,
        median=summary.median,
        mean=summary.mean,
        p90=summary.p90,
        p95=summary.p95,
        p99=summary.p99,
        samples=sum(result.counts.get(key, ())) or summary.samples,
        interval=finite_interval(result.interval(key)),
        stop_reason=result.stop_reasons.get(key, "finals"),
        statistic=result.statistic,
        latency_kind=result.latency_kind,
        builds=result.builds(key),
        warnings=result.warnings(key),
    )


def with_speedups(records: Sequence[RouteRecord], spec: TuningSpec) -> tuple[RouteRecord, ...]:
    """Speedups from the first measurements, for routes that do not reach the finals."""
    default = next((r.latency for r in records if r.key == spec.default_key and r.latency), None)
    if default is None:
        return tuple(records)
    return tuple(
        replace(record, speedup=default.value / record.latency.value) if record.latency else record
        for record in records
    )


def environment_facts(environment: Environment) -> dict[str, Any]:
    """The machine and software as plain data."""
    return {
        "device_class": environment.device_class,
        "tuner_version": environment.tuner_version,
        "software": dict(environment.software),
        "device": dict(environment.device),
        "noted": dict(environment.noted),
    }


def engine_notes(records: Sequence[RouteRecord]) -> tuple[str, ...]:
    """Which engines were loaded rather than built, and why others were not."""
    notes = [f"engine:  {record.id}: loaded {record.kept}" for record in records if record.kept]
    notes += [f"engine:  {record.id}: built, for {record.not_kept}" for record in records if record.not_kept]
    return tuple(notes)
