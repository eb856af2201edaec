"""Numbers as reports print them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gptune.reports.terminal import rounded_up


@given(st.floats(0, allow_infinity=False), st.integers(1, 6))
def test_what_is_printed_of_an_epsilon_is_not_less_than_it(value: float, digits: int) -> None:
    shown = float(rounded_up(value, digits))
    assert shown >= value
    if math.isfinite(shown) and value > 1e-300:
        assert shown <= value * (1 + 10 ** (1 - digits)) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.1, "0.1"),
        (0.0, "0"),
        (0.123401, "0.1235"),
        (99999.0, "1e+05"),
        (math.inf, "inf"),
        (5e-324, "4.941e-324"),
    ],
)
def test_numbers_with_few_digits_are_left_as_they_are(value: float, shown: str) -> None:
    assert rounded_up(value) == shown
