"""Shapes of the marker become profiles, and what is wrong with them is said before TensorRT is asked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gptune.engines.base import BuildRejectedError, ShapeRange
from pytest_gptune.engines.tensorrt.profiles import NetworkInput, Profile, add_profile, make_profile
from pytest_gptune.errors import SettingsError

TOKENS = NetworkInput("tokens", (-1, -1, 128))
IMAGE = NetworkInput("image", (1, 3, 64, 64))
SIZE = NetworkInput("size", (2,), holds_shape=True)
GOOD = ShapeRange((1, 7, 128), (2, 64, 128), (4, 64, 128))


def test_only_dynamic_inputs_and_those_that_hold_shapes_are_in_the_profile() -> None:
    values = ShapeRange((1, 1), (8, 8), (64, 64))
    fixed = ShapeRange.fixed((1, 3, 64, 64))
    profile = make_profile([TOKENS, IMAGE, SIZE], {"tokens": GOOD, "image": fixed}, {"size": values})
    assert profile == Profile({"tokens": GOOD}, {"size": values})
    assert make_profile([IMAGE], {}, {}) == Profile({}, {})


@pytest.mark.parametrize(
    ("shapes", "values", "said"),
    [
        ({}, {}, "input 'tokens' [-1, -1, 128] is dynamic and has no shape"),
        ({"tokens": GOOD, "token": GOOD}, {}, "there is no input 'token'"),
        ({"tokens": ShapeRange.fixed((1, 7))}, {}, "input 'tokens' has 3 dimensions, [1, 7] has 2"),
        (
            {"tokens": ShapeRange((1, 7, 128), (2, 64), (4, 64, 128))},
            {},
            "input 'tokens' has 3 dimensions, [2, 64] has 2",
        ),
        (
            {"tokens": ShapeRange.fixed((1, 7, 99))},
            {},
            "dimension 2 of input 'tokens' is 128 in the model, not 99",
        ),
        (
            {"tokens": ShapeRange((3, 7, 128), (2, 64, 128), (4, 64, 128))},
            {},
            "input 'tokens': min 3, opt 2, max 4 at position 0 are not in order",
        ),
        ({"tokens": ShapeRange.fixed((-1, 7, 128))}, {}, "dimension 0 of input 'tokens' is -1"),
        ({"tokens": GOOD}, {"tokens": GOOD}, "input 'tokens' has shape_values and does not hold a shape"),
    ],
)
def test_what_is_wrong_is_named(shapes: Any, values: Any, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        make_profile([TOKENS], shapes, values)
    assert said in caught.value.what
    assert "write shapes={'tokens': (1, 1, 128)}" in caught.value.mend


def test_an_input_that_holds_a_shape_needs_values() -> None:
    with pytest.raises(
        SettingsError, match="'size' holds a shape, and its values are not declared"
    ) as caught:
        make_profile([SIZE], {}, {})
    assert "options={'shape_values': {'size': [...]}}" in caught.value.mend
    with pytest.raises(SettingsError, match="values of 'size': min, opt and max differ in length"):
        make_profile([SIZE], {}, {"size": ShapeRange((1,), (1, 2), (1, 2))})


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        make_profile([TOKENS, IMAGE], {"image": ShapeRange.fixed((2, 3, 64, 64)), "x": GOOD}, {})
    for said in ("no input 'x'", "'tokens' [-1, -1, 128] is dynamic", "dimension 0 of input 'image' is 1"):
        assert said in caught.value.what


dims = st.lists(st.integers(-3, 300), min_size=0, max_size=5).map(tuple)


@given(dims, dims, dims, dims)
def test_a_profile_that_is_taken_is_one_that_tensorrt_can_take(
    declared: tuple[int, ...], least: tuple[int, ...], opt: tuple[int, ...], most: tuple[int, ...]
) -> None:
    declared = tuple(-1 if dim < 0 else dim for dim in declared)
    shape = ShapeRange(least, opt, most)
    try:
        profile = make_profile([NetworkInput("x", declared)], {"x": shape}, {})
    except SettingsError:
        return
    assert len(declared) == len(least) == len(opt) == len(most)
    for dim, low, middle, high in zip(declared, least, opt, most, strict=True):
        assert 0 <= low <= middle <= high
        assert dim == -1 or dim == low == high
    assert ("x" in profile.shapes) == (-1 in declared)


class StubbornBuilder:
    """Takes shapes and refuses the profile, as the real one does for one whose order is wrong."""

    def create_optimization_profile(self) -> StubbornBuilder:
        return self

    def set_shape(self, *_: Any) -> None:
        pass

    def add_optimization_profile(self, _: Any) -> int:
        return -1


def test_a_profile_that_tensorrt_drops_is_an_error() -> None:
    builder = StubbornBuilder()
    with pytest.raises(BuildRejectedError, match="does not take the optimisation profile of tokens"):
        add_profile(builder, builder, Profile({"tokens": GOOD}, {}))
    add_profile(None, None, Profile({}, {}))
