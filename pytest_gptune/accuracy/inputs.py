"""The inputs of each case, from whatever a user gave."""

from __future__ import annotations

import hashlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gptune.accuracy.importers import (
    FIRST_CASE,
    InputsError,
    joined,
    read_npz_inputs,
    read_test_data_set,
)
from pytest_gptune.accuracy.tensors import (
    TensorSpec,
    as_float64,
    bullets,
    by_name,
    differences,
    dtype_named,
    is_extended,
    is_static,
    kind_of,
    nearest,
    shape_fits,
    shape_text,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Tensors = dict[str, NDArray[Any]]

_MAX_CASES = 1000
# Small enough for an index into any table of a real model, large enough that elements differ.
_RANDOM_INTEGERS = 10
_ACCEPTED_INPUTS = (
    "nothing (random), a mapping of arrays, an .npz, a folder of ONNX test data, "
    "a function that gives one or several mappings, or a list of these"
)


def random_inputs(
    signature: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]], seed: int, *, where: str = ""
) -> Tensors:
    """Random inputs for a model: floats standard normal, integers uniform in [0, 10), bools even.

    Each input depends on the seed and its own name alone, so that a further input changes no other.

    Args:
        signature: the model's inputs.
        shapes: a shape for each input that has a dynamic dimension; others may be named too.
        seed: >= 0.
        where: the test, for messages.

    Returns:
        Arrays by name, of the declared dtype.

    Raises:
        InputsError: a dynamic dimension has no value, a shape is not one, names no input or contradicts the
            model, an element type is unsupported, or an array does not fit into memory; all are listed.
    """
    import numpy as np

    _check_seed(seed, where)
    given = _checked_shapes(signature, shapes, where)
    made: Tensors = {}
    for spec in signature:
        shape = given[spec.name]
        digest = hashlib.sha256(spec.name.encode("utf-8", "surrogatepass")).digest()
        rng = np.random.default_rng([seed, int.from_bytes(digest[:8], "little")])
        try:
            made[spec.name] = _random_array(rng, spec.dtype, shape)
        except (MemoryError, ValueError) as error:
            raise InputsError(
                f"input {spec.name!r} of shape {shape_text(shape)} cannot be made: {error}",
                where=where,
                mend="give smaller dimensions in shapes={...}",
            ) from None
    return made


def normalise_inputs(
    source: Any,
    signature: Sequence[TensorSpec],
    shapes_list: Sequence[Mapping[str, Sequence[int]]] = (),
    seed: int = 0,
    where: str = "",
) -> tuple[tuple[str, Tensors], ...]:
    """The cases that a user's ``inputs`` stands for, each checked against the model and cast to its dtypes.

    Args:
        source: None for random inputs; a mapping of name to array; the path of an .npz or of ONNX test data;
            a function, called without an argument, or with a seeded ``numpy.random.Generator`` if it needs
            one, that gives a mapping or an iterable of mappings; or a list of any of these.
        signature: the model's inputs.
        shapes_list: the shapes of random cases, one case each; none is one case of the model's fixed shapes.
        seed: of everything random, >= 0.
        where: the test, for messages.

    Returns:
        Name and inputs of each case; names are unique. Widths are those of the model: see ``fit_inputs``.

    Raises:
        InputsError: there is no case, a source cannot be used or failed, or inputs do not fit the model.
    """
    _check_seed(seed, where)
    cases: list[tuple[str, Tensors]] = []
    taken: set[str] = set()
    for name, tensors in _expand(source, signature, list(shapes_list), seed, where):
        if len(cases) == _MAX_CASES:
            raise InputsError(
                f"the inputs have more than {_MAX_CASES} cases", where=where, mend="end the generator earlier"
            )
        wanted = f"case{len(cases)}" if name == FIRST_CASE and name in taken else name
        unique = next(text for text in _variants(wanted) if text not in taken)
        taken.add(unique)
        cases.append((unique, fit_inputs(tensors, signature, where=joined(where, f"case {unique!r}"))))
    if not cases:
        raise InputsError("the inputs have no case", where=where, mend=f"give {_ACCEPTED_INPUTS}")
    return tuple(cases)


