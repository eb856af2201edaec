"""Records and measurements made up for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_gptune.records.baseline import BaselineEntry, DefaultRecord
from pytest_gptune.records.fingerprint import Fingerprint
from pytest_gptune.records.route_record import TuningSpec
from pytest_gptune.timing.finals import FinalsResult
from pytest_gptune.timing.statistics import Ratio
from pytest_gptune.verdict import Change


def entry(**values: Any) -> BaselineEntry:
    """An entry of a baseline: 1 ms on the default route, 1.25 ms before it was tuned."""
    plain: dict[str, Any] = {
        "backend": "onnxruntime",
        "device_class": "cpu:One:2",
        "shapes": {"x": (4, 8)},
        "latency_kind": "host_wall",
        "statistic": "p25",
        "route": "-ort:intra_op_num_threads=1",
        "latency_s": 1e-3,
        "interval": (0.99e-3, 1.01e-3),
        "builds": 4,
        "between_build_spread": 0.002,
        "default": DefaultRecord(1.25e-3, (1.24e-3, 1.26e-3), 0.0),
        "calibration_s": 5e-5,
        "loss": 0.0,
        "metric": "lInf",
        "epsilon": 1e-3,
        "model_sha256": "a" * 64,
        "model_path": "models/net.onnx",
        "golden_sha256": "b" * 64,
        "tuner_version": "1.0",
        "defaults_digest": "c" * 64,
        "engine_sha256": "d" * 64,
        "fingerprint": Fingerprint(
            {"software": {"backend": "one 1.0"}, "device": {"cores": 2}}, {"host": "h"}
        ),
    }
    return BaselineEntry(**(plain | values))


def change(**values: Any) -> Change:
    """What differs from the baseline: nothing unless said otherwise."""
    plain: dict[str, Any] = {
        "model": False,
        "route": False,
        "software": (),
        "device": (),
        "defaults": False,
        "golden": False,
    }
    return Change(**(plain | values))


def ratio(value: float, low: float, high: float) -> Ratio:
    """A ratio over four pairs of builds."""
    return Ratio(value, low, high, 4)


def finals(latency: Mapping[str, float], wobbles: Sequence[float] = (1.0,)) -> FinalsResult:
    """Finals in which only the builds of the first contestant differ, by the given factors."""
    first = next(iter(latency), None)
    return FinalsResult(
        blocks={
            key: [[[value * (wobble if key == first else 1.0)] * 4] for wobble in wobbles]
            for key, value in latency.items()
        }
    )


def spec(**values: Any) -> TuningSpec:
    """A tuning of two routes."""
    plain: dict[str, Any] = {
        "tuning": "tests/test_net.py::test_net",
        "command_id": "tests/test_net.py::test_net",
        "gate_id": "tests/test_net.py::test_net::gptune-gate",
        "owner": "test_net",
        "file": "tests/test_net.py",
        "root": "/project",
        "golden_path": "/project/tests/golden.npz",
        "baseline_path": "/project/tests/baseline.json",
        "model_path": "/project/models/net.onnx",
        "model_sha256": "a" * 64,
        "backend": "onnxruntime",
        "options": {},
        "search": "fast",
        "metric": "lInf",
        "epsilon": 1e-3,
        "atol": 1e-5,
        "rtol": 1e-5,
        "expression": "-first=[off|on]",
        "default_key": "",
        "default_route": "",
        "defaults_digest": "c" * 64,
        "planned": 2,
        "baseline_keys": {},
        "pruned": (),
        "max_regression": 0.03,
        "gate": "auto",
        "against": "",
        "update_baseline": False,
        "require_baseline": False,
        "ambiguous_fails": False,
        "final_builds": 2,
    }
    return TuningSpec(**(plain | values))
