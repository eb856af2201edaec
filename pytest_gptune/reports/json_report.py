"""The JSON report, schema 1: seconds and bytes; what is not a finite number is null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_gptune import __version__
from pytest_gptune.records.route_record import RouteRecord
from pytest_gptune.reports.tuning_report import TuningReport
from pytest_gptune.storage import write_atomically
from pytest_gptune.verdict import Verdict

SCHEMA = 1


def write_json_report(path: Path, reports: Sequence[TuningReport]) -> None:
    """Write all tunings of a run to ``path``.

    Raises:
        StorageError: it cannot be written.
    """
    text = json.dumps(json_report(reports), indent=2, allow_nan=False, ensure_ascii=False)
    # A file name that is not UTF-8 has lone surrogates; their escape is JSON's own.
    write_atomically(path, (text + "\n").encode("utf-8", "backslashreplace"))


def json_report(reports: Sequence[TuningReport]) -> dict[str, Any]:
    """All tunings of a run as JSON values."""
    environment: dict[str, Any] = {"pytest_gptune": __version__}
    for report in reports:
        environment[report.spec.backend] = dict(report.environment)
    plain = {"schema": SCHEMA, "environment": environment, "tests": [_test(report) for report in reports]}
    finite = finite_json(plain)
    assert isinstance(finite, dict)
    return finite


def _test(report: TuningReport) -> dict[str, Any]:
    spec = report.spec
    latencies = [record.latency for record in report.routes if record.latency]
    default = report.default
    return {
        "nodeid": spec.tuning,
        "model": {"path": spec.model_path, "sha256": spec.model_sha256},
        "backend": spec.backend,
        "search": spec.search,
        "expression": spec.expression,
        "metric": spec.metric,
        "epsilon": spec.epsilon,
        "cases": list(report.cases),
        "shapes": {name: list(dims) for name, dims in report.shapes.items()},
        "latency_kind": latencies[0].latency_kind if latencies else None,
        "statistic": latencies[0].statistic if latencies else None,
        "planned": spec.planned,
        "pruned": [{"knob": knob, "value": value, "reason": reason} for knob, value, reason in spec.pruned],
        "routes": [_route(record) for record in report.routes],
        "default": default.id if default else None,
        "winner": report.winning.id if report.winning else None,
        "co_winners": [record.id for key in report.co_winners if (record := report.record(key))],
        "finalists": [record.id for key in report.finalists if (record := report.record(key))],
        "verdict": _verdict(report.verdict),
        "inert_knobs": list(report.inert_knobs),
        "unfinished": report.unfinished,
        "layers": list(report.layers),
        "layer_times": [
            {"layer": time.layer, "default": time.default_s, "winner": time.winner_s}
            for time in report.layer_times
        ],
        "notes": list(report.notes),
    }


def _route(record: RouteRecord) -> dict[str, Any]:
    latency = record.latency
    return {
        "id": record.id,
        "route": record.route,
        "status": record.status,
        "loss": dict(record.losses),
        "needed_epsilon": record.needed_epsilon,
        "latency": None
        if latency is None
        else {
            "value": latency.value,
            "min": latency.min,
            "p25": latency.p25,
            "median": latency.median,
            "mean": latency.mean,
            "p90": latency.p90,
            "p95": latency.p95,
            "p99": latency.p99,
            "samples": latency.samples,
            "interval": None if latency.interval is None else list(latency.interval),
            "stop_reason": latency.stop_reason,
            "builds": latency.builds,
            "warnings": list(latency.warnings),
        },
        "speedup": record.speedup,
        "speedup_interval": None if record.speedup_interval is None else list(record.speedup_interval),
        "build_seconds": record.build_seconds,
        "builds": record.builds,
        "engine_digest": record.engine_digest,
        "engine_bytes": record.engine_bytes,
        "device_memory_bytes": dict(record.device_memory_bytes),
        "graph": record.graph,
        "same_as": record.same_as,
        "kept": record.kept,
        "warnings": list(record.warnings),
        "error": record.error,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    ratio = verdict.ratio
    return {
        "outcome": verdict.outcome,
        "reason": verdict.reason,
        "gate": verdict.gate,
        "ratio": None if ratio is None else ratio.value,
        "interval": None if ratio is None else [ratio.low, ratio.high],
        "builds": None if ratio is None else ratio.builds,
        "limit": None if ratio is None else verdict.limit,
        "against_s": verdict.against_s,
        "changed": list(verdict.changed),
        "message": verdict.message,
        "command": verdict.command,
        "baseline": dict(verdict.baseline),
    }


def finite_json(value: Any) -> Any:
    """The same with null in place of NaN and the infinities, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_json(item) for item in value]
    return value
