from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.numpy_helper
import pytest

from pytest_gptune.accuracy import (
    AccuracyGate,
    Case,
    Golden,
    InputsError,
    Provenance,
    normalise_inputs,
    read_test_data_set,
    reference_outputs_from,
)

ONNX_DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"


@dataclass(frozen=True)
class Info:
    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None


def write_tensor(path: Path, array: Any, name: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(onnx.numpy_helper.from_array(np.asarray(array), name).SerializeToString())


class TestDataSets:
    def test_by_position(self, tmp_path):
        for index in range(12):
            write_tensor(tmp_path / f"input_{index}.pb", np.full(1, index))
        write_tensor(tmp_path / "output_0.pb", np.ones(1))
        names = [f"n{index}" for index in range(12)]
        ((case, inputs, outputs),) = read_test_data_set(tmp_path, names, ["y"])
        assert case == tmp_path.name
        assert {name: int(array[0]) for name, array in inputs.items()} == {
            f"n{index}": index for index in range(12)
        }
        assert list(outputs) == ["y"]

    def test_by_name_if_all_are_known(self, tmp_path):
        write_tensor(tmp_path / "input_0.pb", [0], "b")
        write_tensor(tmp_path / "input_1.pb", [1], "a")
        assert list(read_test_data_set(tmp_path, ["a", "b"])[0][1]) == ["b", "a"]
        ((_, inputs, _),) = read_test_data_set(tmp_path, ["a", "c"])
        assert {name: int(array[0]) for name, array in inputs.items()} == {"a": 0, "c": 1}
        assert list(read_test_data_set(tmp_path)[0][1]) == ["b", "a"]

    def test_parent_folder(self, tmp_path):
        for index in (0, 1, 2, 10):
            write_tensor(tmp_path / f"test_data_set_{index}" / "input_0.pb", [index])
        cases = read_test_data_set(tmp_path, ["x"])
        assert [case for case, _, _ in cases] == [f"test_data_set_{index}" for index in (0, 1, 2, 10)]

    def test_outputs_alone(self, tmp_path):
        write_tensor(tmp_path / "output_0.pb", [1])
        assert read_test_data_set(tmp_path, ["x"], ["y"])[0][1:] == ({}, {"y": np.array([1])})

    def expect(self, path: Path, text: str, **names: Any) -> None:
        with pytest.raises(InputsError) as info:
            read_test_data_set(path, where="test_a", **names)
        assert text in str(info.value)
        assert "test_a" in info.value.where

    def test_folders_without_data(self, tmp_path):
        self.expect(tmp_path, "holds no input_0.pb")
        self.expect(tmp_path / "no", "no such folder")

    def test_more_files_than_inputs(self, tmp_path):
        write_tensor(tmp_path / "input_0.pb", [1])
        write_tensor(tmp_path / "input_1.pb", [1])
        self.expect(tmp_path, "the model has 1 inputs, so that 'input_1.pb'", inputs=["x"])

    def test_truncated_anywhere(self, tmp_path):
        path = tmp_path / "input_0.pb"
        write_tensor(path, np.arange(20.0).reshape(4, 5), "x")
        whole = path.read_bytes()
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            try:
                ((_, inputs, _),) = read_test_data_set(tmp_path, ["x"])
            except InputsError as error:
                assert "input_0.pb" in str(error)  # noqa: PT017
            else:
                pytest.fail(f"{length} of {len(whole)} bytes gave {inputs}")

    def test_foreign(self, tmp_path):
        (tmp_path / "input_0.pb").write_bytes(b"")
        self.expect(tmp_path, "it is empty")
        (tmp_path / "input_0.pb").write_bytes(b"hello, this is text")
        self.expect(tmp_path, "not a whole TensorProto")

    def test_external_data(self, tmp_path):
        (tmp_path / "secret").write_bytes(bytes(4))
        tensor = onnx.TensorProto(dims=[1], data_type=1, data_location=onnx.TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="secret")
        (tmp_path / "input_0.pb").write_bytes(tensor.SerializeToString())
        self.expect(tmp_path, "stands in another file")

    def test_strings(self, tmp_path):
        tensor = onnx.helper.make_tensor("s", onnx.TensorProto.STRING, [1], [b"a"])
        (tmp_path / "input_0.pb").write_bytes(tensor.SerializeToString())
        self.expect(tmp_path, "holds strings")

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_sequences(self, tmp_path, count):
        sequence = onnx.numpy_helper.from_list([np.ones(2, np.float32)] * count, "s", dtype=1)
        (tmp_path / "input_0.pb").write_bytes(sequence.SerializeToString())
        self.expect(tmp_path, "sequence or an optional")

    def test_optional(self, tmp_path):
        optional = onnx.numpy_helper.from_optional(np.ones(2, np.float32), "o")
        (tmp_path / "input_0.pb").write_bytes(optional.SerializeToString())
        self.expect(tmp_path, "sequence or an optional")

    @pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, np.bool_])
    def test_dtypes(self, tmp_path, dtype):
        write_tensor(tmp_path / "input_0.pb", np.array([0, 1, 1], dtype))
        array = read_test_data_set(tmp_path, ["x"])[0][1]["x"]
        np.testing.assert_array_equal(array.astype(float), [0, 1, 1])


