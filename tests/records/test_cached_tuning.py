"""What is read of caches of three writers, and what is refused."""

from __future__ import annotations

import json
import math

import pytest
from cache_rows import (
    DEFAULT_ROUTE,
    HEADER,
    TORCH_HEADER,
    TRTEXEC_HEADER,
    foreign_row,
    foreign_tuning,
    record,
    tuning_of,
    write,
)

from pytest_gptune.records.cached_tuning import CachedRoute, cached_tunings
from pytest_gptune.records.tuning_cache import CacheContent, CacheError, read_cache


def by_id(tuning):
    return {route.id: route for route in tuning.routes}


def test_ours_is_read_with_intervals_and_digests(tmp_path):
    path = write(
        tmp_path / "c.jsonl",
        [record("", 2e-3, 1e-3, engine_digest="d0"), record("-b=1 -c=1", 1e-3, 0.2, "inaccurate")],
    )
    (tuning,) = cached_tunings(read_cache(path))
    assert (tuning.tuning, tuning.writer, tuning.metric, tuning.epsilon) == (
        HEADER.tuning,
        "pytest-gptune",
        "lInf",
        0.1,
    )
    default, other = tuning.routes
    assert tuning.default is default
    assert (default.id, default.route, default.changes) == ("default", "default", {})
    assert default.engine_digest == "d0"
    assert (other.id, other.route) == ("b=1,c=1", "-b=1 -c=1")
    assert other.changes == {"-b": "1", "-c": "1"}
    assert other.interval == pytest.approx((0.99e-3, 1.01e-3))
    assert (other.status, other.loss) == ("inaccurate", 0.2)
    assert tuning.speedup(other) == pytest.approx(2)


@pytest.mark.parametrize(
    ("header", "writer"), [(TRTEXEC_HEADER, "trtexec"), (TORCH_HEADER, "torch-tensorrt")]
)
def test_foreign_rows_get_a_status_from_what_they_say(tmp_path, header, writer):
    rows = [
        foreign_row(0, DEFAULT_ROUTE, 0.0, 2.0),
        foreign_row(1, "-a=1 -b=0 -c=0", 0.1, 1.0),
        foreign_row(2, "-a=0 -b=1 -c=0", 0.11, 1.0),
        foreign_row(3, "-a=0 -b=0 -c=1", crash=True, error_message="signal 11"),
        foreign_row(4, "-a=1 -b=1 -c=0", error_message="refused", gpu_time=0.0),
        foreign_row(5, "-a=1 -b=0 -c=1", gpu_time=1.0),
        foreign_row(6, "-a=1 -b=1 -c=1", math.nan, 1.0),
    ]
    tuning = foreign_tuning(tmp_path / "c", rows, header)
    assert tuning.writer == writer
    assert {name: route.status for name, route in by_id(tuning).items()} == {
        "default": "passed",
        "a=1": "passed",
        "b=1": "inaccurate",
        "c=1": "crashed",
        "a=1,b=1": "rejected",
        "a=1,c=1": "unchecked",
        "a=1,b=1,c=1": "inaccurate",
    }
    routes = by_id(tuning)
    assert routes["a=1"].latency_s == pytest.approx(1e-3)
    assert routes["a=1,b=1"].latency_s is None, "0 ms is an engine that was not timed"
    assert routes["a=1,b=1,c=1"].loss == math.inf
    assert routes["a=1"].interval is None


def test_a_null_loss_is_no_perfect_one(tmp_path):
    """nlohmann::json, which trtexec writes with, makes null of NaN and infinity."""
    row = foreign_row(0, DEFAULT_ROUTE, gpu_time=1.0, accuracy_loss={"y": None})
    tuning = foreign_tuning(tmp_path / "c", [row], TRTEXEC_HEADER)
    assert tuning.routes[0].losses == {"y": math.inf}
    assert tuning.routes[0].status == "inaccurate"


def test_a_foreign_cache_without_epsilon_has_compared_nothing(tmp_path):
    header = {**TORCH_HEADER, "accuracy_parameter": {"epsilon": None}}
    tuning = foreign_tuning(tmp_path / "c", [foreign_row(0, DEFAULT_ROUTE, 0.0, 1.0)], header)
    assert tuning.epsilon is None
    assert tuning.routes[0].status == "unchecked"


def test_the_order_of_knobs_and_unnamed_defaults_make_no_other_route(tmp_path):
    rows = [foreign_row(0, "-b=1 -a=1", 0.0, 2.0), foreign_row(1, "-a=1 -b=1 -c=0", 0.0, 3.0)]
    tuning = foreign_tuning(tmp_path / "c", rows, TRTEXEC_HEADER)
    (route,) = tuning.routes
    assert route.latency_s == pytest.approx(3e-3), "the last row of a route counts"


