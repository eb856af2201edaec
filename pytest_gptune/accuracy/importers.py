"""Tensors from files: plain .npz, and the ``test_data_set_N`` folders of ONNX models."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gptune.accuracy.tensors import listed
from pytest_gptune.errors import GptuneError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Tensors = dict[str, NDArray[Any]]

FIRST_CASE = "case0"
_PB_NAME = re.compile(r"(?:(?P<prefix>.+)_)?(?P<role>input|output)_(?P<number>\d+)\.pb")
_LFS_POINTER = b"version https://git-lfs"
_ACCEPTED = (
    "an .npz whose keys are tensor names, or a folder of input_0.pb, output_0.pb or of test_data_set_*"
)


class InputsError(GptuneError):
    """Inputs cannot be made, read, or given to the model."""


def read_npz(
    path: Path, names: Sequence[str], where: str = "", *, error: type[GptuneError] = InputsError
) -> list[tuple[str, Tensors]]:
    """The cases of a plain .npz, which is never unpickled.

    A key is a tensor's name, or ``case/name``. Names of tensors may hold slashes themselves, so a key is
    first looked up whole, then by its longest ending that is a known name.

    Args:
        path: the file.
        names: the known tensor names.
        where: the test, for messages.
        error: the class of what is raised.

    Returns:
        Name and tensors of each case, in the file's order; a single case without a name is ``case0``.

    Raises:
        InputsError: (or ``error``) the file is missing, damaged, holds pickled objects, or a key names no
            tensor.
    """
    import numpy as np

    place = joined(where, str(path))
    arrays: dict[str, NDArray[Any]] = {}
    try:
        # From memory: NumPy leaves a file open whose zip directory it cannot read.
        content = path.read_bytes()
        if content.startswith(_LFS_POINTER):
            raise error("it is a Git LFS pointer, not an .npz file", where=place, mend="run: git lfs pull")
        if content.startswith(b"\x93NUMPY"):
            raise error("it is a single array (.npy), not an .npz", where=place, mend=f"give {_ACCEPTED}")
        # NumPy takes whatever else there is for a pickle, and advises to load it.
        if not content.startswith(b"PK"):
            what = "it is not an .npz file" if content else "the .npz file is empty"
            raise error(what, where=place, mend=f"give {_ACCEPTED}")
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            for key in archive.files:
                array = archive[key]
                if not isinstance(array, np.ndarray):  # NumPy gives bytes for a member that is no .npy
                    raise ValueError(f"its member {key!r} is not an array")
                arrays[key] = array
    except FileNotFoundError:
        raise error("the .npz file is missing", where=place, mend=f"give {_ACCEPTED}") from None
    except GptuneError:
        raise
    except (
        Exception
    ) as fault:  # zipfile and NumPy raise a dozen types on damaged bytes, ValueError on pickles
        mend = f"give {_ACCEPTED}"
        if "allow_pickle" in str(fault) or "pickle" in str(fault):
            mend = "save numeric arrays with numpy.savez; pickled objects are never loaded: that runs code"
        raise error(f"the .npz cannot be read: {fault}", where=place, mend=mend) from fault
    cases: dict[str, Tensors] = {}
    unknown = []
    for key, array in arrays.items():
        case, name = _split_key(key, names)
        if name is None:
            unknown.append(key)
        else:
            cases.setdefault(case, {})[name] = array
    if unknown or not cases:
        raise error(
            f"keys of the .npz name no tensor: {listed(unknown)}" if unknown else "the .npz is empty",
            where=place,
            mend=f"name each array as its tensor, one of {listed(names)}; with several cases, case/tensor",
        )
    if "" in cases and len(cases) > 1:
        raise error(
            "some keys of the .npz are of a case, some of none",
            where=place,
            mend="write every key as case/tensor, or none",
        )
    return [(case or FIRST_CASE, tensors) for case, tensors in cases.items()]


def read_npz_inputs(path: Path, names: Sequence[str], where: str = "") -> list[tuple[str, Tensors]]:
    """The input sets of a plain .npz: see ``read_npz``.

    Raises:
        InputsError: the file is missing, damaged, holds pickled objects, or a key names no input.
    """
    return read_npz(path, names, where)


def read_test_data_set(
    folder: Path,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    where: str = "",
    *,
    error: type[GptuneError] = InputsError,
) -> list[tuple[str, Tensors, Tensors]]:
    """Cases of ONNX test data: ``input_0.pb``, ``output_0.pb`` and so on, a serialised TensorProto each.

    The names within the files are taken if all of them are names of the model; else the number in a file's
    name is the position in ``inputs`` or ``outputs``. Without those, the names within the files, or the
    files' own, are taken. Outputs alone are accepted, as onnx's ``light`` models have them; so are file names
    with a common prefix, which is the case's name then.

    Args:
        folder: a data set, or the folder that holds ``test_data_set_*``.
        inputs, outputs: the model's names, in its order; empty if unknown.
        where: the test, for messages.
        error: the class of what is raised.

    Returns:
        Name, inputs and outputs of each case, cases in the order of their numbers.

    Raises:
        InputsError: (or ``error``) there is no data set, a file is damaged or holds something else than a
            dense tensor within the file, or the model has no tensor of that name or number.
    """
    if not folder.is_dir():
        raise error("there is no such folder", where=joined(where, str(folder)), mend=f"give {_ACCEPTED}")
    found: dict[str, dict[str, dict[int, Path]]] = {}
    sets = [path for path in folder.glob("test_data_set_*") if path.is_dir()]
    for part in sorted(sets, key=_natural) or [folder]:
        for path in sorted(part.iterdir(), key=_natural):
            if match := _PB_NAME.fullmatch(path.name):
                case = "/".join(
                    ([part.name] if sets else []) + ([match["prefix"]] if match["prefix"] else [])
                )
                sides = found.setdefault(case or part.resolve().name, {"input": {}, "output": {}})
                sides[match["role"]][int(match["number"])] = path
    if not found:
        raise error(
            "the folder holds no input_0.pb or output_0.pb",
            where=joined(where, str(folder)),
            mend=f"give {_ACCEPTED}",
        )
    return [
        (
            case,
            _read_side(sides["input"], inputs, "input", where, error),
            _read_side(sides["output"], outputs, "output", where, error),
        )
        for case, sides in found.items()
    ]


def _read_side(
    paths: Mapping[int, Path], known: Sequence[str], role: str, where: str, error: type[GptuneError]
) -> Tensors:
    read = {number: _read_tensor(path, where, error) for number, path in paths.items()}
    own = [name for name, _ in read.values()]
    distinct = len(set(own)) == len(own) and all(own)
    if distinct and (not known or set(own) <= set(known)):
        return dict(read.values())
    if not known:
        return {f"{role}_{number}": array for number, (_, array) in read.items()}
    if beyond := [paths[number].name for number in read if number >= len(known)]:
        raise error(
            f"the model has {len(known)} {role}s, so that {listed(beyond)} belong to none",
            where=joined(where, str(next(iter(paths.values())).parent)),
            mend=f"number the files from 0 in the order of {listed(known)}, or name the tensors in them so",
        )
    return {known[number]: array for number, (_, array) in read.items()}


def _read_tensor(path: Path, where: str, error: type[GptuneError]) -> tuple[str, NDArray[Any]]:
    import onnx
    import onnx.numpy_helper

    place = joined(where, str(path))
    try:
        content = path.read_bytes()
    except OSError as fault:
        raise error(
            f"cannot be read: {fault.strerror or fault}", where=place, mend="make it readable"
        ) from None
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(content)
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise error(
                "the tensor's data stands in another file, which is not followed",
                where=place,
                mend="save the tensor with its data inside: onnx.numpy_helper.from_array(array)",
            )
        if tensor.data_type == onnx.TensorProto.STRING:
            raise error(
                "the tensor holds strings, which are not supported", where=place, mend="gate numeric tensors"
            )
        # A file cut between two fields parses, as does an empty one; the count of elements tells.
        if tensor.data_type == onnx.TensorProto.UNDEFINED or tensor.HasField("segment"):
            raise ValueError("it has no element type" if content else "it is empty")
        array = onnx.numpy_helper.to_array(tensor)
    except GptuneError:
        raise
    except Exception as fault:  # protobuf, onnx and NumPy each have their own types for damaged bytes
        if _is_sequence(content):
            raise error(
                "it holds a sequence or an optional, which is not supported",
                where=place,
                mend="test a model whose inputs and outputs are tensors",
            ) from None
        raise error(
            f"it is not a whole TensorProto: {fault}",
            where=place,
            mend="copy the file again; it must be a serialised onnx.TensorProto",
        ) from fault
    return tensor.name, array


def _is_sequence(content: bytes) -> bool:
    """Whether bytes that are no tensor are a SequenceProto or an OptionalProto."""
    import onnx

    for proto in (onnx.SequenceProto(), onnx.OptionalProto()):
        try:
            proto.ParseFromString(content)
        except Exception:  # what protobuf raises depends on its implementation
            continue
        known_type = 0 < proto.elem_type <= max(type(proto).DataType.values())
        if known_type and len(proto.SerializeToString()) == len(content):
            return True
    return False


def _split_key(key: str, names: Iterable[str]) -> tuple[str, str | None]:
    """Case and tensor of a key; no case is ``""``, no tensor None."""
    known = set(names)
    if key in known:
        return "", key
    cut = key.find("/", 1)
    while cut > 0:
        if key[cut + 1 :] in known:
            return key[:cut], key[cut + 1 :]
        cut = key.find("/", cut + 1)
    # A tensor named "/x" in case "a" is written "a//x" or, as a path would be, "a/x".
    case, _, rest = key.partition("/")
    return (case, f"/{rest}") if case and f"/{rest}" in known else ("", None)


def _natural(path: Path) -> list[tuple[int, str]]:
    """A key under which ``input_10`` comes after ``input_9``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def joined(where: str, path: str) -> str:
    """Both places of a message; ``where`` may be empty."""
    return f"{where}, {path}" if where else path
