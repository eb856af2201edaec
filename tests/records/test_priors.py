"""Knob values that helped before, whoever's cache says so."""

from __future__ import annotations

import pytest
from cache_rows import (
    DEFAULT_ROUTE,
    HEADER,
    TORCH_HEADER,
    TRTEXEC_HEADER,
    foreign_row,
    record,
    write,
    write_foreign,
)

from pytest_gptune.records.priors import helpful_values
from pytest_gptune.records.tuning_cache import read_cache

A, B, C = (" ".join(f"{knob}={int(knob == on)}" for knob in ("-a", "-b", "-c")) for on in ("-a", "-b", "-c"))


def hints(*paths):
    return helpful_values(read_cache(path) for path in paths)


def values(*paths):
    return [f"{hint.knob}={hint.value}" for hint in hints(*paths)]


def test_only_what_was_significantly_faster_and_accurate_helped(tmp_path):
    path = write(
        tmp_path / "c",
        [
            record("", 2.0, 0.0),
            record("-a=1", 1.9, 0.0),
            record("-b=1", 1.0, 0.5, "inaccurate"),
            record("-c=1", 1.99, 0.0),
        ],
    )
    (hint,) = hints(path)
    assert (hint.knob, hint.value, hint.significant, hint.checked) == ("-a", "1", True, True)
    assert (hint.helped, hint.seen) == (1, 1)
    assert hint.ratio == pytest.approx(0.95)


def test_they_are_ranked_by_what_they_gained(tmp_path):
    records = [
        record("", 2.0, 0.0),
        record("-a=1", 1.8, 0.0),
        record("-b=1", 1.5, 0.0),
        record("-c=1", 3.0, 0.0),
    ]
    assert values(write(tmp_path / "c", records)) == ["-b=1", "-a=1"]


@pytest.mark.parametrize("header", [TRTEXEC_HEADER, TORCH_HEADER])
def test_without_intervals_the_faster_and_accurate_helped(tmp_path, header):
    path = write_foreign(
        tmp_path / "c",
        [
            foreign_row(0, DEFAULT_ROUTE, 0.0, 2.0),
            foreign_row(1, A, 0.05, 1.9),
            foreign_row(2, B, 0.5, 1.0),
            foreign_row(3, C, 0.0, 2.1),
        ],
        header,
    )
    (hint,) = hints(path)
    assert (hint.knob, hint.value, hint.significant, hint.checked) == ("-a", "1", False, True)


def test_a_cache_that_compared_nothing_still_knows_speeds(tmp_path):
    rows = [foreign_row(0, DEFAULT_ROUTE, gpu_time=2.0), foreign_row(1, A, gpu_time=1.0)]
    (hint,) = hints(write_foreign(tmp_path / "c", rows, TRTEXEC_HEADER))
    assert (hint.knob, hint.checked) == ("-a", False)


def test_significant_ones_come_before_faster_ones(tmp_path):
    ours = write(tmp_path / "ours", [record("", 2.0, 0.0), record("-a=1", 1.9, 0.0)])
    rows = [foreign_row(0, DEFAULT_ROUTE, 0.0, 2.0), foreign_row(1, B, 0.0, 1.0)]
    foreign = write_foreign(tmp_path / "trt", rows, TRTEXEC_HEADER)
    assert values(foreign, ours) == ["-a=1", "-b=1"]


def test_several_tunings_are_taken_together(tmp_path):
    from dataclasses import replace

    one = write(tmp_path / "one", [record("", 2.0, 0.0), record("-a=1", 1.0, 0.0), record("-b=1", 1.0, 0.0)])
    write(one, [record("", 2.0, 0.0), record("-a=1", 1.6, 0.0)], replace(HEADER, tuning="other"))
    two = write(tmp_path / "two", [record("", 2.0, 0.0), record("-b=1", 5.0, 0.0)])
    (hint,) = hints(one, two)
    assert (hint.knob, hint.helped, hint.seen) == ("-a", 2, 2)
    assert hint.ratio == pytest.approx((0.5 * 0.8) ** 0.5)


def test_what_helped_here_and_hurt_there_is_not_significant(tmp_path):
    one = write(tmp_path / "one", [record("", 2.0, 0.0), record("-a=1", 1.0, 0.0)])
    two = write(tmp_path / "two", [record("", 2.0, 0.0), record("-a=1", 2.4, 0.0)])
    (hint,) = hints(one, two)
    assert (hint.significant, hint.helped, hint.seen) == (False, 1, 2)


def test_what_helps_by_itself_helps_though_it_does_nothing_beside_others(tmp_path):
    """As a fusion turned off at a level that has none: its interval over all pairs contains 1."""
    records = [
        record("", 3.0, 0.0),
        record("-a=1", 2.0, 0.0),
        *(record(other, 1.5, 0.0) for other in ("-b=1", "-c=1", "-b=1 -c=1")),
        *(record(f"-a=1 {other}", 1.5, 0.0) for other in ("-b=1", "-c=1", "-b=1 -c=1")),
    ]
    found = {hint.knob: hint for hint in hints(write(tmp_path / "c", records))}
    assert found["-a"].ratio == pytest.approx(2 / 3)
    assert found["-a"].significant


def test_what_helps_only_beside_others_is_told_over_all_pairs(tmp_path):
    """The route with the value alone is inaccurate, so that it tells nothing."""
    records = [
        record("", 2.0, 0.0),
        record("-a=1", 1.0, 0.5, "inaccurate"),
        *(record(other, 2.0, 0.0) for other in ("-b=1", "-c=1", "-b=1 -c=1")),
        *(record(f"-a=1 {other}", 1.8, 0.0) for other in ("-b=1", "-c=1", "-b=1 -c=1")),
    ]
    (hint,) = hints(write(tmp_path / "c", records))
    assert (hint.knob, hint.significant) == ("-a", True)
    assert hint.ratio == pytest.approx(0.9)


def test_one_engine_measured_twice_helped_nobody(tmp_path):
    records = [record("", 2.0, 0.0, engine_digest="d"), record("-a=1", 1.0, 0.0, engine_digest="d")]
    assert hints(write(tmp_path / "c", records)) == ()


def test_an_inaccurate_default_is_a_yardstick(tmp_path):
    records = [record("", 2.0, 0.5, "inaccurate"), record("-a=1", 1.0, 0.0)]
    assert values(write(tmp_path / "c", records)) == ["-a=1"]


def test_nothing_gives_nothing(tmp_path):
    assert helpful_values(()) == ()
    assert hints(tmp_path / "absent") == ()
