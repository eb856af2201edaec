"""What a knob's value does, from pairs of routes that differ in it alone."""

from __future__ import annotations

import math

import pytest
from cache_rows import record, tuning_of
from hypothesis import given
from hypothesis import strategies as st

from pytest_gptune.records.effects import effects
from pytest_gptune.timing.statistics import paired_ratio


def by_value(tuning, **arguments):
    return {f"{e.knob}={e.value}": e for e in effects(tuning, **arguments)}


def test_one_pair_has_the_interval_of_its_two_measurements():
    tuning = tuning_of([record("", 2.0, 0.0, spread=0.1), record("-a=1", 1.0, 0.25, spread=0.2)])
    effect = by_value(tuning)["-a=1"]
    assert (effect.against, effect.routes, effect.pairs, effect.basis) == ("0", 1, 1, "measurements")
    assert effect.ratio == pytest.approx(0.5)
    assert effect.interval == pytest.approx((0.8 / 2.2, 1.2 / 1.8))
    assert effect.faster
    assert not effect.slower
    assert (effect.loss_pairs, effect.loss_change, effect.loss_interval) == (1, 0.25, None)


def test_one_pair_without_intervals_has_none():
    tuning = tuning_of([record("", 2.0, 0.0), record("-a=1", 1.0, 0.0, spread=None)])
    effect = by_value(tuning)["-a=1"]
    assert (effect.interval, effect.basis, effect.faster) == (None, "none", False)


def test_several_pairs_have_an_interval_over_the_pairs():
    latencies = {"": 4.0, "-b=1": 3.0, "-c=1": 5.0, "-a=1": 2.0, "-a=1 -b=1": 1.4, "-a=1 -c=1": 2.6}
    tuning = tuning_of([record(key, value, value / 100) for key, value in latencies.items()])
    effect = by_value(tuning)["-a=1"]
    expected = paired_ratio([2.0, 1.4, 2.6], [4.0, 3.0, 5.0])
    assert (effect.pairs, effect.basis) == (3, "pairs")
    assert effect.ratio == pytest.approx(expected.value)
    assert effect.interval == pytest.approx((expected.low, expected.high))
    assert effect.loss_change == pytest.approx((-0.02 - 0.016 - 0.024) / 3)
    assert effect.loss_interval[0] < effect.loss_change < effect.loss_interval[1]


def test_of_very_many_pairs_a_hundred_are_taken():
    """A full search over a dozen knobs has thousands of pairs for each value."""
    records = []
    for number in range(2**9):
        on = [f"-k{bit}=1" for bit in range(9) if number >> bit & 1]
        records.append(record(" ".join(on), (0.5 if "-k0=1" in on else 1.0) * (1 + number % 7 / 100), 0.0))
    effect = by_value(tuning_of(records))["-k0=1"]
    assert effect.pairs == 256
    assert effect.ratio == pytest.approx(0.5, rel=0.05)
    assert 0 < effect.interval[1] - effect.interval[0] < 0.05


def test_routes_that_differ_in_more_are_no_pair():
    tuning = tuning_of([record("", 2.0, 0.0), record("-a=1 -b=1", 1.0, 0.0)])
    for effect in effects(tuning):
        assert (effect.routes, effect.pairs, effect.ratio, effect.basis) == (1, 0, None, "none")


def test_what_failed_is_counted_and_what_was_timed_otherwise_is_left_out():
    tuning = tuning_of(
        [
            record("", 2.0, 0.0),
            record("-a=1", None, None, "crashed"),
            record("-a=1 -b=1", None, None, "rejected"),
            record("-b=1", 1.0, 0.0, kind="device_queued"),
        ]
    )
    found = by_value(tuning)
    assert (found["-a=1"].routes, found["-a=1"].failed, found["-a=1"].pairs) == (2, 2, 0)
    assert (found["-b=1"].failed, found["-b=1"].pairs) == (1, 0)


def test_pairs_of_one_engine_are_inert():
    tuning = tuning_of([record("", 2.0, 0.0, engine_digest="d"), record("-a=1", 1.0, 0.0, engine_digest="d")])
    assert by_value(tuning)["-a=1"].inert == 1


