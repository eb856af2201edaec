"""Goldens: stored inputs, reference outputs, and where they come from.

The file is an .npz without pickle. Its arrays stand under neutral keys (``c0.i0`` is the first input of the
first case, ``c0.o1`` its second output); the entry ``__gptune__`` is a JSON text, as uint8, that holds
``schema``, the names, dtypes and shapes, and the provenance. Arrays of ml_dtypes are stored as unsigned
integers of their width, since NumPy's format cannot name them. Members are not compressed: what a file can
expand to is what it is.
"""

from __future__ import annotations

import datetime
import io
import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gptune import storage
from pytest_gptune.accuracy.tensors import (
    TensorSpec,
    bullets,
    differences,
    dtype_named,
    first_nonfinite,
    is_extended,
    kind_of,
    listed,
    shape_text,
)
from pytest_gptune.errors import GptuneError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCHEMA = 1
REMAKE = "run pytest <test> --gptune-update-goldens"
# In a provenance's extra: the outputs whose shapes the model contradicted, a JSON list of names.
UNDECLARED_SHAPES = "undeclared_shapes"
_ENTRY = "__gptune__"
_LFS_POINTER = b"version https://git-lfs"


class GoldenError(GptuneError):
    """A golden is missing, damaged, does not fit its model, or cannot be made."""


class _DamagedError(Exception):
    """What is wrong with the bytes of a golden; becomes a GoldenError."""


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True, eq=False)
class Case:
    """One input set with its reference outputs.

    Attributes:
        name: unique within a golden.
        inputs: arrays by name; empty if only outputs are known.
        outputs: arrays by name, at least one.

    Raises:
        GoldenError: there is no output, or a tensor's element type cannot be compared.
    """

    name: str
    inputs: Mapping[str, NDArray[Any]]
    outputs: Mapping[str, NDArray[Any]]

    def __post_init__(self) -> None:
        import numpy as np

        for role in ("input", "output"):
            arrays = {name: np.asarray(value) for name, value in getattr(self, f"{role}s").items()}
            for name, array in arrays.items():
                if kind_of(array.dtype) is None:
                    raise GoldenError(
                        f"{role} {name!r} of case {self.name!r} is {array.dtype}; no golden can hold that",
                        mend="use bool, int, uint or float (float64 at most), or a type of ml_dtypes",
                    )
            object.__setattr__(self, f"{role}s", arrays)
        if not self.outputs:
            raise GoldenError(
                f"case {self.name!r} has no reference output, so that nothing would be compared",
                mend="give each case at least one output",
            )


@dataclass(frozen=True)
class Provenance:
    """Where a golden comes from.

    Attributes:
        model_sha256: digest of the model with its external data; empty if there was none.
        reference: what computed the outputs, as ``onnxruntime CPU, optimisations off``.
        reference_version: its version.
        seed: of the random inputs; None if they were given.
        date: when it was made, ISO 8601 in UTC; now unless given.
        allows_nonfinite: whether NaN and Inf in the reference outputs were asked for.
        extra: further texts worth keeping.

    Raises:
        GoldenError: a field is of another type.
    """

    model_sha256: str
    reference: str
    reference_version: str = ""
    seed: int | None = None
    date: str = field(default_factory=_now)
    allows_nonfinite: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        texts = (self.model_sha256, self.reference, self.reference_version, self.date)
        seed_is_int = self.seed is None or (isinstance(self.seed, int) and not isinstance(self.seed, bool))
        extra_is_text = isinstance(self.extra, Mapping) and all(
            isinstance(part, str) for item in self.extra.items() for part in item
        )
        if not (
            all(isinstance(text, str) for text in texts)
            and seed_is_int
            and isinstance(self.allows_nonfinite, bool)
            and extra_is_text
        ):
            raise GoldenError(
                "a field of the golden's provenance has the wrong type",
                mend="give texts, an int or None as the seed, a bool, and a mapping of texts as extra",
            )
        object.__setattr__(self, "extra", dict(self.extra))

    @property
    def undeclared_shapes(self) -> tuple[str, ...]:
        """Outputs that the model computed in another shape than it declares, as some exporters' models do."""
        try:
            names = json.loads(self.extra.get(UNDECLARED_SHAPES, "[]"))
        except ValueError:
            return ()
        return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


