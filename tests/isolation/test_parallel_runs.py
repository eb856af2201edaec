"""Eight processes on one cache and one golden: nothing is lost, nothing is torn."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from pytest_gptune.accuracy import load_golden
from pytest_gptune.records.tuning_cache import read_cache

PROCESSES = 8

WRITER = """
import sys, time
from pathlib import Path
import numpy as np
from pytest_gptune.accuracy import Case, Golden, Provenance, load_golden, save_golden
from pytest_gptune.records.route_record import RouteRecord
from pytest_gptune.records.tuning_cache import append_row, read_cache

folder, number, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
golden = folder / "golden.npz"
end, count = time.monotonic() + seconds, 0
while time.monotonic() < end:
    key = f"-writer={number} -row={count}"
    record = RouteRecord(id=key, route=key, key=key, knobs=2, status="passed", error="x" * 3000)
    append_row(folder / "cache.jsonl", "test", count, record)
    count += 1
    if count % 8 == 0:
        value = np.full(50_000, number, np.float32)
        case = Case("case0", {"x": value}, {"y": value})
        save_golden(golden, Golden((case,), Provenance("0" * 64, str(number))))
    if golden.exists():
        case = load_golden(golden).cases[0]
        assert len(set(case.outputs["y"].tolist())) == 1, "a golden of two writers"
        assert case.outputs["y"][0] == case.inputs["x"][0]
    if count % 20 == 0:
        read_cache(folder / "cache.jsonl")
print(count)
"""


@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.long)])
def test_eight_processes_share_a_cache_and_a_golden(tmp_path, seconds):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(number), str(seconds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(PROCESSES)
    ]
    deadline = time.monotonic() + seconds + 120
    counts = []
    for writer in writers:
        out, error = writer.communicate(timeout=max(deadline - time.monotonic(), 1))
        assert writer.returncode == 0, error
        counts.append(int(out))
    content = read_cache(tmp_path / "cache.jsonl")
    assert content.warnings == ()
    expected = {f"-writer={n} -row={row}" for n, count in enumerate(counts) for row in range(count)}
    assert set(content.rows["test"]) == expected
    assert min(counts) > 0
    assert load_golden(tmp_path / "golden.npz").cases
    assert not list(tmp_path.glob("*.part"))
