"""Accuracy: goldens, the metrics that compare an engine's outputs with them, and the gate that decides."""

from __future__ import annotations

from pytest_gptune.accuracy.gate import AccuracyGate, AccuracyResult
from pytest_gptune.accuracy.goldens import (
    Case,
    Golden,
    GoldenError,
    Provenance,
    golden_from_bytes,
    golden_to_bytes,
    load_golden,
    save_golden,
)
from pytest_gptune.accuracy.importers import InputsError, read_npz_inputs, read_test_data_set
from pytest_gptune.accuracy.inputs import fit_inputs, normalise_inputs, random_inputs
from pytest_gptune.accuracy.metrics import BUILTIN_METRICS, Metric, MetricError, find_metric, loss
from pytest_gptune.accuracy.mismatch import TensorMismatch
from pytest_gptune.accuracy.references import reference_outputs_from
from pytest_gptune.accuracy.tensors import TensorSpec

__all__ = [
    "BUILTIN_METRICS",
    "AccuracyGate",
    "AccuracyResult",
    "Case",
    "Golden",
    "GoldenError",
    "InputsError",
    "Metric",
    "MetricError",
    "Provenance",
    "TensorMismatch",
    "TensorSpec",
    "find_metric",
    "fit_inputs",
    "golden_from_bytes",
    "golden_to_bytes",
    "load_golden",
    "loss",
    "normalise_inputs",
    "random_inputs",
    "read_npz_inputs",
    "read_test_data_set",
    "reference_outputs_from",
    "save_golden",
]
