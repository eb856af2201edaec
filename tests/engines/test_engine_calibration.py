"""The calibration engine: the same model and inputs in every run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from pytest_gptune.engines.calibration import calibration_inputs, calibration_request
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend

ELSEWHERE = """
import hashlib, sys
from pathlib import Path
from pytest_gptune.engines.calibration import calibration_inputs, calibration_request
print(calibration_request(Path(sys.argv[1])).model_sha256)
print(hashlib.sha256(calibration_inputs()["x"].tobytes()).hexdigest())
"""


def test_the_model_is_the_same_in_every_process(tmp_path: Path) -> None:
    import hashlib

    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    here = calibration_request(tmp_path / "one")
    assert here.model_sha256 == inspect_model(Path(here.model)).sha256
    assert here.route == ()
    run = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(tmp_path / "two")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "17"},
    )
    inputs = hashlib.sha256(calibration_inputs()["x"].tobytes()).hexdigest()
    assert run.stdout.split() == [here.model_sha256, inputs]


def test_the_global_random_state_is_left_alone(tmp_path: Path) -> None:
    np.random.seed(5)
    before = np.random.get_state()[1].tolist()
    calibration_request(tmp_path)
    calibration_inputs()
    assert np.random.get_state()[1].tolist() == before


def test_it_runs(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    engine = backend.build(calibration_request(tmp_path))
    (output,) = engine.run(calibration_inputs()).values()
    assert output.shape == (16, 256)
    assert np.isfinite(output).all()
    assert output.any()
    engine.load(calibration_inputs())
    assert len(engine.sample(0, at_most=1).latencies_s) == 1
