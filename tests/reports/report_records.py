"""Tunings made up for the tests of reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_gptune.records.route_record import Latency, RouteRecord, TuningSpec
from pytest_gptune.reports.tuning_report import TuningReport
from pytest_gptune.timing.statistics import Ratio
from pytest_gptune.verdict import Verdict

MS = 1e-3
NODE = "tests/test_encoder.py::TestEncoder::test_encoder[fp16]"
LONG = (
    "-ort:session.use_device_allocator_for_initializers=1 -ort:session.graph_optimizations_loop_level=2 "
    "-ort:optimization.enable_cast_chain_elimination=1"
)
BASELINE = {
    "route": "-ort:intra_op_num_threads=1",
    "latency_s": 2 * MS,
    "interval": (1.9 * MS, 2.1 * MS),
    "builds": 4,
    "device_class": "cpu:One:2",
    "model_sha256": "b" * 64,
    "tuner_version": "1.32.0",
}


def latency(value: float = 1 * MS, **changes: Any) -> Latency:
    plain: dict[str, Any] = {
        **dict.fromkeys(("value", "min", "p25", "median", "mean", "p90", "p95", "p99"), value),
        "samples": 100,
        "interval": (0.99 * value, 1.01 * value),
        "stop_reason": "finals",
        "statistic": "p25",
        "latency_kind": "host_wall",
    }
    return Latency(**{**plain, **changes})


def record(
    key: str = "", value: float | None = 1 * MS, status: str = "passed", **changes: Any
) -> RouteRecord:
    plain: dict[str, Any] = {
        "id": key.replace("-ort:", "ort:").replace(" ", ",") or "default",
        "route": key or "-ort:enable_mem_reuse=on",
        "key": key,
        "knobs": len(key.split()),
        "status": status,
        "losses": {"y": 1.5e-7},
        "latency": None if value is None else latency(value),
        "speedup": None if value is None else 1 * MS / value,
    }
    return RouteRecord(**{**plain, **changes})


def spec(**changes: Any) -> TuningSpec:
    plain: dict[str, Any] = {
        "tuning": NODE,
        "command_id": NODE,
        "gate_id": "tests/test_encoder.py::TestEncoder::test_encoder::gptune-gate[fp16]",
        "owner": "TestEncoder.test_encoder[fp16]",
        "file": "tests/test_encoder.py",
        "root": "/project",
        "golden_path": "/project/golden.npz",
        "baseline_path": "/project/baseline.json",
        "model_path": "/project/models/encoder.onnx",
        "model_sha256": "a" * 64,
        "backend": "onnxruntime",
        "options": {},
        "search": "fast",
        "metric": "lInf",
        "epsilon": 1e-3,
        "atol": 1e-5,
        "rtol": 1e-5,
        "expression": "",
        "default_key": "",
        "default_route": "-ort:enable_mem_reuse=on",
        "defaults_digest": "c" * 64,
        "planned": 27,
        "baseline_keys": {},
        "pruned": (),
        "max_regression": 0.03,
        "gate": "auto",
        "against": "",
        "update_baseline": False,
        "require_baseline": False,
        "ambiguous_fails": False,
        "final_builds": 4,
    }
    return TuningSpec(**{**plain, **changes})


def verdict(outcome: Any = "pass", reason: str = "within_limit", **changes: Any) -> Verdict:
    return Verdict(outcome, reason, **changes)


def ratio(value: float = 1.01, low: float = 0.99, high: float = 1.02, builds: int = 4) -> Ratio:
    return Ratio(value, low, high, builds)


def report(routes: Sequence[RouteRecord], verdict: Verdict | None = None, **changes: Any) -> TuningReport:
    plain: dict[str, Any] = {
        "spec": spec(),
        "routes": tuple(routes),
        "verdict": verdict or Verdict("new", "new"),
        "environment": {
            "device_class": "cpu:AMD EPYC 7763 64-Core Processor:2",
            "tuner_version": "1.32.0",
            "software": {"backend": "onnxruntime 1.32.0"},
            "device": {"cores": 2},
            "noted": {"load": 0.5},
        },
        "shapes": {"tokens": (8, 128)},
        "cases": ("case0", "case1"),
    }
    return TuningReport(**{**plain, **changes})


def full_report() -> TuningReport:
    """A tuning with something in every place."""
    default, best, second = (
        record(),
        record(LONG, 0.5 * MS),
        record("-ort:enable_mem_pattern=off", 0.502 * MS),
    )
    others = [record(f"-ort:dynamic_block_base={number}", number * MS) for number in range(1, 30)]
    failed = [
        record("-ort:x=1", None, "out_of_memory", losses={}, error="out of memory"),
        record("-ort:x=2", None, "inaccurate", losses={"y": 0.5}, needed_epsilon=0.5),
        record("-ort:x=3", None, "inaccurate", losses={"y": float("inf")}),
    ]
    return report(
        [default, best, second, *others, *failed],
        verdict(
            "fail",
            "slower",
            gate="paired",
            ratio=ratio(1.11, 1.08, 1.14, 8),
            limit=1.03,
            changed=("model: another digest", "route: another route won"),
            message="The 95th percentile is not slower.",
            command=f"python -m pytest '{NODE}' --gptune-search fast --gptune-update-baseline",
            baseline=BASELINE,
        ),
        spec=spec(
            baseline_keys={"-ort:dynamic_block_base=29": "-ort:dynamic_block_base=29"},
            pruned=(("-ort:intra_op_num_threads", "8", "this process may use 2 cores"),),
            epsilon={"logits": 1e-2, "ids": 0.0},
        ),
        winner=LONG,
        co_winners=(LONG, second.key),
        finalists=(LONG, second.key, ""),
        notes=("reference engine: models/encoder.onnx of commit 0123456789ab",),
    )
