"""Arrays as TensorRT lays them out, and back."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import VERSIONS, Recorded

from pytest_gptune.engines.base import EngineFailedError
from pytest_gptune.engines.tensorrt.tensors import (
    array_dtype,
    device_bytes,
    from_device_layout,
    to_device_layout,
)

TYPES = sorted(set().union(*(Recorded(version).enums["DataType"] for version in VERSIONS)))


def bits_of(type_name: str) -> int:
    return 4 if type_name in ("INT4", "FP4") else array_dtype(type_name).itemsize * 8


@pytest.mark.parametrize("type_name", TYPES)
@given(shape=st.lists(st.integers(0, 5), max_size=4), seed=st.integers(0, 2**32 - 1))
def test_what_is_laid_out_is_read_back_to_the_bit(type_name: str, shape: list[int], seed: int) -> None:
    dtype = array_dtype(type_name)
    values = np.random.default_rng(seed).integers(-8, 8, size=shape)
    array = values.astype(np.float32).astype(dtype)
    raw = to_device_layout(array, type_name)
    assert raw.dtype == np.uint8
    assert raw.size == device_bytes(type_name, shape) == (values.size * bits_of(type_name) + 7) // 8
    back = from_device_layout(raw, type_name, shape)
    assert back.dtype == dtype
    assert back.shape == tuple(shape)
    np.testing.assert_array_equal(back.astype(np.float32), array.astype(np.float32))
    np.testing.assert_array_equal(to_device_layout(back, type_name), raw)
    assert not np.shares_memory(back, raw)


def test_the_first_of_two_elements_is_the_lower_half_of_the_byte() -> None:
    four = np.array([1, -2, 3], ml_dtypes.int4)
    assert to_device_layout(four, "INT4").tolist() == [0xE1, 0x03]


def test_layouts_that_are_not_dense_are_made_so() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    raw = to_device_layout(array, "FLOAT")
    np.testing.assert_array_equal(raw.view(np.float32).reshape(4, 3), array)
    swapped = array.astype(array.dtype.newbyteorder())
    np.testing.assert_array_equal(to_device_layout(swapped, "FLOAT"), raw)


def test_another_type_is_refused() -> None:
    with pytest.raises(
        EngineFailedError, match="an array of float64 is given where the engine reads float32"
    ):
        to_device_layout(np.zeros(3), "FLOAT")
    with pytest.raises(EngineFailedError, match="element type FP2"):
        device_bytes("FP2", (3,))