@dataclass(frozen=True, eq=False)
class Golden:
    """The cases that an engine is compared with.

    Attributes:
        cases: at least one, names unique, all with the same outputs.
        provenance: where they come from.

    Raises:
        GoldenError: there is no case, names repeat, cases have different outputs, or a reference output is
            not finite and the provenance does not allow it.
    """

    cases: tuple[Case, ...]
    provenance: Provenance

    def __post_init__(self) -> None:
        object.__setattr__(self, "cases", tuple(self.cases))
        if not self.cases:
            raise GoldenError("the golden has no case, so that nothing would be compared", mend="give it one")
        names = [case.name for case in self.cases]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise GoldenError(
                f"cases of the golden share a name: {listed(repeated)}", mend="name each differently"
            )
        for case in self.cases[1:]:
            if set(case.outputs) != set(self.output_names):
                raise GoldenError(
                    f"case {case.name!r} has the outputs {listed(case.outputs)}, "
                    f"case {names[0]!r} has {listed(self.output_names)}",
                    mend="give every case the same outputs",
                )
        if not self.provenance.allows_nonfinite:
            self._refuse_nonfinite()

    def _refuse_nonfinite(self) -> None:
        for case in self.cases:
            for name, array in case.outputs.items():
                if found := first_nonfinite(array):
                    index, value, count = found
                    text = "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"
                    raise GoldenError(
                        f"reference output {name!r} of case {case.name!r} is {text} at {shape_text(index)} "
                        f"({count} of {array.size} elements not finite)",
                        mend="mend the reference model or its inputs; if NaN and Inf are right here, write "
                        'options={"allow_nonfinite": True} in the gptune marker',
                    )

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs, in the first case's order."""
        return tuple(self.cases[0].outputs)

    def check_signature(
        self, inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec], where: str = ""
    ) -> None:
        """Refuse a model whose tensors this golden does not fit.

        Names, ranks, fixed dimensions and kinds of dtype must agree; widths may differ. An output whose shape
        contradicted the declaration of the very model that made the golden may do so again.

        Args:
            inputs, outputs: what the model declares, by name.
            where: the test, for the message.

        Raises:
            GoldenError: they do not agree; every difference is listed.
        """
        found: dict[str, None] = {}
        for case in self.cases:
            texts = differences("input", case.inputs, inputs)
            texts += differences("output", case.outputs, outputs, self.provenance.undeclared_shapes)
            for text in texts:
                found[f"{text} (case {case.name!r})" if len(self.cases) > 1 else text] = None
        if found:
            raise GoldenError(
                f"the golden does not fit the model{bullets(found)}",
                where=where,
                mend=f"if the model was meant to change, {REMAKE}",
            )


def save_golden(path: Path, golden: Golden) -> None:
    """Write ``golden`` to ``path``, whole or not at all; the same golden always gives the same bytes.

    Raises:
        StorageError: the file cannot be written; an old one is untouched.
    """
    storage.write_atomically(path, golden_to_bytes(golden))


def golden_to_bytes(golden: Golden) -> bytes:
    """The content of the golden's file."""
    import numpy as np

    arrays: dict[str, NDArray[Any]] = {}
    cases: list[dict[str, Any]] = []
    for number, case in enumerate(golden.cases):
        entry: dict[str, Any] = {"name": case.name}
        for role, tensors in (("inputs", case.inputs), ("outputs", case.outputs)):
            entry[role] = [
                {"name": name, "dtype": array.dtype.name, "shape": list(array.shape)}
                for name, array in tensors.items()
            ]
            for position, array in enumerate(tensors.values()):
                arrays[_key(number, role, position)] = _storable(array)
        cases.append(entry)
    provenance = {item.name: getattr(golden.provenance, item.name) for item in fields(Provenance)}
    text = json.dumps({"schema": SCHEMA, "cases": cases, "provenance": provenance}, sort_keys=True)
    buffer = io.BytesIO()
    # np.savez stores members uncompressed and dates them 1980: nothing but the golden decides the bytes.
    members: dict[str, Any] = {_ENTRY: np.frombuffer(text.encode("ascii"), dtype=np.uint8), **arrays}
    np.savez(buffer, **members)
    return buffer.getvalue()


def load_golden(path: Path) -> Golden:
    """Read a golden.

    Raises:
        GoldenError: the file is missing, cannot be read, or is not an undamaged golden of this schema.
    """
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise GoldenError(
            "the golden is missing", where=str(path), mend=f"{REMAKE}, look at it, and commit it"
        ) from None
    except (OSError, ValueError) as error:
        raise GoldenError(
            f"the golden cannot be read: {error}", where=str(path), mend="make it readable"
        ) from None
    return golden_from_bytes(content, where=str(path))


def golden_from_bytes(content: bytes, where: str = "") -> Golden:
    """Read the content of a golden's file.

    Raises:
        GoldenError: it is not an undamaged golden of this schema, whatever the bytes are.
    """
    again = f"{REMAKE} to make it again, or restore it from version control"
    try:
        return _parse(content)
    except GoldenError as error:
        raise GoldenError(f"the golden is not valid: {error.what}", where=where, mend=again) from None
    except _DamagedError as error:
        raise GoldenError(f"the golden {error}", where=where, mend=again) from None
    except Exception as error:  # zipfile, json and NumPy raise a dozen types on bytes that somebody damaged
        raise GoldenError(
            f"the golden is truncated or damaged: {type(error).__name__}: {error}", where=where, mend=again
        ) from error


