"""Model files: what is read from them, and one clear error for each thing that is wrong with one."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from pytest_gptune.engines.base import BuildRejectedError, BuildRequest, TensorInfo
from pytest_gptune.engines.onnx_model import dtype_name, inspect_model
from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend
from pytest_gptune.engines.onnxruntime.session import SessionEngine
from pytest_gptune.errors import GptuneError, ModelError

Build = Callable[..., SessionEngine]
FLOAT = TensorProto.FLOAT
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"


def model_error(path: Path) -> ModelError:
    """The one error that ``inspect_model`` raises, with all of its three parts."""
    with pytest.raises(ModelError) as caught:
        inspect_model(path)
    return checked(caught.value, path)


def checked(error: ModelError, path: Path) -> ModelError:
    assert type(error) is ModelError
    assert error.what
    assert "\n" not in error.what
    assert error.where == str(path)
    assert error.mend
    return error


def located(path: Path, location: str, name: str = "k") -> Path:
    """A model whose weight lies in the file ``location``."""
    tensor = TensorProto(name=name, data_type=FLOAT, dims=[2, 3], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return models.write(_adding([tensor]), path)


def _adding(weights: list[TensorProto]) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "k"], ["y"])],
        "graph",
        [info("x", FLOAT, [2, 3])],
        [info("y", FLOAT, [2, 3])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


# What is read.


def test_signature_operators_and_digest(tmp_path: Path) -> None:
    path = models.conv(tmp_path / "m.onnx")
    info = inspect_model(path)
    assert info.path == str(path)
    assert info.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert info.inputs == (TensorInfo("image", "float32", (1, 3, 8, 8)),)
    assert info.outputs == (TensorInfo("logits", "float32", (1, 5)),)
    assert {"Conv", "BatchNormalization", "Gemm"} <= info.operators
    assert info.data_files == ()


@pytest.mark.parametrize("name", models.TYPES)
def test_every_type_is_named(tmp_path: Path, name: str) -> None:
    info = inspect_model(models.identity(tmp_path / "m.onnx", name, (2, "n")))
    assert info.inputs == (TensorInfo("x", name, (2, "n")),)


def test_names_of_other_types() -> None:
    assert dtype_name("FLOAT4E2M1") == "float4_e2m1fn"
    assert dtype_name("FLOAT8E8M0") == "float8_e8m0fnu"
    assert dtype_name("STRING") == "str"
    assert dtype_name("COMPLEX64") == "complex64"


def test_dimensions_static_named_and_unknown(tmp_path: Path) -> None:
    values = helper.make_tensor_value_info("x", FLOAT, ["batch", None, 3])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [values], [])
    graph.output.add(name="y")
    info = inspect_model(models.write(helper.make_model(graph), tmp_path / "m.onnx"))
    assert info.inputs == (TensorInfo("x", "float32", ("batch", None, 3)),)
    assert str(info.inputs[0]) == "x: float32[batch, ?, 3]"


def test_an_unknown_rank_is_no_scalar(tmp_path: Path) -> None:
    """A tensor type without a shape has any rank; with an empty shape it has none."""
    unranked = inspect_model(models.identity(tmp_path / "u.onnx", "float32", None))
    scalar = inspect_model(models.identity(tmp_path / "s.onnx", "float32", ()))
    assert (unranked.inputs[0].shape, unranked.outputs[0].shape) == (None, None)
    assert (scalar.inputs[0].shape, scalar.outputs[0].shape) == ((), ())
    assert str(unranked.inputs[0]) == "x: float32[any rank]"
    assert [info.inputs[0].dynamic for info in (unranked, scalar)] == [True, False]


def test_weights_are_no_inputs(tmp_path: Path) -> None:
    """Before IR version 4 each initializer is listed as an input too."""
    model = _adding([numpy_helper.from_array(np.ones((2, 3), np.float32), "k")])
    model.graph.input.add().CopyFrom(helper.make_tensor_value_info("k", FLOAT, [2, 3]))
    assert [i.name for i in inspect_model(models.write(model, tmp_path / "m.onnx")).inputs] == ["x"]


def test_operators_inside_branches_loops_and_functions(tmp_path: Path) -> None:
    assert {"Loop", "If", "Neg", "Add"} <= inspect_model(models.if_loop(tmp_path / "m.onnx")).operators
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    values = (FLOAT, [2])
    node = helper.make_node("Twice", ["x"], ["y"], domain="local")
    model = models.build([node], {"x": values}, {"y": values}, domains=["local"])
    model.functions.append(function)
    assert inspect_model(models.write(model, tmp_path / "f.onnx")).operators == {"Twice", "Add"}


def test_external_data_is_listed_and_digested(tmp_path: Path) -> None:
    path = models.external_data(tmp_path / "m.onnx")
    info = inspect_model(path)
    assert info.data_files == ("m.onnx.data",)
    assert info.sha256 != hashlib.sha256(path.read_bytes()).hexdigest()
    data = tmp_path / "m.onnx.data"
    data.write_bytes(data.read_bytes()[:-1] + b"\x01")
    assert inspect_model(path).sha256 != info.sha256


# Windows has no colon in the names of files.
ODD_NAME = "a b:c.bin" if os.name == "posix" else "a b,c.bin"


@pytest.mark.parametrize("location", ["weights.bin", "./weights.bin", "sub/weights.bin", ODD_NAME])
def test_data_below_the_folder_is_taken(build: Build, tmp_path: Path, location: str) -> None:
    path = located(tmp_path / "m.onnx", location)
    data = tmp_path / location
    data.parent.mkdir(exist_ok=True)
    data.write_bytes(np.full((2, 3), 2, np.float32).tobytes())
    assert inspect_model(path).data_files == (location,)
    assert (build(path).run({"x": np.ones((2, 3), np.float32)})["y"] == 3).all()


# What is wrong with a file.


def test_a_missing_model(tmp_path: Path) -> None:
    error = model_error(tmp_path / "absent.onnx")
    assert "absent.onnx does not exist" in error.what
    assert "model=" in error.mend


def test_a_link_to_nowhere(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").symlink_to(tmp_path / "absent.onnx")
    assert "does not exist" in model_error(tmp_path / "m.onnx").what


def test_a_folder(tmp_path: Path) -> None:
    assert "is a folder" in model_error(tmp_path).what


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = models.mlp(tmp_path / "m.onnx")

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    error = model_error(path)
    assert "Permission denied" in error.what
    assert "readable" in error.mend


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"import pytest\n\n\ndef test_one():\n    pass\n",
        b"\x00" * 100,
        b"PK\x03\x04" + b"\x00" * 60,
        b"{}",
    ],
    ids=["empty", "text", "zeros", "zip", "json"],
)
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert "not an ONNX model" in model_error(path).what


def test_a_git_lfs_pointer(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(POINTER)
    error = model_error(path)
    assert "Git LFS pointer" in error.what
    assert error.mend == "run: git lfs pull"


def test_a_model_cut_anywhere(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    """Reading it says so, or building it does where the cut is between two fields."""
    content = models.mlp(tmp_path / "whole.onnx", layers=1, width=2, bias=True).read_bytes()
    path = tmp_path / "cut.onnx"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ModelError) as caught:
            backend.build(BuildRequest(str(path), inspect_model(path).sha256))
        checked(caught.value, path)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_damaged_model_is_read_or_refused(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    content = bytearray(_small_model(tmp_path))
    for position, value in changes:
        content[position % len(content)] = value
    _read_or_refused(tmp_path, bytes(content))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    _read_or_refused(tmp_path, content)


def _small_model(folder: Path) -> bytes:
    path = folder / "small.onnx"
    if not path.exists():
        models.if_loop(path)
    return path.read_bytes()


def _read_or_refused(folder: Path, content: bytes) -> None:
    path = folder / "m.onnx"
    path.write_bytes(content)
    try:
        inspect_model(path)
    except ModelError as error:
        checked(error, path)


def test_an_element_type_that_onnx_does_not_know(tmp_path: Path) -> None:
    model = _adding([])
    model.graph.input[0].type.tensor_type.elem_type = 99
    assert inspect_model(models.write(model, tmp_path / "m.onnx")).inputs[0].dtype == "type 99"


# What is wrong with external data.


def test_external_data_that_is_missing(tmp_path: Path) -> None:
    path = located(tmp_path / "m.onnx", "weights.bin")
    error = model_error(path)
    assert "'weights.bin' of the model is missing" in error.what
    assert "weights.bin beside m.onnx" in error.mend
    (tmp_path / "weights.bin").mkdir()
    assert "missing" in model_error(path).what


@pytest.mark.parametrize(
    "location",
    [
        "/etc/hostname",
        "//server/share/weights.bin",
        "C:\\weights.bin",
        "C:weights.bin",
        "\\weights.bin",
        "..",
        "../weights.bin",
        "..\\weights.bin",
        "sub/../../weights.bin",
        "sub\\..\\..\\weights.bin",
        "",
        ".",
    ],
)
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    """Whatever the system: a repository that was made on one is read on another."""
    folder = tmp_path / "inner"
    path = located(folder / "m.onnx", location)
    (tmp_path / "weights.bin").write_bytes(b"\0" * 24)
    error = model_error(path)
    assert f"'{location}' of tensor 'k' lies outside the model's folder" in error.what
    assert "beside it" in error.mend


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_external_data_through_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    path = located(folder / "m.onnx", "weights.bin")
    (tmp_path / "secret.bin").write_bytes(b"\0" * 24)
    (folder / "weights.bin").symlink_to(tmp_path / "secret.bin")
    assert "'weights.bin' is a link out of the model's folder" in model_error(path).what
    (folder / "weights.bin").unlink()
    (folder / "inside.bin").write_bytes(b"\0" * 24)
    (folder / "weights.bin").symlink_to("inside.bin")
    assert inspect_model(path).data_files == ("weights.bin",)


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_external_data_in_a_linked_folder(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    path = located(folder / "m.onnx", "sub/weights.bin")
    (tmp_path / "weights.bin").write_bytes(b"\0" * 24)
    (folder / "sub").symlink_to(tmp_path)
    assert "link out of" in model_error(path).what


def test_external_data_that_is_a_git_lfs_pointer(tmp_path: Path) -> None:
    path = located(tmp_path / "m.onnx", "weights.bin")
    (tmp_path / "weights.bin").write_bytes(POINTER)
    error = model_error(path)
    assert "'weights.bin' is a Git LFS pointer" in error.what
    assert error.mend == "run: git lfs pull"


def test_external_data_that_is_cut(build: Build, tmp_path: Path) -> None:
    path = models.external_data(tmp_path / "m.onnx")
    data = tmp_path / "m.onnx.data"
    data.write_bytes(data.read_bytes()[:10])
    with pytest.raises(ModelError) as caught:
        build(path)
    error = checked(caught.value, path)
    # Which tensor is loaded first is ONNX Runtime's business.
    assert re.search("external data file of tensor w[01] is shorter", error.what)


def test_external_data_of_tensors_that_are_not_plain_weights(tmp_path: Path) -> None:
    """In a branch without nodes, in a sparse weight, in a Constant, and in a function."""

    def outside(name: str) -> TensorProto:
        tensor = TensorProto(name=name, data_type=FLOAT, dims=[2, 3], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=f"/etc/{name}")
        return tensor

    info = helper.make_tensor_value_info
    values = (FLOAT, [2, 3])
    constant = helper.make_node("Constant", [], ["c"], value=outside("constant"))
    then = helper.make_graph([], "then", [], [info("branch", *values)], [outside("branch")])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["o"])], "else", [], [info("o", *values)])
    branch = helper.make_node("If", ["x"], ["y"], then_branch=then, else_branch=other)
    sparse = onnx.SparseTensorProto(values=outside("sparse"), dims=[2, 3])
    cases = {
        "constant": models.build([constant], {"x": values}, {"y": values}),
        "branch": models.build([branch], {"x": values}, {"y": values}),
        "sparse": models.build(
            [helper.make_node("Add", ["x", "sparse"], ["y"])], {"x": values}, {"y": values}
        ),
        "function": models.build([helper.make_node("F", ["x"], ["y"])], {"x": values}, {"y": values}),
    }
    cases["sparse"].graph.sparse_initializer.append(sparse)
    inner = helper.make_node("Constant", [], ["b"], value=outside("function"))
    cases["function"].functions.append(
        helper.make_function("local", "F", ["a"], ["b"], [inner], [helper.make_opsetid("", 17)])
    )
    for name, model in cases.items():
        path = models.write(model, tmp_path / f"{name}.onnx")
        assert f"'/etc/{name}' of tensor '{name}'" in model_error(path).what


# What only building tells.


def test_an_unknown_operator(build: Build, tmp_path: Path) -> None:
    path = models.unknown_operator(tmp_path / "m.onnx")
    with pytest.raises(ModelError) as caught:
        build(path)
    assert "com.example.mystery:Mystery" in checked(caught.value, path).what


def test_a_future_operator_set(build: Build, tmp_path: Path) -> None:
    path = models.future_opset(tmp_path / "m.onnx")
    with pytest.raises(ModelError) as caught:
        build(path)
    error = checked(caught.value, path)
    assert "opset 999" in error.what
    assert "upgrade onnxruntime" in error.mend


def test_a_future_file_format(build: Build, tmp_path: Path) -> None:
    path = models.future_ir(tmp_path / "m.onnx")
    with pytest.raises(ModelError) as caught:
        build(path)
    error = checked(caught.value, path)
    assert "IR version 99" in error.what
    assert "upgrade onnxruntime" in error.mend


def test_a_graph_that_does_not_hold_together(build: Build, tmp_path: Path) -> None:
    values = (FLOAT, [2])
    model = models.build([helper.make_node("Add", ["x", "nowhere"], ["y"])], {"x": values}, {"y": values})
    path = models.write(model, tmp_path / "m.onnx")
    with pytest.raises(GptuneError) as caught:
        build(path)
    assert isinstance(caught.value, ModelError | BuildRejectedError)
    assert "nowhere" in str(caught.value)


def test_a_model_that_vanished_after_it_was_read(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    path = models.mlp(tmp_path / "m.onnx")
    request = BuildRequest(str(path), inspect_model(path).sha256)
    path.unlink()
    with pytest.raises(ModelError) as caught:
        backend.build(request)
    checked(caught.value, path)
