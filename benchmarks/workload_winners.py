"""The winner of a workload: what it is built from, by the plugin and by ``verify_winner.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workload_models import Workload

from pytest_gptune.engines.base import BuildRequest
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.onnxruntime.quantised_model import quantised_request


def tuned_request(described: Workload, route: str, options: Mapping[str, Any], golden: str) -> BuildRequest:
    """What builds ``route``; the model is the quantised one where it quantises.

    Args:
        described: the workload.
        route: every knob with its value, as a report has it.
        options: of the backend.
        golden: path of the golden whose inputs calibrate; empty where there is none, as for fp16.
    """
    pairs = tuple((name, value) for name, _, value in (token.partition("=") for token in route.split()))
    model = inspect_model(described.path)
    return quantised_request(
        BuildRequest(str(described.path), model.sha256, pairs, options=options, golden=golden)
    )


def script_routes(default: str, tuned: BuildRequest, threads: int) -> tuple[str, str]:
    """Default and winner as the script takes them: what differs from ONNX Runtime's own defaults."""
    always = f"-ort:intra_op_num_threads={threads}"
    changed = [f"{k}={v}" for k, v in tuned.route if f"{k}={v}" not in default.split()]
    return always, " ".join([always, *changed])