def test_an_epsilon_for_each_output_is_judged_by_output():
    routes = [
        record("", 1.0, {"y": 0.01, "ids": 0.0}),
        record("-a=1", 1.0, {"y": 0.3, "ids": 0.0}, "inaccurate"),
        record("-b=1", 1.0, {"y": 0.0, "ids": 1.0}, "inaccurate"),
    ]
    tuning = tuning_of(routes, epsilon={"y": 0.1, "ids": 0})
    needed = [tuning.needed(route) for route in tuning.routes]
    assert needed == [pytest.approx(0.1), pytest.approx(3.0), math.inf]
    default, first, second = tuning.routes
    assert first.passes({"y": 0.3, "ids": 0})
    assert not first.passes({"y": 0.2999, "ids": 1})
    assert second.passes({"y": 0, "ids": 1.0})
    assert default.passes(0.01)
    assert not default.passes(0.009)


@pytest.mark.parametrize("epsilon", [0.1, 1e-7, 3e300, 5e-324])
def test_a_loss_above_epsilon_by_the_last_bit_is_not_within(epsilon):
    above = math.nextafter(epsilon, math.inf)
    for given in (epsilon, {"y": epsilon}):
        assert not CachedRoute("", "", {}, "", {"y": above}).passes(given)
        assert CachedRoute("", "", {}, "", {"y": epsilon}).passes(given)


def test_loss_0_that_is_no_equality_does_not_pass_epsilon_0():
    """(0.5, 0.5) and (1, 1) have the same direction: their cos is 0, and epsilon 0 asks for equality."""
    unequal = CachedRoute("", "", {}, "inaccurate", {"y": 0.0}, needed_epsilon=5e-324)
    by_output = CachedRoute("", "", {}, "inaccurate", {"y": 0.0})
    equal = CachedRoute("", "", {}, "passed", {"y": 0.0}, needed_epsilon=0.0)
    for route in (unequal, by_output):
        assert not route.passes(0)
        assert not route.passes({"y": 0})
        assert route.passes(1e-300)
        assert route.passes({"y": 1e-300})
    assert equal.passes(0)
    assert equal.passes({"y": 0})


def test_routes_that_were_timed_otherwise_do_not_compare():
    tuning = tuning_of(
        [
            record("", 2.0, 0.0),
            record("-a=1", 1.0, 0.0, kind="device_queued"),
            record("-b=1", 1.0, 0.0, graph=True),
            record("-c=1", 1.0, 0.0, timed_case="other"),
            record("-a=1 -b=1", 1.0, 0.0),
        ]
    )
    assert [route.id for route in tuning.comparable] == ["default", "a=1,b=1"]
    assert [tuning.speedup(route) for route in tuning.routes] == [1.0, None, None, None, 2.0]


def test_what_a_terminal_would_obey_is_not_shown(tmp_path):
    row = foreign_row(0, DEFAULT_ROUTE, error_message="\x1b[31mred", accuracy_loss={"\x1b[2J": 1.0})
    tuning = foreign_tuning(tmp_path / "c", [row], {**TRTEXEC_HEADER, "tuner_version": "\ud800\n"})
    assert tuning.tuner_version == "??"
    assert tuning.routes[0].error == "?[31mred"
    assert list(tuning.routes[0].losses) == ["?[2J"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"build_route": 5}, "5 is not a build route"),
        ({"build_route": "-a"}, "is not a route"),
        ({"build_route": "-a=1 -a=2"}, "names a knob twice"),
        ({"accuracy_loss": 3}, "accuracy_loss is not a loss by output"),
        ({"accuracy_loss": {"y": "much"}}, "'much' is not a loss"),
        ({"accuracy_loss": {"y": True}}, "True is not a loss"),
        ({"accuracy_loss": {"y": -1}}, "negative"),
    ],
)
def test_rows_that_are_none_are_one_error_that_names_them(fields, said):
    row = {**foreign_row(7, DEFAULT_ROUTE, 0.0, 1.0), **fields}
    with pytest.raises(CacheError) as caught:
        cached_tunings(CacheContent({"": TRTEXEC_HEADER}, {"": {"": row}}))
    assert said in str(caught.value)
    assert "iter 7" in str(caught.value)


def test_odd_numbers_are_no_latency():
    for value in (-1, 0, True, "5", math.inf, 10**400, 1e-320, 1e300, None):
        row = {**foreign_row(0, DEFAULT_ROUTE, 0.0), "gpu_time": value}
        (tuning,) = cached_tunings(CacheContent({"": TRTEXEC_HEADER}, {"": {"": row}}))
        assert tuning.routes[0].latency_s is None, value


def test_an_infinite_loss_of_ours_is_read_again(tmp_path):
    path = write(tmp_path / "c", [record("", 1.0, math.inf, "inaccurate")])
    assert "Infinity" not in path.read_text()
    assert json.loads(path.read_text().splitlines()[1])["accuracy_loss"] == {"y": "inf"}
    (tuning,) = cached_tunings(read_cache(path))
    assert tuning.needed(tuning.routes[0]) == math.inf