def model_signature(path: Path) -> tuple[list[Info], list[str]]:
    graph = onnx.load(path).graph
    weights = {tensor.name for tensor in graph.initializer}
    infos = []
    for value in graph.input:
        if value.name not in weights:
            tensor = value.type.tensor_type
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
            infos.append(Info(value.name, dtype, tuple(dim.dim_value for dim in tensor.shape.dim)))
    return infos, [value.name for value in graph.output]


class TestOnnxsOwnData:
    def run(self, path: Path, inputs: Any) -> dict[str, Any]:
        runtime = pytest.importorskip("onnxruntime")
        session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(None, inputs), strict=True))

    @pytest.mark.parametrize(
        "name",
        [
            "pytorch-operator/test_operator_conv",
            "pytorch-converted/test_Conv2d",
            "pytorch-converted/test_ReLU",
        ],
    )
    def test_from_files_to_a_verdict(self, name, tmp_path):
        folder = ONNX_DATA / name
        if not folder.is_dir():
            pytest.skip("this onnx has no such data")
        signature, outputs = model_signature(folder / "model.onnx")
        cases = normalise_inputs(folder, signature)
        references = reference_outputs_from(folder, cases, outputs)
        golden = Golden(
            tuple(Case(n, i, o) for (n, i), o in zip(cases, references, strict=True)), Provenance("", "onnx")
        )
        computed = [self.run(folder / "model.onnx", inputs) for _, inputs in cases]
        assert AccuracyGate("lInf", 1e-3).compare(golden, computed).passed
        broken = [{key: value + np.float32(1) for key, value in part.items()} for part in computed]
        assert not AccuracyGate("lInf", 1e-3).compare(golden, broken).passed

    def test_light_models_have_outputs_only(self):
        folder = ONNX_DATA / "light"
        if not folder.is_dir():
            pytest.skip("this onnx has no such data")
        cases = read_test_data_set(folder)
        assert len(cases) > 3
        assert all(not inputs and len(outputs) == 1 for _, inputs, outputs in cases)

    @pytest.mark.parametrize("group", ["pytorch-operator", "pytorch-converted", "simple"])
    def test_all_of_it_is_read_or_refused(self, group):
        read = 0
        for folder in sorted((ONNX_DATA / group).glob("test_*")):
            if not (folder / "test_data_set_0").is_dir():
                continue
            try:
                read += len(read_test_data_set(folder))
            except InputsError as error:
                assert group == "simple", folder
                assert "not supported" in str(error), folder  # noqa: PT017
        assert read > 3 or not (ONNX_DATA / group).is_dir()
