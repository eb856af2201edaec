"""What can be read from an ONNX file without building it: signature, operators, digest."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from pytest_gptune.engines.base import ModelInfo, TensorInfo
from pytest_gptune.errors import ModelError

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def inspect_model(path: Path) -> ModelInfo:
    """Signature, operators and digest of the model at ``path``.

    Raises:
        ModelError: it is missing, not an ONNX model, truncated, an LFS pointer, or its external data is
            missing or lies outside the model's folder.
    """
    if not path.exists():
        raise ModelError(
            f"model {path.name} does not exist",
            where=str(path),
            mend="correct model= in the marker: a path beside the test file or in the root folder",
        )
    if path.is_dir():
        raise ModelError(f"model {path.name} is a folder", where=str(path), mend="name the .onnx file in it")
    content = _read(path)
    model = parse_model(content, str(path))
    data_files = external_data_files(model, str(path))
    return ModelInfo(
        path=str(path),
        sha256=model_digest(content, [(name, _data_path(path, name)) for name in data_files]),
        inputs=_signature(model.graph.input, {item.name for item in model.graph.initializer}),
        outputs=_signature(model.graph.output, set()),
        operators=frozenset(_operators(model)),
        data_files=tuple(data_files),
    )


def parse_model(content: bytes, where: str) -> Any:
    """``content`` as an ``onnx.ModelProto``; external data is not read.

    Raises:
        ModelError: it is not a model.
    """
    import onnx

    mend = "export the model again, or correct model= in the marker"
    if content.startswith(_LFS_POINTER):
        raise ModelError("the model is a Git LFS pointer, not a model", where=where, mend="run: git lfs pull")
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's errors have no common base across its implementations
        raise ModelError(
            f"not an ONNX model, or a truncated one ({type(error).__name__})", where=where, mend=mend
        ) from None
    if not model.graph.node and not model.graph.output:
        raise ModelError("not an ONNX model: it has no graph", where=where, mend=mend)
    return model


def external_data_files(model: Any, where: str) -> list[str]:
    """Locations of the model's external data, relative to its folder, sorted.

    Raises:
        ModelError: a location leaves the model's folder. Loading it would read any file of the machine.
    """
    names: dict[str, str] = {}
    for tensor in _tensors(model):
        for entry in tensor.external_data:
            if entry.key == "location":
                names[entry.value] = tensor.name
    for name, tensor_name in names.items():
        path = PureWindowsPath(name)
        # Windows has paths that are neither absolute nor below the model's folder: "C:x" and "\\x".
        leaves = PurePosixPath(name).is_absolute() or path.drive or path.root or ".." in path.parts
        if leaves or not path.parts:
            raise ModelError(
                f"external data '{name}' of tensor '{tensor_name}' lies outside the model's folder",
                where=where,
                mend="save the model with its data beside it",
            )
    return sorted(names)


def model_digest(content: bytes, data_files: list[tuple[str, Path]]) -> str:
    """SHA-256 of a model, hexadecimal.

    Without external data it is the digest of the file, as ``sha256sum`` prints it; with external data, the
    digest of the list of names and digests of all files.
    """
    digest = hashlib.sha256(content).hexdigest()
    if not data_files:
        return digest
    listing = [digest]
    for name, path in data_files:
        with path.open("rb") as stream:
            sha = hashlib.sha256()
            while block := stream.read(1 << 20):
                sha.update(block)
        listing.append(f"{sha.hexdigest()}  {name}")
    return hashlib.sha256("\n".join(listing).encode()).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(
            f"cannot read model {path.name}: {error.strerror or error}",
            where=str(path),
            mend="make the file readable",
        ) from None


def _data_path(model: Path, name: str) -> Path:
    path = model.parent / name
    # A link may leave the folder although the name does not.
    if not path.resolve().is_relative_to(model.parent.resolve()):
        raise ModelError(
            f"external data '{name}' is a link out of the model's folder",
            where=str(model),
            mend="put the data file itself beside the model",
        )
    if not path.is_file():
        raise ModelError(
            f"external data file '{name}' of the model is missing",
            where=str(model),
            mend=f"put {name} beside {model.name} (with Git LFS: git lfs pull)",
        )
    with path.open("rb") as stream:
        if stream.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise ModelError(
                f"external data file '{name}' is a Git LFS pointer, not data",
                where=str(model),
                mend="run: git lfs pull",
            )
    return path


def _graphs(nodes: Any) -> Any:
    """All graphs inside these nodes: bodies of If, Loop and Scan, at any depth."""
    for node in nodes:
        for attribute in node.attribute:
            single = [attribute.g] if attribute.HasField("g") else []
            for inner in (*single, *attribute.graphs):
                yield inner
                yield from _graphs(inner.node)


def _bodies(model: Any) -> Any:
    """Everything of the model that has nodes: its graph, its functions, and the graphs inside of them."""
    for body in (model.graph, *model.functions):
        yield body
        yield from _graphs(body.node)


def _tensors(model: Any) -> Any:
    for body in _bodies(model):
        yield from getattr(body, "initializer", ())
        for sparse in getattr(body, "sparse_initializer", ()):
            yield from (sparse.values, sparse.indices)
        for node in body.node:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors)
                for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                    yield from (sparse.values, sparse.indices)


def _operators(model: Any) -> set[str]:
    return {node.op_type for body in _bodies(model) for node in body.node}


def _signature(values: Any, initialised: set[str]) -> tuple[TensorInfo, ...]:
    # Before IR 4 every initializer is listed as an input as well.
    return tuple(_tensor_info(value) for value in values if value.name not in initialised)


def _tensor_info(value: Any) -> TensorInfo:
    import onnx

    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return TensorInfo(value.name, str(kind or "unknown").removesuffix("_type"), ())
    tensor = value.type.tensor_type
    try:
        element = onnx.TensorProto.DataType.Name(tensor.elem_type)
    except ValueError:  # of a later ONNX, or a damaged file: what builds the model will say
        element = f"type {tensor.elem_type}"
    return TensorInfo(value.name, dtype_name(element), _declared_shape(tensor))


def _declared_shape(tensor: Any) -> tuple[int | str | None, ...] | None:
    # Without the field the rank is unknown; with an empty one the tensor is a scalar.
    if not tensor.HasField("shape"):
        return None
    dims: list[int | str | None] = []
    for dim in tensor.shape.dim:
        which = dim.WhichOneof("value")
        dims.append(dim.dim_value if which == "dim_value" else (dim.dim_param or None))
    return tuple(dims)


def dtype_name(onnx_name: str) -> str:
    """NumPy's or ml_dtypes' name of an ONNX element type, as ``float8_e4m3fn`` for ``FLOAT8E4M3FN``."""
    name = onnx_name.lower()
    known = {"float": "float32", "double": "float64", "float8e4m3fn": "float8_e4m3fn"}
    known |= {"float8e4m3fnuz": "float8_e4m3fnuz", "float8e5m2": "float8_e5m2", "string": "str"}
    known |= {"float8e5m2fnuz": "float8_e5m2fnuz", "float4e2m1": "float4_e2m1fn"}
    known |= {"float8e8m0": "float8_e8m0fnu"}
    return known.get(name, name)