def test_pairs_of_the_same_two_engines_count_once():
    """In a full search every inert value repeats each measurement of the others."""
    tuning = tuning_of(
        [
            record("", 2.0, 0.0, engine_digest="d", spread=0.1),
            record("-a=1", None, None, "inert", engine_digest="d"),
            record("-b=1", 1.0, 0.25, engine_digest="e", spread=0.2),
            record("-a=1 -b=1", None, None, "inert", engine_digest="e"),
        ]
    )
    found = by_value(tuning)
    effect = found["-b=1"]
    assert (effect.routes, effect.pairs, effect.inert, effect.basis) == (2, 1, 0, "measurements")
    assert effect.ratio == pytest.approx(0.5)
    assert effect.interval == pytest.approx((0.8 / 2.2, 1.2 / 1.8))
    assert (effect.loss_pairs, effect.loss_change, effect.loss_interval) == (1, 0.25, None)
    assert (found["-a=1"].pairs, found["-a=1"].inert, found["-a=1"].ratio) == (2, 2, 1.0)


def test_pairs_that_share_one_engine_are_two():
    tuning = tuning_of(
        [
            record("", 2.0, 0.0, engine_digest="d"),
            record("-a=1", 1.0, 0.0, engine_digest="e"),
            record("-b=1", None, None, "inert", engine_digest="d"),
            record("-a=1 -b=1", 1.2, 0.0, engine_digest="f"),
        ]
    )
    effect = by_value(tuning)["-a=1"]
    expected = paired_ratio([1.0, 1.2], [2.0, 2.0])
    assert (effect.pairs, effect.basis) == (2, "pairs")
    assert effect.interval == pytest.approx((expected.low, expected.high))


def test_infinite_losses_are_counted_apart():
    tuning = tuning_of(
        [
            record("", 1.0, 0.0),
            record("-a=1", 1.0, math.inf, "inaccurate"),
            record("-b=1", 1.0, 0.5),
            record("-a=1 -b=1", 1.0, 0.75),
        ]
    )
    effect = by_value(tuning)["-a=1"]
    assert (effect.loss_infinite, effect.loss_pairs, effect.loss_change) == (1, 1, 0.25)
    assert effect.pairs == 2


def test_with_an_epsilon_for_each_output_losses_are_in_epsilons():
    tuning = tuning_of(
        [record("", 1.0, {"y": 1.0, "z": 0.0}), record("-a=1", 1.0, {"y": 1.0, "z": 0.3}, "inaccurate")],
        epsilon={"y": 10.0, "z": 0.1},
    )
    assert by_value(tuning)["-a=1"].loss_change == pytest.approx(3.0 - 0.1)


def test_which_routes_stand_in_a_pair_can_be_chosen():
    tuning = tuning_of([record("", 2.0, 0.0), record("-a=1", 1.0, 0.5, "inaccurate")])
    assert by_value(tuning, accept=lambda route: route.status == "passed")["-a=1"].pairs == 0


@given(
    st.dictionaries(st.sampled_from(("-a", "-b", "-c")), st.floats(0.5, 2.0), min_size=1),
    st.floats(1e-6, 1.0),
)
def test_effects_that_multiply_are_found_exactly(factors, base):
    """Where each knob has a factor of its own and nothing is noise, every pair has that ratio."""
    records = []
    for number in range(2 ** len(factors)):
        on = [knob for bit, knob in enumerate(factors) if number >> bit & 1]
        latency = base * math.prod(factors[knob] for knob in on)
        records.append(record(" ".join(f"{knob}=1" for knob in on), latency, 0.0))
    found = by_value(tuning_of(records))
    assert set(found) == {f"{knob}=1" for knob in factors}
    for knob, factor in factors.items():
        effect = found[f"{knob}=1"]
        assert effect.ratio == pytest.approx(factor)
        assert effect.pairs == 2 ** (len(factors) - 1)
        assert effect.interval[0] <= effect.ratio * (1 + 1e-9)
        assert effect.interval[1] >= effect.ratio * (1 - 1e-9)
