"""Merging caches: nothing is lost, and what does not belong together is refused."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from cache_rows import DEFAULT_ROUTE, HEADER, TRTEXEC_HEADER, foreign_row, record, write, write_foreign
from hypothesis import given
from hypothesis import strategies as st

from pytest_gptune.errors import StorageError
from pytest_gptune.records.cache_files import merge, merged_lines
from pytest_gptune.records.cached_tuning import cached_tunings
from pytest_gptune.records.tuning_cache import CacheError, append_row, line_of, read_cache, row_of
from pytest_gptune.storage import locked

OTHER = replace(HEADER, model_sha256="2" * 64)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


@pytest.fixture
def one(tmp_path):
    return write(tmp_path / "one.jsonl", [record("", 2.0, 0.0), record("-a=1", 1.0, 0.0)])


@pytest.fixture
def two(tmp_path):
    return write(tmp_path / "two.jsonl", [record("", 2.1, 0.0), record("-b=1", 1.5, 0.0)])


def test_rows_of_both_are_in_it_and_the_later_counts(tmp_path, one, two):
    out = tmp_path / "out.jsonl"
    merged = merge(out, [one, two])
    assert (merged.tunings, merged.routes, merged.rows, merged.warnings) == (1, 3, 4, ())
    assert set(lines(out)) == {*lines(one), *lines(two)}
    (tuning,) = cached_tunings(read_cache(out))
    assert {route.id: route.latency_s for route in tuning.routes} == {"default": 2.1, "a=1": 1.0, "b=1": 1.5}


def test_what_got_further_is_not_hidden_by_what_did_not(tmp_path, one):
    again = write(tmp_path / "again.jsonl", [record("-a=1", None, None, "test_failed")])
    out = tmp_path / "out.jsonl"
    merge(out, [one, again])
    assert read_cache(out).record(HEADER.tuning, "-a=1").status == "passed"
    assert len(lines(out)) == 4


def test_merging_again_changes_nothing(tmp_path, one, two):
    out = tmp_path / "out.jsonl"
    merge(out, [one, two])
    before = out.read_bytes()
    merge(out, [out, one, two, out])
    assert sorted(out.read_bytes().splitlines()) == sorted(before.splitlines())


def test_other_tunings_stand_beside(tmp_path, one):
    other = write(tmp_path / "other.jsonl", [record("", 1.0, 0.0)], replace(OTHER, tuning="t2"))
    out = tmp_path / "out.jsonl"
    assert merge(out, [one, other]).tunings == 2
    assert {tuning.tuning for tuning in cached_tunings(read_cache(out))} == {HEADER.tuning, "t2"}


def test_other_conditions_are_refused_with_the_difference(tmp_path, one):
    other = write(tmp_path / "other.jsonl", [record("", 1.0, 0.0)], OTHER)
    out = tmp_path / "out.jsonl"
    with pytest.raises(CacheError) as caught:
        merge(out, [one, other])
    assert f"{HEADER.tuning} was measured under other conditions" in str(caught.value)
    assert f"model_sha256: {'0' * 64} -> {'2' * 64}" in str(caught.value)
    assert str(one) in str(caught.value)
    assert str(other) in str(caught.value)
    assert not out.exists()


def test_another_search_is_no_other_condition(tmp_path, one):
    other = write(tmp_path / "o.jsonl", [record("-b=1", 1.0, 0.0)], replace(HEADER, search="fast"))
    assert merge(tmp_path / "out.jsonl", [one, other]).routes == 3


def test_rows_that_a_later_header_superseded_are_kept_and_stay_superseded(tmp_path, one):
    old = write(tmp_path / "old.jsonl", [record("-c=1", 9.0, 0.0)], OTHER)
    write(old, [record("-b=1", 1.5, 0.0)])
    out = tmp_path / "out.jsonl"
    merge(out, [one, old])
    assert {*lines(one), *lines(old)} == set(lines(out))
    assert set(read_cache(out).rows[HEADER.tuning]) == {"", "-a=1", "-b=1"}


def test_an_existing_file_is_not_overwritten(tmp_path, one, two):
    before = two.read_bytes()
    with pytest.raises(CacheError, match="exists already"):
        merge(two, [one])
    assert two.read_bytes() == before


def test_the_file_written_may_be_one_of_them(one, two):
    merge(one, [one, two])
    assert set(read_cache(one).rows[HEADER.tuning]) == {"", "-a=1", "-b=1"}


def test_a_torn_line_is_said(tmp_path, one, two):
    two.write_bytes(two.read_bytes()[:-20])
    merged = merge(tmp_path / "out.jsonl", [one, two])
    assert merged.rows == 3
    assert "torn" in merged.warnings[0]
    assert len(merged.warnings) == 1


@pytest.mark.parametrize("content", [b"", b"\n", b"PK\x03\x04\n\x00\n", b'{"schema": 1, "entries": []}\n'])
def test_what_is_no_cache_is_refused(tmp_path, one, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(CacheError, match="give a file that --gptune-cache wrote") as caught:
        merge(tmp_path / "out.jsonl", [one, tmp_path / "x"])
    assert str(tmp_path / "x") in str(caught.value)


def test_a_missing_one_is_refused(tmp_path, one):
    with pytest.raises(CacheError, match="no such tuning cache"):
        merge(tmp_path / "out.jsonl", [one, tmp_path / "absent"])
    assert not (tmp_path / "out.jsonl").exists()


def test_a_foreign_cache_has_to_be_converted_first(tmp_path, one):
    foreign = write_foreign(tmp_path / "t", [foreign_row(0, DEFAULT_ROUTE, 0.0, 1.0)], TRTEXEC_HEADER)
    with pytest.raises(CacheError, match="convert it first: gptune convert"):
        merge(tmp_path / "out.jsonl", [one, foreign])


def test_a_write_that_fails_leaves_the_old_file(tmp_path, one, two, monkeypatch):
    import boltons.fileutils

    def full(*arguments, **keys):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(boltons.fileutils, "atomic_save", full)
    before = one.read_bytes()
    with pytest.raises(StorageError, match="No space left"):
        merge(one, [one, two])
    assert one.read_bytes() == before


def test_a_run_that_appends_meanwhile_loses_nothing(tmp_path, one, two, monkeypatch):
    """The lock is held from reading to writing; whoever appends waits for it."""
    from pytest_gptune.records import cache_files

    started = threading.Event()

    def append():
        started.wait()
        append_row(one, HEADER.tuning, 9, record("-c=1", 3.0, 0.0))

    def while_read(inputs):
        started.set()
        thread.join(0.3)
        assert thread.is_alive(), "the row was appended while the file was being replaced"
        return merged_lines(inputs)

    monkeypatch.setattr(cache_files, "merged_lines", while_read)
    thread = threading.Thread(target=append)
    thread.start()
    merge(one, [one, two])
    thread.join(30)
    with locked(one):
        assert set(read_cache(one).rows[HEADER.tuning]) == {"", "-a=1", "-b=1", "-c=1"}


keys = st.sampled_from(["", "-a=1"])
statuses = st.sampled_from(["passed", "test_failed", "crashed", "skipped"])
conditions = st.sampled_from([HEADER, OTHER, replace(HEADER, search="fast")])
written = st.lists(st.tuples(conditions, st.lists(st.tuples(keys, statuses), max_size=3)), max_size=3)


@given(st.lists(written, min_size=1, max_size=3))
def test_nothing_is_lost(histories):
    """Every line is there; of every route that any input has, the merged cache has a row that got as far."""
    number = 0
    inputs = []
    for position, history in enumerate(histories):
        whole = []
        for header, rows in [*history, (HEADER, [])]:  # all end under the same conditions
            whole.append(json.loads(line_of(header.as_plain())))
            for key, status in rows:
                row = row_of(header.tuning, number, record(key, 1.0, 0.0, status))
                whole.append(json.loads(line_of(row)))
                number += 1
        inputs.append((Path(str(position)), whole))

    merged = merged_lines(inputs)

    count = Counter(json.dumps(line) for line in merged)
    assert set(count) == {json.dumps(line) for _, whole in inputs for line in whole}
    seen = in_force(merged)
    for _, whole in inputs:
        for key, status in in_force(whole).items():
            assert key in seen
            if status not in ("test_failed", "skipped"):
                assert seen[key] not in ("test_failed", "skipped")
    assert set(seen) == {key for _, whole in inputs for key in in_force(whole)}
    assert merged_lines([(Path("m"), merged)]) == merged


def in_force(lines_of_cache):
    """Status by route key as reading the lines gives it, without a file."""
    current: dict[str, str] = {}
    header = None
    for line in lines_of_cache:
        if line["kind"] == "header":
            bare = {k: v for k, v in line.items() if k != "searching_algorithm"}
            if header is not None and header != bare:
                current = {}
            header = bare
        else:
            current[line["record"]["key"]] = line["status"]
    return current
