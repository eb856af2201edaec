from __future__ import annotations

import io
import math
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.numpy_helper
import pytest

from pytest_gptune.accuracy import (
    GoldenError,
    InputsError,
    fit_inputs,
    normalise_inputs,
    random_inputs,
    read_npz_inputs,
    reference_outputs_from,
)


@dataclass(frozen=True)
class Info:
    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None


X = Info("x", "float32", ("batch", 3))
IDS = Info("ids", "int64", (2,))


def write_tensor(path: Path, array: Any, name: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(onnx.numpy_helper.from_array(np.asarray(array), name).SerializeToString())


class TestRandom:
    @pytest.mark.parametrize(
        "dtype",
        [
            *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
            *(
                "int4",
                "uint4",
                "int8",
                "uint8",
                "int16",
                "uint16",
                "int32",
                "uint32",
                "int64",
                "uint64",
                "bool",
            ),
        ],
    )
    @pytest.mark.parametrize("shape", [(), (0,), (50,), (4, 5)])
    def test_every_dtype(self, dtype, shape):
        array = random_inputs([Info("x", dtype, shape)], {}, 0)["x"]
        assert array.dtype.name == dtype
        assert array.shape == shape
        values = array.astype(np.float64)
        assert np.isfinite(values).all()
        if "int" in dtype:
            assert ((values >= 0) & (values < 10)).all()
        if array.size == 50:
            assert len(np.unique(values)) > 1

    def test_same_seed_same_values(self):
        first = random_inputs([X, IDS], {"x": (2, 3)}, 5)
        second = random_inputs([X, IDS], {"x": (2, 3)}, 5)
        other = random_inputs([X, IDS], {"x": (2, 3)}, 6)
        np.testing.assert_array_equal(first["x"], second["x"])
        assert not np.array_equal(first["x"], other["x"])

    def test_a_further_input_changes_no_other(self):
        alone = random_inputs([X], {"x": (2, 3)}, 5)["x"]
        np.testing.assert_array_equal(random_inputs([IDS, X], {"x": (2, 3)}, 5)["x"], alone)

    def test_the_global_generator_is_left_alone(self):
        np.random.seed(1)
        before = np.random.get_state()[1].copy()
        random_inputs([X], {"x": (2, 3)}, 5)
        np.testing.assert_array_equal(np.random.get_state()[1], before)

    def test_a_dynamic_dimension_needs_a_shape(self):
        with pytest.raises(InputsError) as info:
            random_inputs([X, Info("y", "int8", (None, -1, 4)), IDS], {}, 0, where="test_a")
        text = str(info.value)
        assert "input 'x': dimension 0 ('batch') of [batch, 3] is dynamic" in text
        assert "input 'y': dimension 0 of [?, -1, 4] is dynamic" in text
        assert "input 'y': dimension 1 of" in text
        assert "shapes={'x': (1, 3), 'y': (1, 1, 4)}" in info.value.mend
        assert "test_a" in text

    def test_wrong_shapes_are_all_listed(self):
        with pytest.raises(InputsError) as info:
            random_inputs([X, IDS], {"x": (2, 4), "ids": (2, 1), "xx": (1,), "y": (1,)}, 0)
        text = str(info.value)
        assert "there is no input 'xx', nearest is 'x'" in text
        assert "there is no input 'y'" in text
        assert "input 'x': shape [2, 4] does not fit [batch, 3]" in text
        assert "input 'ids': shape [2, 1] does not fit [2]" in text

    @pytest.mark.parametrize("shape", [(-1, 3), (1.5, 3), "23", 3, None, (True, 3)])
    def test_no_shape(self, shape: Any):
        with pytest.raises(InputsError, match="is not a shape"):
            random_inputs([X], {"x": shape}, 0)

    def test_too_large(self):
        with pytest.raises(InputsError, match="cannot be made"):
            random_inputs([Info("x", "float32", ("n", 2**40))], {"x": (2**40, 2**40)}, 0)

    def test_unsupported(self):
        with pytest.raises(InputsError, match="dtype string is not supported"):
            random_inputs([Info("s", "string", (1,))], {}, 0)
        with pytest.raises(InputsError, match="unknown rank") as caught:
            random_inputs([Info("s", "float32", None)], {}, 0, where="here")
        assert (caught.value.where, "or give inputs=" in caught.value.mend) == ("here", True)
        assert random_inputs([Info("s", "float32", None)], {"s": (2,)}, 0)["s"].shape == (2,)

    @pytest.mark.parametrize("seed", [-1, 1.0, True, None])
    def test_seed(self, seed: Any):
        with pytest.raises(InputsError, match="seed is"):
            random_inputs([IDS], {}, seed)


class TestFit:
    def fit(self, dtype: str, value: Any, shape: Any = None) -> np.ndarray:
        return fit_inputs({"x": value}, [Info("x", dtype, shape)])["x"]

    @pytest.mark.parametrize(
        ("dtype", "value"),
        [
            ("float32", [1.5, 2.0]),
            ("float16", np.array([1.5], np.float32)),
            ("bfloat16", np.array([1.5])),
            ("float64", np.array([1.5], ml_dtypes.bfloat16)),
            ("int32", [1, -2]),
            ("int4", [7, -8]),
            ("uint8", np.array([255], np.uint64)),
            ("bool", [True, False]),
            ("float32", np.array([math.nan, math.inf])),
            ("float32", np.arange(3.0, dtype=">f8")),
        ],
    )
    def test_width_is_changed(self, dtype, value):
        array = self.fit(dtype, value)
        assert array.dtype.name == dtype
        assert array.dtype.isnative
        np.testing.assert_array_equal(array.astype(np.float64), np.asarray(value).astype(np.float64))

    @pytest.mark.parametrize(
        ("dtype", "value", "text"),
        [
            ("int32", [2**31], "values 2147483648 to 2147483648 do not fit int32"),
            ("int4", [8], "do not fit int4 (-8 to 7)"),
            ("uint8", np.array([256], np.uint16), "do not fit uint8 (0 to 255)"),
            ("float16", [1e5], "a value of size 1e+05 does not fit float16"),
            ("float8_e4m3fn", np.array(1e5), "does not fit float8_e4m3fn"),
            ("int64", [1.0], "dtype float64 does not fit int64"),
            ("float32", [1], "dtype int64 does not fit float32"),
            ("float32", ["a"], "does not fit float32"),
            ("uint8", [1], "dtype int64 does not fit uint8"),
            ("bool", [1], "dtype int64 does not fit bool"),
            ("float32", None, "dtype object does not fit float32"),
            ("float32", [[1.0], [1.0, 2.0]], "input 'x' is not a tensor"),
        ],
    )
    def test_refused(self, dtype, value, text):
        with pytest.raises(InputsError) as info:
            self.fit(dtype, value)
        assert text in str(info.value)
        assert f"'x' {dtype}" in info.value.mend

    def test_bfloat16_that_savez_stripped(self, tmp_path):
        array = np.array([1.5, -2.0], ml_dtypes.bfloat16)
        np.savez(tmp_path / "a.npz", x=array)
        ((_, inputs),) = normalise_inputs(tmp_path / "a.npz", [Info("x", "bfloat16", (2,))])
        np.testing.assert_array_equal(inputs["x"].astype(float), [1.5, -2.0])

    def test_names_and_shapes_all_listed(self):
        with pytest.raises(InputsError) as info:
            fit_inputs({"X": np.zeros((1, 2)), "ids": np.zeros(3, int)}, [X, IDS], where="case 'a'")
        text = str(info.value)
        assert "input 'x' is missing" in text
        assert "the model has no input 'X'" in text
        assert "input 'ids': shape [3] does not fit [2]" in text
        assert "case 'a'" in text

    def test_models_order(self):
        given = {"ids": np.array([1, 2]), "x": np.zeros((1, 3))}
        assert list(fit_inputs(given, [X, IDS])) == ["x", "ids"]

    def test_of_a_type_that_no_golden_holds(self):
        with pytest.raises(InputsError, match="dtype str of the model is not supported") as info:
            fit_inputs({"s": np.array(["a"])}, [X, Info("s", "str", (1,))])
        assert "tune a part of the model without 's' str[1]" in str(info.value)
        assert "give arrays" not in str(info.value)

    def test_the_given_array_stays_as_it_is(self):
        array = np.zeros((1, 3), np.float32)
        fit_inputs({"x": array}, [X])["x"][:] = 1
        assert not array.any()


class TestNormalise:
    def names(self, source: Any, **kwargs: Any) -> list[str]:
        return [name for name, _ in normalise_inputs(source, [X], **kwargs)]

    def mapping(self, rows: int = 1) -> dict[str, Any]:
        return {"x": np.full((rows, 3), float(rows))}

    def test_random_by_default(self):
        ((name, inputs),) = normalise_inputs(None, [IDS])
        assert name == "case0"
        assert inputs["ids"].dtype == np.int64
        assert self.names(None, shapes_list=[{"x": (2, 3)}]) == ["case0"]

    def test_a_random_case_for_each_shape(self):
        shapes = [{"x": (1, 3)}, {"x": (8, 3)}, {"x": (8, 3)}]
        cases = normalise_inputs(None, [X], shapes, seed=1)
        assert [name for name, _ in cases] == ["x=1x3", "x=8x3", "x=8x3#2"]
        assert cases[1][1]["x"].shape == (8, 3)
        assert not np.array_equal(cases[1][1]["x"], cases[2][1]["x"])

    def test_mapping(self):
        ((name, inputs),) = normalise_inputs(self.mapping(), [X])
        assert name == "case0"
        assert inputs["x"].dtype == np.float32

    def test_functions(self):
        def one():
            return self.mapping()

        def seeded(rng):
            return {"x": rng.standard_normal((2, 3))}

        def several():
            yield self.mapping(1)
            yield self.mapping(2)

        assert self.names(one) == ["case0"]
        assert self.names(several) == ["case0", "case1"]
        assert self.names(lambda: [self.mapping(1), self.mapping(2)]) == ["case0", "case1"]
        first, second = (normalise_inputs(seeded, [X], seed=3)[0][1]["x"] for _ in range(2))
        np.testing.assert_array_equal(first, second)
        assert not np.array_equal(first, normalise_inputs(seeded, [X], seed=4)[0][1]["x"])

    def test_list_of_anything(self, tmp_path):
        np.savez(tmp_path / "a.npz", **{"night/x": np.zeros((1, 3)), "day/x": np.ones((1, 3))})
        source = [self.mapping(), tmp_path / "a.npz", str(tmp_path / "a.npz"), self.mapping, None]
        names = self.names(source, shapes_list=[{"x": (1, 3)}])
        assert names == ["case0", "night", "day", "night#2", "day#2", "case5", "case6"]

    @pytest.mark.parametrize(
        ("source", "text"),
        [
            ([], "have no case"),
            (lambda: [], "have no case"),
            (3, "a int cannot be the inputs"),
            (np.zeros(3), "a ndarray cannot be the inputs"),
            (lambda: 3, "gave a int, not a mapping"),
            (lambda: [3], "gave a int, not a mapping"),
            (lambda: "text", "gave a str, not a mapping"),
            (lambda a, b: {}, "needs 2 arguments"),
            (lambda: 1 / 0, "raised ZeroDivisionError"),
            (lambda: ({} for _ in 3), "raised TypeError"),  # type: ignore[attr-defined]
            ({}, "input 'x' is missing"),
        ],
    )
    def test_refused(self, source, text):
        with pytest.raises(InputsError) as info:
            normalise_inputs(source, [X], where="test_a")
        assert text in str(info.value)
        assert "test_a" in info.value.where

    def test_a_generator_that_fails_midway(self):
        def broken():
            yield self.mapping()
            raise OSError("disk")

        with pytest.raises(InputsError, match="raised OSError: disk"):
            normalise_inputs(broken, [X])

    def test_a_generator_without_an_end(self):
        def endless():
            while True:
                yield {"x": np.zeros((1, 3), np.float32)}

        with pytest.raises(InputsError, match="more than 1000 cases"):
            normalise_inputs(endless, [X])

    def test_the_case_is_named(self):
        with pytest.raises(InputsError, match="case 'case1'"):
            normalise_inputs([self.mapping(), {"x": np.zeros(3)}], [X], where="test_a")

    def test_a_model_without_inputs(self):
        assert normalise_inputs(None, []) == (("case0", {}),)


class TestNpz:
    def test_names_with_slashes(self, tmp_path):
        names = ["/encoder/out", "a/b", "b"]
        np.savez(tmp_path / "a.npz", **{name: np.ones(1) for name in names})
        ((case, inputs),) = read_npz_inputs(tmp_path / "a.npz", names)
        assert case == "case0"
        assert set(inputs) == set(names)
        np.savez(tmp_path / "b.npz", **{"one/a/b": np.ones(1), "one//encoder/out": np.ones(1), "two/b": 1})
        assert [(case, list(inputs)) for case, inputs in read_npz_inputs(tmp_path / "b.npz", names)] == [
            ("one", ["a/b", "/encoder/out"]),
            ("two", ["b"]),
        ]

    def test_a_leading_slash_may_be_written_once(self, tmp_path):
        np.savez(tmp_path / "a.npz", **{"one/y": np.ones(1)})
        assert read_npz_inputs(tmp_path / "a.npz", ["/y"])[0][0] == "one"

    def expect(self, path: Path, text: str) -> None:
        with pytest.raises(InputsError) as info:
            read_npz_inputs(path, ["x"], "test_a")
        assert text in str(info.value)
        assert str(path) in info.value.where
        assert info.value.mend

    def test_errors(self, tmp_path):
        path = tmp_path / "a.npz"
        self.expect(path, "is missing")
        np.savez(path, y=np.ones(1))
        self.expect(path, "keys of the .npz name no tensor: 'y'")
        np.savez(path, **{"x": np.ones(1), "a/x": np.ones(1)})
        self.expect(path, "some keys of the .npz are of a case, some of none")
        np.savez(path, x=np.array([print], object))
        self.expect(path, "pickled objects are never loaded")
        np.savez(path)
        self.expect(path, "the .npz is empty")
        np.save(tmp_path / "b.npy", np.ones(1))
        self.expect(tmp_path / "b.npy", "a single array")
        for content in (b"text", b"x,y\n1,2\n", pickle.dumps({"x": 1}), b"\x08\x01\x10\x01"):
            path.write_bytes(content)
            self.expect(path, "it is not an .npz file")
        path.write_bytes(b"")
        self.expect(path, "the .npz file is empty")
        path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
        self.expect(path, "Git LFS pointer")
        np.savez(path, x=np.arange(100))
        path.write_bytes(path.read_bytes()[:-50])
        self.expect(path, "cannot be read")
        self.expect(tmp_path, "cannot be read")
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x", "no array")
        self.expect(path, "its member 'x' is not an array")

    def test_truncated_anywhere(self, tmp_path):
        buffer = io.BytesIO()
        np.savez(buffer, x=np.arange(4))
        whole = buffer.getvalue()
        for length in range(0, len(whole), 7):
            (tmp_path / "a.npz").write_bytes(whole[:length])
            with pytest.raises(InputsError):
                read_npz_inputs(tmp_path / "a.npz", ["x"])


class TestReference:
    cases = (("day", {"x": np.ones(1)}), ("night", {"x": np.zeros(1)}))

    def test_npz(self, tmp_path):
        np.savez(tmp_path / "a.npz", **{"night/y": np.zeros(1), "day/y": np.ones(1)})
        first, second = reference_outputs_from(tmp_path / "a.npz", self.cases, ["y"])
        assert (first["y"][0], second["y"][0]) == (1, 0)

    def test_npz_of_one_case(self, tmp_path):
        np.savez(tmp_path / "a.npz", y=np.ones(1))
        assert reference_outputs_from(tmp_path / "a.npz", self.cases[:1], ["y"])[0]["y"] == 1

    def test_folder(self, tmp_path):
        for index in (0, 1):
            write_tensor(tmp_path / f"test_data_set_{index}" / "output_0.pb", [float(index)])
        first, second = reference_outputs_from(str(tmp_path), self.cases, ["y"])
        assert (first["y"][0], second["y"][0]) == (0, 1)

    def test_mapping(self):
        assert reference_outputs_from({"y": [1.0]}, self.cases[:1], ["y"])[0]["y"] == 1

    def test_function_in_the_models_order_and_on_copies(self):
        def reference(inputs):
            inputs["x"] += 1
            return {"z": inputs["x"] * 2, "y": inputs["x"]}

        outputs = reference_outputs_from(reference, self.cases, ["y", "z"])
        assert [list(part) for part in outputs] == [["y", "z"]] * 2
        assert outputs[0]["z"] == 4
        assert self.cases[0][1]["x"] == 1

    @pytest.mark.parametrize(
        ("source", "text"),
        [
            (lambda inputs: {"logit": np.ones(1)}, "output 'logits' is missing, nearest is 'logit'"),
            (lambda inputs: {"logit": np.ones(1)}, "the model has no output 'logit', nearest is 'logits'"),
            (lambda inputs: [np.ones(1)], "gave a list, not a mapping"),
            (lambda inputs: {"logits": np.array(["a"])}, "dtype <U1, which cannot be compared"),
            (lambda inputs: {"logits": [[1], [1, 2]]}, "'logits' is not a tensor"),
            (lambda inputs: 1 / 0, "raised ZeroDivisionError"),
            (lambda: {}, "raised TypeError"),
            (3, "a int cannot be the reference"),
            ("no.npz", "is missing"),
            ({"logits": np.ones(1)}, "has the cases 'case0', the inputs have 'day', 'night'"),
        ],
    )
    def test_errors(self, source, text):
        with pytest.raises(GoldenError) as info:
            reference_outputs_from(source, self.cases, ["logits"], where="test_a")
        assert text in str(info.value)
        assert "test_a" in info.value.where
        assert info.value.mend

    def test_cases_that_agree_in_part_are_others(self, tmp_path):
        np.savez(tmp_path / "a.npz", **{"day/y": np.ones(1), "dusk/y": np.ones(1)})
        with pytest.raises(GoldenError, match="'day', 'dusk'"):
            reference_outputs_from(tmp_path / "a.npz", self.cases, ["y"])
