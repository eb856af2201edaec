"""Converting caches of trtexec and Torch-TensorRT: the same routes, and what is missing is said."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from cache_rows import (
    DEFAULT_ROUTE,
    TORCH_HEADER,
    TRTEXEC_HEADER,
    foreign_row,
    record,
    write,
    write_foreign,
)
from hypothesis import given
from hypothesis import strategies as st

from pytest_gptune.records.cache_files import convert, merge
from pytest_gptune.records.cached_tuning import cached_tunings
from pytest_gptune.records.priors import helpful_values
from pytest_gptune.records.tuning_cache import CacheError, read_cache

ROWS = [
    foreign_row(0, DEFAULT_ROUTE, 0.0, 2.0),
    foreign_row(1, "-a=1 -b=0 -c=0", 0.05, 1.5),
    foreign_row(2, "-a=0 -b=1 -c=0", 0.5, None, error_message="accuracy threshold exceeded"),
    foreign_row(3, "-a=0 -b=0 -c=1", crash=True, error_message="signal 11"),
]
REPEATED = foreign_row(4, "-a=1 -b=0 -c=0", 0.05, 1.6)
HEADERS = pytest.mark.parametrize(
    ("header", "writer"), [(TRTEXEC_HEADER, "trtexec"), (TORCH_HEADER, "torch-tensorrt")]
)


@HEADERS
def test_routes_read_the_same(tmp_path, header, writer):
    source = write_foreign(tmp_path / "trt.jsonl", ROWS, header)
    converted = convert(source, tmp_path / "ours.jsonl")
    assert (converted.writer, converted.routes) == (writer, 4)
    (before,), (after,) = (cached_tunings(read_cache(p)) for p in (source, tmp_path / "ours.jsonl"))
    assert after == replace(before, tuning="trt.jsonl", backend="tensorrt")
    assert helpful_values([read_cache(tmp_path / "ours.jsonl")]) == helpful_values([read_cache(source)])


@HEADERS
def test_nothing_of_the_foreign_file_is_lost(tmp_path, header, writer):
    source = write_foreign(tmp_path / "trt.jsonl", [*ROWS, REPEATED], header)
    assert convert(source, tmp_path / "ours.jsonl", "my test").routes == 4
    first, *rows = map(json.loads, (tmp_path / "ours.jsonl").read_text().splitlines())
    assert first["converted_from"] == {"writer": writer, "header": header}
    assert (first["schema"], first["kind"], first["tuning"]) == (1, "header", "my test")
    assert [{key: row[key] for key in ROWS[0]} for row in rows] == [*ROWS, REPEATED]
    assert {row["tuning"] for row in rows} == {"my test"}


@HEADERS
def test_what_is_missing_is_said(tmp_path, header, writer):
    text = "\n".join(convert(write_foreign(tmp_path / "t", ROWS, header), tmp_path / "o").missing)
    for said in ("fingerprint", "intervals", "engine digests", "latencies of 1 of 4 routes"):
        assert said in text
    assert ("NaN" in text) == (writer == "trtexec")
    assert ("medians" in text) == (writer == "torch-tensorrt")
    assert "no speedups" not in text


def test_what_nothing_is_known_of_is_said(tmp_path):
    header = {**TORCH_HEADER, "accuracy_parameter": {"epsilon": None}}
    rows = [foreign_row(1, "-a=1", gpu_time=1.0)]
    text = "\n".join(convert(write_foreign(tmp_path / "t", rows, header), tmp_path / "o").missing)
    for said in ("epsilon: no route is known to have passed", "losses of 1 of 1 routes", "no speedups"):
        assert said in text


def test_no_row_can_be_taken_up_by_a_run(tmp_path):
    convert(write_foreign(tmp_path / "t", ROWS, TRTEXEC_HEADER), tmp_path / "o", "test_x.py::test_x")
    content = read_cache(tmp_path / "o")
    assert all(content.record("test_x.py::test_x", key) is None for key in content.rows["test_x.py::test_x"])


def test_a_converted_cache_can_be_merged(tmp_path):
    one = write_foreign(tmp_path / "one", ROWS[:2], TRTEXEC_HEADER)
    two = write_foreign(tmp_path / "two", ROWS[2:], TRTEXEC_HEADER)
    for path in (one, two):
        convert(path, path.with_suffix(".jsonl"), "model")
    merged = merge(tmp_path / "m", [one.with_suffix(".jsonl"), two.with_suffix(".jsonl")])
    assert (merged.tunings, merged.routes) == (1, 4)


def test_one_of_ours_is_refused(tmp_path):
    source = write(tmp_path / "ours.jsonl", [record("", 1.0, 0.0)])
    with pytest.raises(CacheError, match="form of ours already"):
        convert(source, tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_an_existing_file_is_not_overwritten(tmp_path):
    source = write_foreign(tmp_path / "t", ROWS, TRTEXEC_HEADER)
    before = source.read_bytes()
    with pytest.raises(CacheError, match="exists already"):
        convert(source, source)
    assert source.read_bytes() == before


def test_a_row_that_is_none_leaves_no_file(tmp_path):
    source = write_foreign(tmp_path / "t", [foreign_row(0, "-a", 0.0, 1.0)], TRTEXEC_HEADER)
    with pytest.raises(CacheError, match="is not a route"):
        convert(source, tmp_path / "o")
    assert not (tmp_path / "o").exists()


routes = st.sampled_from(
    [
        " ".join(f"{k}={v}" for k, v in zip(("-a", "-b"), values, strict=True))
        for values in itertools.product("012", repeat=2)
    ]
)
numbers = st.none() | st.floats(0, 1e9) | st.sampled_from([math.nan, math.inf])
foreign_rows = st.lists(
    st.builds(
        lambda route, loss, gpu_time, crash, error: foreign_row(
            0, route, gpu_time=gpu_time, crash=crash, error_message=error, accuracy_loss=loss
        ),
        routes,
        st.none() | st.dictionaries(st.sampled_from(["y", "z"]), numbers, min_size=1),
        numbers,
        st.booleans(),
        st.sampled_from(["", "failed"]),
    ),
    min_size=1,
)
headers = st.builds(
    lambda header, epsilon: {**header, "accuracy_parameter": {"epsilon": epsilon}},
    st.sampled_from([TRTEXEC_HEADER, TORCH_HEADER]),
    st.none() | st.floats(0, 10.0),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("convert")


@given(foreign_rows, headers)
def test_any_cache_reads_the_same_when_converted(folder: Path, rows, header):
    out = folder / "out"
    out.unlink(missing_ok=True)
    source = write_foreign(folder / "source", rows, header)
    convert(source, out)
    (before,), (after,) = (cached_tunings(read_cache(path)) for path in (source, out))
    assert after == replace(before, tuning="source", backend="tensorrt")
