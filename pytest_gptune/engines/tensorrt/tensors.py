"""Element types of TensorRT as arrays, four-bit ones unpacked."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pytest_gptune.engines.base import EngineFailedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

# Names of trt.DataType: NumPy's or ml_dtypes' name, and bits of an element.
_TYPES = {
    "FLOAT": ("float32", 32),
    "HALF": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "INT8": ("int8", 8),
    "INT32": ("int32", 32),
    "INT64": ("int64", 64),
    "UINT8": ("uint8", 8),
    "BOOL": ("bool", 8),
    "FP8": ("float8_e4m3fn", 8),
    "E8M0": ("float8_e8m0fnu", 8),
    "INT4": ("int4", 4),
    "FP4": ("float4_e2m1fn", 4),
}


def array_dtype(type_name: str) -> np.dtype[Any]:
    """The dtype of arrays for a member of ``trt.DataType``.

    Raises:
        EngineFailedError: the type is of a later version.
    """
    import numpy as np

    if type_name not in _TYPES:
        raise EngineFailedError(f"element type {type_name} of TensorRT has no type of array")
    name = _TYPES[type_name][0]
    try:
        dtype: np.dtype[Any] = np.dtype(name)
    except TypeError:
        import ml_dtypes

        dtype = np.dtype(getattr(ml_dtypes, name))
    return dtype


def device_bytes(type_name: str, shape: Sequence[int]) -> int:
    """Bytes of a dense tensor on the device: two elements of four bits share one."""
    array_dtype(type_name)
    return (math.prod(shape) * _TYPES[type_name][1] + 7) // 8


def to_device_layout(array: np.ndarray, type_name: str) -> np.ndarray:
    """The bytes of an array as TensorRT reads them, uint8[device_bytes]: C order, native.

    Raises:
        EngineFailedError: the array is of another type than the tensor.
    """
    import numpy as np

    dtype = array_dtype(type_name)
    native = np.ascontiguousarray(array)
    if native.dtype.newbyteorder("=") != dtype:
        raise EngineFailedError(f"an array of {array.dtype} is given where the engine reads {dtype}")
    raw: np.ndarray = native.astype(dtype, copy=False).reshape(-1).view(np.uint8)
    if _TYPES[type_name][1] != 4:
        return raw
    low = np.concatenate([raw, np.zeros(raw.size % 2, np.uint8)]) & 0x0F
    packed: np.ndarray = low[0::2] | (low[1::2] << 4)  # the first of two lies in the lower half
    return packed


def from_device_layout(raw: np.ndarray, type_name: str, shape: Sequence[int]) -> np.ndarray:
    """The inverse of ``to_device_layout``; the array owns its data."""
    import numpy as np

    dtype, count = array_dtype(type_name), math.prod(shape)
    if _TYPES[type_name][1] != 4:
        whole: np.ndarray = raw.view(dtype).reshape(tuple(shape)).copy()
        return whole
    halves = np.stack([raw & 0x0F, raw >> 4], axis=1).reshape(-1)[:count].astype(np.uint8)
    array: np.ndarray = halves.view(dtype).reshape(tuple(shape)).copy()
    return array