def fit_inputs(inputs: Mapping[str, Any], signature: Sequence[TensorSpec], where: str = "") -> Tensors:
    """``inputs`` checked against the model, in its order and its dtypes.

    A width is changed within a kind only: float64 becomes float32 or bfloat16 (rounded, which is what a model
    of that width is given), int64 becomes int32 if every value fits. A float is never made an integer, nor
    the other way. An array that ``numpy.savez`` stripped of its type of ml_dtypes is given it back if the
    width agrees.

    Raises:
        InputsError: names, kinds or shapes do not fit, or a value does not fit the narrower type; all are
            listed.
    """
    import numpy as np

    specs = by_name(signature)
    arrays: Tensors = {}
    found: list[str] = []
    broken: set[str] = set()
    for name, value in inputs.items():
        try:
            array = np.asarray(value)
        except Exception as error:  # anything may be given as a tensor, with any __array__
            found.append(f"input {name!r} is not a tensor: {error}")
            broken.add(name)
            continue
        arrays[name] = _retyped(array, specs[name].dtype) if name in specs else array
    found += differences("input", arrays, {name: spec for name, spec in specs.items() if name not in broken})
    fitted: Tensors = {}
    if not found:
        for name, spec in specs.items():
            text, fitted[name] = _cast(name, arrays[name], spec.dtype)
            found += [text] if text else []
    if found:
        raise InputsError(
            f"the inputs do not fit the model{bullets(found)}",
            where=where,
            mend=_mend(signature),
        )
    return fitted


def _expand(
    source: Any,
    signature: Sequence[TensorSpec],
    shapes_list: list[Mapping[str, Sequence[int]]],
    seed: int,
    where: str,
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if source is None:
        for index, shapes in enumerate(shapes_list or [{}]):
            name = FIRST_CASE if len(shapes_list) < 2 else _shapes_name(shapes)
            yield name, random_inputs(signature, shapes, seed + index, where=where)
    elif isinstance(source, Mapping):
        yield FIRST_CASE, source
    elif isinstance(source, (str, Path)):
        names = [spec.name for spec in signature]
        path = Path(source)
        if path.is_dir():
            yield from ((name, inputs) for name, inputs, _ in read_test_data_set(path, names, (), where))
        else:
            yield from read_npz_inputs(path, names, where)
    elif isinstance(source, (list, tuple)):
        for part in source:
            yield from _expand(part, signature, shapes_list, seed, where)
    elif callable(source):
        for inputs in _produced(source, seed, where):
            yield FIRST_CASE, inputs
    else:
        raise InputsError(
            f"a {type(source).__name__} cannot be the inputs", where=where, mend=f"give {_ACCEPTED_INPUTS}"
        )


def _produced(function: Callable[..., Any], seed: int, where: str) -> Iterator[Mapping[str, Any]]:
    """What a user's function gives, a generator's body included."""
    import numpy as np

    place = joined(where, f"inputs function {getattr(function, '__name__', repr(function))}")
    needed = _required_arguments(function)
    if needed > 1:
        raise InputsError(
            f"the function needs {needed} arguments",
            where=place,
            mend="write it without an argument, or with one: a seeded numpy.random.Generator",
        )
    arguments = [np.random.default_rng(seed)] if needed else []
    try:
        result = function(*arguments)
        if isinstance(result, Mapping):
            parts: list[Any] = [result]
        elif isinstance(result, Iterable) and not isinstance(result, (str, bytes)):
            parts = list(itertools.islice(result, _MAX_CASES + 1))
        else:
            parts = [result]
    except Exception as error:  # whatever a user's code raises is reported as that code's
        raise InputsError(
            f"the inputs function raised {type(error).__name__}: {error}",
            where=place,
            mend="mend the function",
        ) from error
    for part in parts:
        if not isinstance(part, Mapping):
            raise InputsError(
                f"the inputs function gave a {type(part).__name__}, not a mapping of input name to array",
                where=place,
                mend="return a dict, or yield one dict per case",
            )
        yield part


def _required_arguments(function: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions of extension modules tell nothing
        return 0
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(item.kind in positional and item.default is item.empty for item in parameters)


def _checked_shapes(
    signature: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]], where: str
) -> dict[str, tuple[int, ...]]:
    """A shape for every input; every mistake in ``shapes`` is told at once."""
    specs = by_name(signature)
    found = [f"there is no input {name!r}{nearest(name, specs)}" for name in shapes if name not in specs]
    result: dict[str, tuple[int, ...]] = {}
    example: dict[str, tuple[int, ...]] = {}
    for name, spec in specs.items():
        if dtype_named(spec.dtype) is None:
            found.append(f"input {name!r}: dtype {spec.dtype} is not supported")
        declared = spec.shape
        if name in shapes:
            shape = _as_shape(shapes[name])
            if shape is None:
                found.append(f"input {name!r}: {shapes[name]!r} is not a shape")
            elif not shape_fits(shape, declared):
                found.append(f"input {name!r}: shape {shape_text(shape)} does not fit {shape_text(declared)}")
            else:
                result[name] = shape
        elif declared is None:
            found.append(f"input {name!r} has a shape of unknown rank")
            example[name] = (1,)
        else:
            open_dims = [(axis, dim) for axis, dim in enumerate(declared) if not is_static(dim)]
            for axis, dim in open_dims:
                label = f" ({dim!r})" if isinstance(dim, str) else ""
                found.append(f"input {name!r}: dimension {axis}{label} of {shape_text(declared)} is dynamic")
            fixed = tuple(dim if isinstance(dim, int) and dim >= 0 else 1 for dim in declared)
            result[name] = fixed
            if open_dims:
                example[name] = fixed
    if found:
        if example:
            mend = f"write shapes={example!r} in the gptune marker, with the dimensions you want"
            if any(specs[name].shape is None for name in example):
                mend += " and as many of them, or give inputs="
        else:
            texts = ", ".join(_spec_text(spec) for spec in signature) or "no input"
            mend = f"write shapes={{...}} in the gptune marker that fit {texts}"
        raise InputsError(f"random inputs cannot be made{bullets(found)}", where=where, mend=mend)
    return result


