"""The tuning cache as a file: appended, synced, torn, foreign."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from pytest_gptune.records.route_record import Latency, RouteRecord
from pytest_gptune.records.tuning_cache import (
    CacheError,
    CacheHeader,
    append_header,
    append_row,
    read_cache,
)

LATENCY = Latency(
    1.5e-3, 1e-3, 1.5e-3, 2e-3, 2e-3, 3e-3, 3e-3, 4e-3, 100, (1e-3, 2e-3), "narrow", "p25", "host_wall"
)
RECORD = RouteRecord(
    id="x=1",
    route="-x=1 -y=2",
    key="-x=1",
    knobs=1,
    status="passed",
    losses={"y": 1e-7},
    needed_epsilon=1e-7,
    latency=LATENCY,
    timed_case="case0",
    build_seconds=0.25,
    builds=1,
    engine_digest="abc",
)
HEADER = CacheHeader(
    tuning="t.py::test",
    backend="onnxruntime",
    model_sha256="0" * 64,
    golden_sha256="1" * 64,
    expression="-x=[1|2]",
    search="fast",
    metric="lInf",
    epsilon=1e-3,
    default_build_route="-x=2 -y=2",
    tuner_version="1.0",
    fingerprint={"software": {"backend": "1.0"}},
)


def test_a_record_comes_back_as_it_was(tmp_path):
    path = tmp_path / "sub" / "cache.jsonl"
    append_header(path, HEADER)
    append_row(path, HEADER.tuning, 0, RECORD)
    content = read_cache(path)
    assert content.record(HEADER.tuning, "-x=1") == RECORD
    assert content.record(HEADER.tuning, "-x=2") is None
    assert content.record("other", "-x=1") is None
    assert not HEADER.differences(content.headers[HEADER.tuning])


def test_rows_have_trtexecs_fields_in_its_units(tmp_path):
    path = tmp_path / "cache.jsonl"
    append_row(path, "t", 7, RECORD)
    append_row(path, "t", 8, replace(RECORD, status="timeout", error="hung", latency=None, losses={}))
    good, bad = map(json.loads, path.read_text().splitlines())
    assert (good["iter"], good["build_route"], good["crash"]) == (7, "-x=1 -y=2", False)
    assert good["gpu_time"] == pytest.approx(1.5)
    assert good["accuracy_loss"] == {"y": 1e-7}
    assert (bad["crash"], bad["error_message"]) == (True, "hung")
    assert bad["gpu_time"] is None
    assert bad["accuracy_loss"] is None


def test_infinite_losses_survive(tmp_path):
    path = tmp_path / "cache.jsonl"
    append_row(path, "t", 0, replace(RECORD, losses={"y": math.inf}, needed_epsilon=math.inf))
    assert "Infinity" not in path.read_text()
    record = read_cache(path).record("t", "-x=1")
    assert record is not None
    assert record.losses == {"y": math.inf}
    assert record.needed_epsilon == math.inf


def test_the_last_row_of_a_route_counts(tmp_path):
    path = tmp_path / "cache.jsonl"
    append_row(path, "t", 0, RECORD)
    append_row(path, "t", 1, replace(RECORD, status="inaccurate"))
    record = read_cache(path).record("t", "-x=1")
    assert record is not None
    assert record.status == "inaccurate"


@pytest.mark.parametrize("cut", [1, 10, 200])
def test_a_torn_last_line_is_dropped_with_a_warning_and_written_over(tmp_path, cut):
    path = tmp_path / "cache.jsonl"
    append_row(path, "t", 0, RECORD)
    append_row(path, "t", 1, replace(RECORD, key="-x=2"))
    path.write_bytes(path.read_bytes()[:-cut])
    content = read_cache(path)
    assert set(content.rows["t"]) == {"-x=1"}
    assert "torn" in content.warnings[0]
    append_row(path, "t", 1, replace(RECORD, key="-x=3"))
    content = read_cache(path)
    assert set(content.rows["t"]) == {"-x=1", "-x=3"}
    assert content.warnings == ()


def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "cache.jsonl"
    append_row(path, "t", 0, RECORD)
    path.write_bytes(path.read_bytes() + b"{oops\n")
    append_row(path, "t", 1, RECORD)
    with pytest.raises(CacheError, match="line 2 is not a line of a tuning cache"):
        read_cache(path)


def test_a_missing_file_is_an_empty_cache(tmp_path):
    content = read_cache(tmp_path / "none.jsonl")
    assert not content.rows
    assert not content.headers


def test_trtexecs_rows_are_read(tmp_path):
    path = tmp_path / "trt.jsonl"
    header = {"tuner_version": "2.19.15", "accuracy_algorithm": "lInf", "searching_algorithm": "fast"}
    row = {
        "iter": 0,
        "build_route": "-copy_ppg=off",
        "crash": False,
        "error_message": "",
        "accuracy_loss": {"out": 0.1},
        "gpu_time": 1.25,
    }
    path.write_text(json.dumps(header) + "\n" + json.dumps(row) + "\n")
    content = read_cache(path)
    assert content.rows[""]["-copy_ppg=off"]["gpu_time"] == 1.25
    assert content.record("", "-copy_ppg=off") is None, "it has no record of ours to take up"


def test_differences_name_what_changed():
    earlier = json.loads(json.dumps(replace(HEADER, model_sha256="2" * 64, epsilon=1e-2).as_plain()))
    found = HEADER.differences(earlier)
    assert [line.split(":")[0] for line in found] == ["accuracy_parameter.epsilon", "model_sha256"]
    assert not HEADER.differences(replace(HEADER, search="full").as_plain()), "another search may go on"


def test_a_file_that_cannot_be_written_is_one_error(tmp_path):
    folder = tmp_path / "cache.jsonl"
    folder.mkdir()
    with pytest.raises(CacheError, match="cannot write the tuning cache"):
        append_row(folder, "t", 0, RECORD)


def test_rows_written_under_other_conditions_are_not_taken_up(tmp_path):
    """A new header says that what follows was measured with another model, golden or stack."""
    path = tmp_path / "cache.jsonl"
    append_header(path, HEADER)
    append_row(path, HEADER.tuning, 0, RECORD)
    append_header(path, replace(HEADER, search="full"))
    assert read_cache(path).record(HEADER.tuning, "-x=1") == RECORD, "another search over the same"
    append_header(path, replace(HEADER, model_sha256="2" * 64))
    append_row(path, HEADER.tuning, 0, replace(RECORD, key="-x=2"))
    content = read_cache(path)
    assert content.record(HEADER.tuning, "-x=1") is None
    assert content.record(HEADER.tuning, "-x=2") is not None
