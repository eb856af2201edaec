"""Tensors: which element types can be compared, and whether a tensor fits what a model declares."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Kind = Literal["float", "int", "uint", "bool"]

_NUMPY_NAMES = frozenset(
    [f"{prefix}{width}" for prefix in ("int", "uint") for width in (8, 16, 32, 64)]
    + ["float16", "float32", "float64", "bool"]
)
# Longest first: "uint8" must not be taken for an "int", nor "bfloat16" for a "float" by luck of spelling.
_KIND_OF_PREFIX: tuple[tuple[str, Kind], ...] = (
    ("bfloat", "float"),
    ("float", "float"),
    ("uint", "uint"),
    ("int", "int"),
    ("bool", "bool"),
)


class TensorSpec(Protocol):
    """One input or output as a model declares it; the engines' own description of a tensor fits.

    Attributes:
        name: the tensor's name.
        dtype: NumPy's or ml_dtypes' name of the element type, as ``float32`` or ``bfloat16``.
        shape: an int for a fixed dimension, its symbol or None for a dynamic one (a negative int is taken
            for None); None in place of the tuple where even the rank is unknown.
    """

    @property
    def name(self) -> str:
        """The tensor's name."""

    @property
    def dtype(self) -> str:
        """The element type's name."""

    @property
    def shape(self) -> tuple[int | str | None, ...] | None:
        """The dimensions."""


def kind_of(dtype: np.dtype[Any] | str) -> Kind | None:
    """``float``, ``int``, ``uint`` or ``bool``; None for an element type that cannot be compared.

    Complex numbers, strings, objects, dates, records and ``longdouble`` (whose width depends on the machine)
    have no kind. Types of ml_dtypes are known by name.
    """
    name = dtype if isinstance(dtype, str) else dtype.name
    if name not in _NUMPY_NAMES and not _is_extended(name):
        return None
    return next((kind for prefix, kind in _KIND_OF_PREFIX if name.startswith(prefix)), None)


def dtype_named(name: str) -> np.dtype[Any] | None:
    """The native dtype of that name, NumPy's or ml_dtypes'; None if it has no kind."""
    import numpy as np

    if kind_of(name) is None:
        return None
    if name in _NUMPY_NAMES:
        return np.dtype(name)
    import ml_dtypes

    extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return extended


def is_extended(dtype: np.dtype[Any]) -> bool:
    """Whether the element type is one of ml_dtypes, which files of NumPy cannot name."""
    return _is_extended(dtype.name)


def _is_extended(name: str) -> bool:
    if name in _NUMPY_NAMES or not name.startswith(("bfloat", "float", "int", "uint")):
        return False
    import ml_dtypes

    return isinstance(getattr(ml_dtypes, name, None), type)


def as_float64(array: NDArray[Any]) -> NDArray[np.float64]:
    """``array`` in float64; exact for every kind but 64-bit integers, which are rounded."""
    import numpy as np

    # A signalling NaN, or a narrow type of ml_dtypes, may raise a flag in the cast; the value is right all
    # the same.
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(np.float64)


def first_nonfinite(array: NDArray[Any]) -> tuple[tuple[int, ...], float, int] | None:
    """Index and value of the first NaN or Inf and how many there are; None if there is none, or no float."""
    import numpy as np

    if kind_of(array.dtype) != "float" or array.size == 0:
        return None
    values = as_float64(array)
    bad = ~np.isfinite(values)
    count = int(np.count_nonzero(bad))
    if not count:
        return None
    index = position(int(np.argmax(bad)), array.shape)
    return index, float(values[index]), count


def position(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index, one int per dimension, of the element at ``flat`` in C order."""
    import numpy as np

    return tuple(int(part) for part in np.unravel_index(flat, tuple(shape))) if shape else ()


def shape_text(shape: Iterable[int | str | None] | None) -> str:
    """``[2, batch, ?]``, as messages write a shape."""
    if shape is None:
        return "[any rank]"
    return f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"


def nearest(word: str, known: Iterable[str]) -> str:
    """``, nearest is 'x'`` for the known word most like ``word``; empty if none is like it."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f", nearest is {found[0]!r}" if found else ""


def listed(names: Iterable[str]) -> str:
    """The names quoted and separated by commas; ``none`` if there are none."""
    return ", ".join(repr(name) for name in names) or "none"


def by_name(signature: Iterable[TensorSpec]) -> dict[str, TensorSpec]:
    """The signature's tensors by their names."""
    return {spec.name: spec for spec in signature}


def is_static(dim: int | str | None) -> bool:
    """Whether a declared dimension is fixed."""
    return isinstance(dim, int) and dim >= 0


def shape_fits(shape: Sequence[int], declared: Sequence[int | str | None] | None) -> bool:
    """Whether a tensor's shape agrees with the declared rank and fixed dimensions."""
    if declared is None:
        return True
    return len(shape) == len(declared) and all(
        not is_static(want) or have == want for have, want in zip(shape, declared, strict=True)
    )


def differences(
    role: str,
    arrays: Mapping[str, NDArray[Any]],
    specs: Mapping[str, TensorSpec],
    any_shape: Iterable[str] = (),
) -> list[str]:
    """How names, kinds of dtype and shapes of ``arrays`` differ from a model's declaration, one text each.

    Args:
        role: ``input`` or ``output``, for the texts.
        arrays: what is there.
        specs: what the model declares.
        any_shape: names whose shape is not looked at.
    """
    found = [f"{role} {name!r} is missing{nearest(name, arrays)}" for name in specs if name not in arrays]
    for name, array in arrays.items():
        spec = specs.get(name)
        if spec is None:
            found.append(f"the model has no {role} {name!r}{nearest(name, specs)}")
            continue
        kind, wanted = kind_of(array.dtype), kind_of(spec.dtype)
        if wanted is None:
            found.append(f"{role} {name!r}: dtype {spec.dtype} of the model is not supported")
        elif kind != wanted:
            found.append(f"{role} {name!r}: dtype {array.dtype} does not fit {spec.dtype} of the model")
        if name not in any_shape and not shape_fits(array.shape, spec.shape):
            found.append(
                f"{role} {name!r}: shape {shape_text(array.shape)} does not fit "
                f"{shape_text(spec.shape)} of the model"
            )
    return found


def bullets(texts: Iterable[str]) -> str:
    """The texts as an indented list, a line each, to be put behind a headline."""
    return "".join(f"\n    - {text}" for text in texts)
