"""Reference outputs that no model gives: from files, a mapping, or a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gptune.accuracy.goldens import GoldenError
from pytest_gptune.accuracy.importers import FIRST_CASE, joined, read_npz, read_test_data_set
from pytest_gptune.accuracy.tensors import bullets, kind_of, listed, nearest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Tensors = dict[str, NDArray[Any]]


def reference_outputs_from(
    source: Any,
    cases: Sequence[tuple[str, Mapping[str, NDArray[Any]]]],
    output_names: Sequence[str],
    where: str = "",
) -> list[Tensors]:
    """The reference outputs of each case, where the reference is not a model.

    Args:
        source: an .npz whose keys are output names, or ``case/name``; a folder of ONNX test data; a mapping
            of name to array, for one case; or a function that is given a case's inputs and gives a mapping of
            its outputs.
        cases: name and inputs of each case.
        output_names: the model's outputs; all of them, and no other, must be there.
        where: the test, for messages.

    Returns:
        Outputs by name for each case, in the order of ``cases`` and of ``output_names``.

    Raises:
        GoldenError: the source cannot be read or failed, its cases are others, or its outputs are named
            otherwise.
    """
    if isinstance(source, Mapping):
        found: list[tuple[str, Any]] = [(FIRST_CASE, source)]
    elif isinstance(source, (str, Path)):
        path = Path(source)
        if path.is_dir():
            read = read_test_data_set(path, (), output_names, where, error=GoldenError)
            found = [(name, outputs) for name, _, outputs in read]
        else:
            found = list(read_npz(path, output_names, where, error=GoldenError))
    elif callable(source):
        found = [(name, _called(source, inputs, name, where)) for name, inputs in cases]
    else:
        raise GoldenError(
            f"a {type(source).__name__} cannot be the reference",
            where=where,
            mend="give a model, an .npz, a folder of ONNX test data, a mapping, or a function of the inputs",
        )
    matched = _matched(found, [name for name, _ in cases], where)
    return [
        _named_outputs(outputs, output_names, joined(where, f"case {name!r}"))
        for (name, _), outputs in zip(cases, matched, strict=True)
    ]


def _matched(found: Sequence[tuple[str, Any]], names: Sequence[str], where: str) -> list[Any]:
    """The outputs in the order of the cases: by name if the names agree, else by position if there are as
    many."""
    known = dict(found)
    if set(known) == set(names):
        return [known[name] for name in names]
    # Names that agree in part are of other cases; taking those by position would compare what does not
    # belong.
    if len(found) == len(names) and not set(known) & set(names):
        return [outputs for _, outputs in found]
    raise GoldenError(
        f"the reference has the cases {listed(known)}, the inputs have {listed(names)}",
        where=where,
        mend="give a reference for each case, under the case's name",
    )


def _named_outputs(outputs: Any, names: Sequence[str], where: str) -> Tensors:
    import numpy as np

    if not isinstance(outputs, Mapping):
        raise GoldenError(
            f"the reference gave a {type(outputs).__name__}, not a mapping of output name to array",
            where=where,
            mend=f"return a dict with the keys {listed(names)}",
        )
    texts = [f"output {name!r} is missing{nearest(name, outputs)}" for name in names if name not in outputs]
    texts += [
        f"the model has no output {name!r}{nearest(str(name), names)}"
        for name in outputs
        if name not in names
    ]
    arrays: Tensors = {}
    for name in names:
        if name in outputs:
            try:
                arrays[name] = np.asarray(outputs[name])
            except Exception as error:  # a user's function may give anything
                texts.append(f"output {name!r} is not a tensor: {error}")
    texts += [
        f"output {name!r} has dtype {array.dtype}, which cannot be compared"
        for name, array in arrays.items()
        if kind_of(array.dtype) is None
    ]
    if texts:
        raise GoldenError(
            f"the reference outputs do not fit the model{bullets(texts)}",
            where=where,
            mend=f"give numeric arrays named {listed(names)}",
        )
    return arrays


def _called(function: Callable[..., Any], inputs: Mapping[str, NDArray[Any]], case: str, where: str) -> Any:
    try:
        return function({name: array.copy() for name, array in inputs.items()})
    except Exception as error:  # whatever a user's code raises is reported as that code's
        raise GoldenError(
            f"the reference function raised {type(error).__name__}: {error}",
            where=joined(where, f"case {case!r}"),
            mend="mend the function; it is called with a dict of the inputs",
        ) from error