def _as_shape(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        return None
    dims = tuple(value)
    if not all(hasattr(dim, "__index__") and not isinstance(dim, bool) and dim >= 0 for dim in dims):
        return None
    return tuple(int(dim) for dim in dims)


def _random_array(rng: np.random.Generator, dtype_name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    import numpy as np

    dtype, kind = dtype_named(dtype_name), kind_of(dtype_name)
    if kind == "bool":
        return rng.integers(0, 2, size=shape).astype(np.bool_)
    if kind == "float":
        values = rng.standard_normal(shape)
        if dtype_name == "float8_e8m0fnu":  # holds powers of two only, neither 0 nor a negative number
            values = np.abs(values) + 1e-3
        return np.asarray(values, dtype=np.float64).astype(dtype)
    _, high = _integer_limits(dtype_name)
    return rng.integers(0, min(_RANDOM_INTEGERS - 1, high), size=shape, endpoint=True).astype(dtype)


def _integer_limits(dtype_name: str) -> tuple[int, int]:
    # Reads the width from the name, since iinfo of ml_dtypes and of NumPy are two functions.
    bits = int(dtype_name.removeprefix("u").removeprefix("int"))
    return (0, 2**bits - 1) if dtype_name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _cast(name: str, array: NDArray[Any], dtype_name: str) -> tuple[str, NDArray[Any]]:
    """What is lost in the cast, empty if nothing is, and the array in that dtype, native and contiguous."""
    import numpy as np

    dtype = dtype_named(dtype_name)
    with np.errstate(all="ignore"):
        cast = np.array(array, order="C").astype(dtype)
    kind = kind_of(dtype_name)
    if kind in ("int", "uint") and array.size:
        low, high = _integer_limits(dtype_name)
        wide = array.astype(np.int64 if kind == "int" else np.uint64)
        least, most = int(wide.min()), int(wide.max())
        if least < low or most > high:
            return f"input {name!r}: values {least} to {most} do not fit {dtype_name} ({low} to {high})", cast
    elif kind == "float" and array.dtype != dtype:
        before, after = as_float64(array), as_float64(cast)
        lost = np.isfinite(before) & ~np.isfinite(after)
        if lost.any():
            extreme = float(np.abs(before[lost]).max()) if before.ndim else float(before)
            return f"input {name!r}: a value of size {extreme:.3g} does not fit {dtype_name}", cast
    return "", cast


def _retyped(array: NDArray[Any], dtype_name: str) -> NDArray[Any]:
    dtype = dtype_named(dtype_name)
    stripped = kind_of(array.dtype) is None and array.dtype.kind == "V" and array.dtype.names is None
    if dtype is not None and stripped and is_extended(dtype) and array.dtype.itemsize == dtype.itemsize:
        return array.view(dtype)
    return array


def _shapes_name(shapes: Mapping[str, Sequence[int]]) -> str:
    parts = [f"{name}={'x'.join(str(dim) for dim in shape)}" for name, shape in shapes.items()]
    return ",".join(parts) or FIRST_CASE


def _variants(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}#{number}" for number in itertools.count(2))


def _mend(signature: Sequence[TensorSpec]) -> str:
    """What to give; of types that no golden can hold nothing can be given."""
    unheld = [spec for spec in signature if dtype_named(spec.dtype) is None]
    if unheld:
        return f"tune a part of the model without {', '.join(_spec_text(spec) for spec in unheld)}"
    return f"give arrays for {', '.join(_spec_text(spec) for spec in signature) or 'no input'}"


def _spec_text(spec: TensorSpec) -> str:
    return f"{spec.name!r} {spec.dtype}{shape_text(spec.shape)}"


def _check_seed(seed: int, where: str) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputsError(f"seed is {seed!r}", where=where, mend="write an int >= 0")
