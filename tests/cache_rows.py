"""Tuning caches as ours, trtexec and Torch-TensorRT write them, small enough to compute results by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_gptune.records.cached_tuning import CachedTuning, cached_tunings
from pytest_gptune.records.route_record import Latency, RouteRecord
from pytest_gptune.records.tuning_cache import (
    CacheContent,
    CacheHeader,
    append_header,
    append_row,
    line_of,
    read_cache,
    row_of,
)

DEFAULTS = {"-a": "0", "-b": "0", "-c": "0"}
DEFAULT_ROUTE = " ".join(f"{knob}={value}" for knob, value in DEFAULTS.items())
TUNING = "test_x.py::test_x"
HEADER = CacheHeader(
    tuning=TUNING,
    backend="onnxruntime",
    model_sha256="0" * 64,
    golden_sha256="1" * 64,
    expression="-a=[0|1] -b=[0|1] -c=[0|1]",
    search="full",
    metric="lInf",
    epsilon=0.1,
    default_build_route=DEFAULT_ROUTE,
    tuner_version="1.0",
    fingerprint={"software": {"backend": "1.0"}},
)
TRTEXEC_HEADER = {
    "tuner_version": "2.19.15",
    "accuracy_algorithm": "lInf",
    "accuracy_parameter": {"atol": 1e-5, "rtol": 1e-5, "epsilon": 0.1},
    "searching_algorithm": "fast",
    "command_line": "trtexec --onnx=model.onnx",
    "default_build_route": f"{DEFAULT_ROUTE} -unlisted=on",
    "tuning_expr": "-a=[0|1] -b=[0|1] -c=[0|1]",
    "files": {"onnx": "model.onnx"},
    "argv": ["trtexec", "--onnx=model.onnx"],
}
TORCH_HEADER = {
    **{k: v for k, v in TRTEXEC_HEADER.items() if k not in ("command_line", "files", "argv")},
    "partition_key": "0123456789abcdef",
    "user_tuning_cache_file": "tune.jsonl",
}


def record(
    key: str,
    latency_s: float | None = None,
    loss: float | Mapping[str, float] | None = None,
    status: str = "passed",
    *,
    spread: float | None = 0.01,
    kind: str = "host_wall",
    warnings: tuple[str, ...] = (),
    **fields: Any,
) -> RouteRecord:
    """A record; ``loss`` is that of output ``y`` or by output, the interval ``spread`` to either side."""
    latency = None
    if latency_s is not None:
        interval = None if spread is None else (latency_s * (1 - spread), latency_s * (1 + spread))
        order = dict.fromkeys(("min", "p25", "median", "mean", "p90", "p95", "p99"), latency_s)
        latency = Latency(
            value=latency_s,
            **order,
            samples=10,
            interval=interval,
            stop_reason="narrow",
            statistic="p25",
            latency_kind=kind,
            warnings=warnings,
        )
    losses = loss if isinstance(loss, Mapping) else {} if loss is None else {"y": loss}
    needed = None if isinstance(loss, Mapping) or loss is None else loss
    values = DEFAULTS | dict(token.split("=") for token in key.split())
    return RouteRecord(
        id=key.replace("-", "").replace(" ", ",") or "default",
        route=" ".join(f"{knob}={value}" for knob, value in values.items()),
        key=key,
        knobs=len(key.split()),
        status=status,
        **{"losses": losses, "needed_epsilon": needed, "latency": latency, **fields},
    )


def write(path: Path, records: Sequence[RouteRecord], header: CacheHeader = HEADER) -> Path:
    """Write a cache of ours."""
    append_header(path, header)
    for number, one in enumerate(records):
        append_row(path, header.tuning, number, one)
    return path


def tuning_of(records: Sequence[RouteRecord], **header: Any) -> CachedTuning:
    """The tuning a cache of ours with these records has."""
    whole = replace(HEADER, **header)
    rows = {one.key: json.loads(line_of(row_of(whole.tuning, n, one))) for n, one in enumerate(records)}
    content = CacheContent({whole.tuning: json.loads(line_of(whole.as_plain()))}, {whole.tuning: rows})
    (tuning,) = cached_tunings(content)
    return tuning


def foreign_row(
    number: int, route: str, loss: Any = None, gpu_time: Any = None, **fields: Any
) -> dict[str, Any]:
    """A row as trtexec and Torch-TensorRT write it; ``gpu_time`` in milliseconds."""
    return {
        "iter": number,
        "build_route": route,
        "crash": False,
        "error_message": "",
        "accuracy_loss": None if loss is None else {"y": loss},
        "gpu_time": gpu_time,
        **fields,
    }


def write_foreign(path: Path, rows: Sequence[Mapping[str, Any]], header: Mapping[str, Any]) -> Path:
    """Write a cache of another tool, NaN spelt as its writer does."""
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, *rows)))
    return path


def foreign_tuning(path: Path, rows: Sequence[Mapping[str, Any]], header: Mapping[str, Any]) -> CachedTuning:
    """The tuning of a foreign cache."""
    (tuning,) = cached_tunings(read_cache(write_foreign(path, rows, header)))
    return tuning
