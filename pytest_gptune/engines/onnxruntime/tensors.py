"""Arrays into ONNX Runtime and out of it, for every element type, ml_dtypes' included."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from pytest_gptune.engines.base import EngineFailedError

if TYPE_CHECKING:
    import numpy as np

# ONNX element types that NumPy has no type for: number in TensorProto.DataType, storage type.
_EXTENDED = {
    "bfloat16": (16, "uint16"),
    "float8_e4m3fn": (17, "uint8"),
    "float8_e4m3fnuz": (18, "uint8"),
    "float8_e5m2": (19, "uint8"),
    "float8_e5m2fnuz": (20, "uint8"),
}

# ONNX Runtime's spelling of element types, where it is not NumPy's.
_NAMES = {
    "float": "float32",
    "double": "float64",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
}


def ort_dtype_name(type_name: str) -> str:
    """``float32`` for ``tensor(float)``."""
    inner = type_name.removeprefix("tensor(").removesuffix(")")
    return _NAMES.get(inner, inner)


def to_ort_value(array: np.ndarray) -> Any:
    """An ``OrtValue`` on the CPU that holds a copy of ``array``."""
    import numpy as np
    import onnxruntime as ort

    # An OrtValue lies on the array's own memory: without a copy it would change with the caller's array, and
    # ONNX Runtime reads the bytes as they are, whatever their order.
    array = np.asarray(array)
    array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
    extended = _EXTENDED.get(array.dtype.name)
    if extended:
        number, storage = extended
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(storage), number)
    return ort.OrtValue.ortvalue_from_numpy(array)


def element_type_of(dtype: np.dtype[Any]) -> Any:
    """What bindings take for an element type: NumPy's type, or ONNX's number of one of ml_dtypes."""
    extended = _EXTENDED.get(dtype.name)
    return extended[0] if extended else dtype.type


def from_ort_value(value: Any, output: str) -> np.ndarray:
    """The array an ``OrtValue`` holds, as a copy that owns its data.

    Raises:
        EngineFailedError: the output is not a tensor, or its element type has no array type.
    """
    import numpy as np

    if not value.has_value() or not value.is_tensor():
        raise EngineFailedError(
            f"output '{output}' is not a tensor but {value.data_type()}",
            mend="let the model return tensors only (for scikit-learn's ZipMap: zipmap=False at export)",
        )
    name = ort_dtype_name(value.data_type())
    if name == "string":
        raise EngineFailedError(
            f"output '{output}' is text, which is not compared",
            mend="let the model return numbers, as the indices of classes",
        )
    extended = _EXTENDED.get(name)
    if not extended:
        try:
            return np.array(value.numpy(), copy=True)
        except RuntimeError as error:
            raise EngineFailedError(
                f"output '{output}' has element type {name}, which cannot be read: {error}"
            ) from error
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, name))
    shape = tuple(value.shape())
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.zeros(shape, dtype)
    raw = ctypes.string_at(value.data_ptr(), count * dtype.itemsize)
    array: np.ndarray = np.frombuffer(raw, dtype).reshape(shape).copy()
    return array