def _parse(content: bytes) -> Golden:
    if content.startswith(_LFS_POINTER):
        raise _DamagedError("is a Git LFS pointer, whose file was not fetched (git lfs pull)")
    if content.startswith(b"\x93NUMPY"):
        raise _DamagedError("is a single array (.npy), not a file of --gptune-update-goldens")
    if not content.startswith(b"PK"):
        raise _DamagedError("is empty" if not content else "is not an .npz file")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if _ENTRY not in members:
            raise _DamagedError(f"is a zip or .npz of something else: it has no entry {_ENTRY}")
        if (
            any(info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 for info in members.values())
            or sum(info.file_size for info in members.values()) > len(content)
            or len(members) != len(archive.infolist())
        ):
            raise _DamagedError("was packed by another program")
        document = json.loads(_read(archive, members.pop(_ENTRY), "uint8", None).tobytes().decode("utf-8"))
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema != SCHEMA or isinstance(schema, bool):
            raise _DamagedError(f"has schema {schema!r}; this version of pytest-gptune reads schema {SCHEMA}")
        cases = [
            _case(archive, members, number, entry)
            for number, entry in enumerate(_of_type(document, "cases", list))
        ]
        if members:
            raise _DamagedError(f"holds arrays that its entry does not list: {listed(sorted(members))}")
    return Golden(tuple(cases), _provenance(_of_type(document, "provenance", dict)))


def _case(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], number: int, entry: Any) -> Case:
    sides: dict[str, dict[str, NDArray[Any]]] = {"inputs": {}, "outputs": {}}
    for role, arrays in sides.items():
        for position, tensor in enumerate(_of_type(entry, role, list)):
            name, key = _of_type(tensor, "name", str), _key(number, role, position)
            shape = _of_type(tensor, "shape", list)
            if key not in members:
                raise _DamagedError(f"lacks the array {key} of its tensor {name!r}")
            if name in arrays:
                raise _DamagedError(f"lists the tensor {name!r} twice")
            if not all(isinstance(dim, int) and not isinstance(dim, bool) and dim >= 0 for dim in shape):
                raise _DamagedError(f"gives the tensor {name!r} the shape {shape!r}")
            arrays[name] = _read(archive, members.pop(key), _of_type(tensor, "dtype", str), tuple(shape))
    return Case(_of_type(entry, "name", str), sides["inputs"], sides["outputs"])


def _read(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, dtype_name: str, shape: tuple[int, ...] | None
) -> NDArray[Any]:
    """The member's array, which must be of that dtype and shape (None: one dimension of any length)."""
    import numpy as np

    dtype = dtype_named(dtype_name)
    if dtype is None:
        raise _DamagedError(f"names the unknown dtype {dtype_name!r}")
    stored = _stored_dtype(dtype)
    data = archive.read(member)  # to its end, which checks its CRC
    stream = io.BytesIO(data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise _DamagedError("was packed by another program")
    # The header is read alone: NumPy's reader would first allocate whatever size a damaged header claims.
    have_shape, fortran, have = np.lib.format.read_array_header_1_0(stream)
    rest = memoryview(data)[stream.tell() :]
    wanted = shape if shape is not None else (len(rest),)
    if have != stored or fortran or have_shape != wanted or len(rest) != math.prod(wanted) * stored.itemsize:
        raise _DamagedError(
            f"holds {have} {shape_text(have_shape)} in {member.filename}, "
            f"but lists {dtype_name} {shape_text(wanted)}"
        )
    array = np.frombuffer(rest, dtype=stored).astype(stored.newbyteorder("="))
    return array.view(dtype).reshape(wanted)


def _storable(array: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    if is_extended(array.dtype):
        array = np.array(array, order="C").view(f"u{array.dtype.itemsize}")
    return np.asarray(array, dtype=_stored_dtype(array.dtype), order="C")


def _stored_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    import numpy as np

    return np.dtype(f"<u{dtype.itemsize}") if is_extended(dtype) else dtype.newbyteorder("<")


def _key(number: int, role: str, position: int) -> str:
    return f"c{number}.{role[0]}{position}"


def _of_type(document: Any, key: str, kind: type[Any]) -> Any:
    value = document.get(key) if isinstance(document, dict) else None
    if not isinstance(value, kind):
        raise _DamagedError(f"has an entry {_ENTRY} without {key!r}, or with a wrong one")
    return value


def _provenance(document: dict[str, Any]) -> Provenance:
    names = {item.name for item in fields(Provenance)}
    if set(document) != names:
        raise _DamagedError(f"has a provenance with other fields: {listed(sorted(names ^ set(document)))}")
    return Provenance(**document)
