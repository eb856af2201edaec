from __future__ import annotations

import io
import json
import math
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pytest_gptune.accuracy import (
    Case,
    Golden,
    GoldenError,
    Provenance,
    golden_from_bytes,
    golden_to_bytes,
    load_golden,
    save_golden,
)

PROVENANCE = Provenance(
    model_sha256="ab" * 32,
    reference="onnxruntime CPU, optimisations off",
    reference_version="1.20",
    seed=7,
    date="2025-01-02T03:04:05+00:00",
    extra={"note": "grüße"},
)
DTYPES = [
    *(np.dtype(name) for name in ("bool", "float16", "float32", "float64")),
    *(np.dtype(f"{kind}{width}") for kind in ("int", "uint") for width in (8, 16, 32, 64)),
    *(
        np.dtype(getattr(ml_dtypes, name))
        for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4")
    ),
]


@dataclass(frozen=True)
class Info:
    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


def golden_of(**outputs: Any) -> Golden:
    return Golden((Case("case0", {"x": np.zeros(2, np.float32)}, outputs),), PROVENANCE)


def assert_same(first: Golden, second: Golden) -> None:
    assert first.provenance == second.provenance
    assert [case.name for case in first.cases] == [case.name for case in second.cases]
    for one, other in zip(first.cases, second.cases, strict=True):
        for have, want in ((one.inputs, other.inputs), (one.outputs, other.outputs)):
            assert list(have) == list(want)
            for name, array in have.items():
                assert array.dtype == want[name].dtype
                assert array.shape == want[name].shape
                assert array.tobytes() == want[name].tobytes()


def packed(document: Any, **arrays: Any) -> bytes:
    buffer = io.BytesIO()
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    np.savez(buffer, __gptune__=np.frombuffer(text, np.uint8), **arrays)
    return buffer.getvalue()


def document_of(golden: Golden) -> tuple[dict[str, Any], dict[str, Any]]:
    with np.load(io.BytesIO(golden_to_bytes(golden))) as archive:
        arrays = {key: archive[key] for key in archive.files}
    return json.loads(arrays.pop("__gptune__").tobytes()), arrays


class TestRoundTrip:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
    def test_every_dtype_and_shape(self, tmp_path, dtype, shape):
        array = np.ones(shape, dtype)
        golden = golden_of(y=array, z=array)
        path = tmp_path / "deep" / "a.golden.npz"
        save_golden(path, golden)
        loaded = load_golden(path)
        assert_same(golden, loaded)
        loaded.cases[0].outputs["y"][...] = np.zeros((), dtype)  # a loaded array can be written to

    @pytest.mark.parametrize("array", [np.arange(6, dtype=">i4"), np.arange(6.0).reshape(2, 3).T])
    def test_order_of_bytes_and_axes(self, array):
        loaded = golden_from_bytes(golden_to_bytes(golden_of(y=array))).cases[0].outputs["y"]
        assert loaded.dtype.isnative
        np.testing.assert_array_equal(loaded, array)

    def test_the_same_golden_gives_the_same_bytes(self, monkeypatch):
        golden = golden_of(y=np.arange(3.0))
        first = golden_to_bytes(golden)
        monkeypatch.setattr("time.time", lambda: 2e9)
        assert golden_to_bytes(golden) == first
        with zipfile.ZipFile(io.BytesIO(first)) as archive:
            assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
            assert archive.namelist() == ["__gptune__.npy", "c0.i0.npy", "c0.o0.npy"]

    def test_no_pickle_is_needed_to_look_into_it(self):
        document, arrays = document_of(golden_of(y=np.ones(2, ml_dtypes.bfloat16)))
        assert document["schema"] == 1
        assert document["cases"][0]["outputs"] == [{"name": "y", "dtype": "bfloat16", "shape": [2]}]
        assert arrays["c0.o0"].dtype == np.uint16

    def test_the_date_is_now_in_utc_unless_given(self):
        assert Provenance("", "r").date.endswith("+00:00")


@st.composite
def goldens(draw):
    names = st.one_of(
        st.text(max_size=8), st.sampled_from(["/", "..", "../../x", "c0.o0", "__gptune__", "a.npy", "CON"])
    )

    def tensors(keys):
        result = {}
        for key in keys:
            dtype = draw(st.sampled_from(DTYPES))
            bits = draw(hnp.arrays(np.uint8, draw(hnp.array_shapes(min_dims=0, min_side=0, max_side=3))))
            result[key] = bits.astype(np.int8).astype(dtype) if dtype.name != "bool" else bits % 2 == 1
        return result

    outputs = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    cases = [
        Case(name, tensors(draw(st.lists(names, max_size=2, unique=True))), tensors(outputs))
        for name in draw(st.lists(names, min_size=1, max_size=3, unique=True))
    ]
    return Golden(
        tuple(cases),
        Provenance(
            model_sha256=draw(st.text(max_size=4)),
            reference=draw(st.text(max_size=4)),
            seed=draw(st.none() | st.integers(0, 2**70)),
            allows_nonfinite=True,
            extra=draw(st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)),
        ),
    )


@given(goldens())
def test_any_golden_survives(golden):
    assert_same(golden, golden_from_bytes(golden_to_bytes(golden)))


def test_names_that_are_no_unicode(tmp_path):
    golden = golden_of(**{"\ud800": np.ones(1)})
    save_golden(tmp_path / "g.npz", golden)
    assert_same(golden, load_golden(tmp_path / "g.npz"))


WHOLE = golden_to_bytes(golden_of(y=np.arange(8.0), z=np.array(True)))


class TestDamage:
    def expect(self, content: bytes, text: str) -> None:
        with pytest.raises(GoldenError) as info:
            golden_from_bytes(content, where="here.npz")
        message = str(info.value)
        assert text in message
        assert "in: here.npz" in message
        assert "--gptune-update-goldens" in message

    def test_missing(self, tmp_path):
        for path in (tmp_path / "no.npz", Path(__file__) / "no.npz"):
            with pytest.raises(GoldenError, match="the golden is missing") as info:
                load_golden(path)
            assert "pytest <test> --gptune-update-goldens" in info.value.mend

    def test_folder(self, tmp_path):
        with pytest.raises(GoldenError, match="cannot be read"):
            load_golden(tmp_path)

    def test_foreign_files(self):
        buffer = io.BytesIO()
        np.save(buffer, np.ones(3))
        self.expect(buffer.getvalue(), "is a single array (.npy)")
        buffer = io.BytesIO()
        np.savez(buffer, y=np.ones(3))
        self.expect(buffer.getvalue(), "has no entry __gptune__")
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("readme.txt", "hello")
        self.expect(buffer.getvalue(), "has no entry __gptune__")
        self.expect(b"some text", "is not an .npz file")
        self.expect(b"", "is empty")
        self.expect(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull")

    @pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.9, 0.999])
    def test_truncated(self, share):
        self.expect(WHOLE[: int(len(WHOLE) * share)], "truncated or damaged")

    def test_truncated_anywhere(self):
        for length in range(len(WHOLE)):
            with pytest.raises(GoldenError):
                golden_from_bytes(WHOLE[:length])

    def test_each_byte_flipped_is_noticed_or_harmless(self):
        whole = golden_from_bytes(WHOLE)
        for place in range(len(WHOLE)):
            content = bytearray(WHOLE)
            content[place] ^= 0x41
            try:
                golden = golden_from_bytes(bytes(content))
            except GoldenError:
                continue
            assert_same(golden, whole)  # a byte that carries nothing, such as the zip's own date

    @pytest.mark.parametrize("schema", [2, 0, "1", None, True])
    def test_other_schema(self, schema):
        document, arrays = document_of(golden_of(y=np.ones(2)))
        self.expect(packed({**document, "schema": schema}, **arrays), f"has schema {schema!r}")

    def test_broken_entries(self):
        document, arrays = document_of(golden_of(y=np.ones(2)))
        for key in ("cases", "provenance"):
            part = {name: value for name, value in document.items() if name != key}
            self.expect(packed(part, **arrays), f"without '{key}'")
            self.expect(packed({**document, key: 3}, **arrays), f"without '{key}'")
        self.expect(packed([], **arrays), "has schema None")
        self.expect(packed(b"{", **arrays), "damaged: JSONDecodeError")
        self.expect(packed(b"\xff", **arrays), "damaged: UnicodeDecodeError")
        self.expect(packed(b"[" * 100_000, **arrays), "damaged: RecursionError")
        self.expect(packed(document, **{"c0.i0": arrays["c0.i0"]}), "lacks the array c0.o0 of its tensor 'y'")
        self.expect(packed(document, **arrays, more=np.ones(1)), "does not list: 'more'")
        self.expect(
            packed({**document, "provenance": {**document["provenance"], "who": "I"}}, **arrays), "'who'"
        )
        self.expect(packed({**document, "cases": []}, **arrays), "does not list")
        self.expect(packed({**document, "cases": []}), "has no case")

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"dtype": "float32"}, "but lists float32 [2]"),
            ({"dtype": "float63"}, "unknown dtype 'float63'"),
            ({"dtype": "object"}, "unknown dtype 'object'"),
            ({"shape": [3]}, "but lists float64 [3]"),
            ({"shape": [2, 1]}, "but lists float64 [2, 1]"),
            ({"shape": [10**15]}, "but lists float64 [1000000000000000]"),
            ({"shape": [-2]}, "the shape [-2]"),
            ({"shape": [2.0]}, "the shape [2.0]"),
            ({"shape": "2"}, "without 'shape'"),
            ({"name": 1}, "without 'name'"),
        ],
    )
    def test_entry_against_array(self, change, text):
        document, arrays = document_of(golden_of(y=np.ones(2)))
        document["cases"][0]["outputs"][0].update(change)
        self.expect(packed(document, **arrays), text)

    def test_a_name_twice(self):
        document, arrays = document_of(golden_of(y=np.ones(2), z=np.ones(2)))
        document["cases"][0]["outputs"][1]["name"] = "y"
        self.expect(packed(document, **arrays), "lists the tensor 'y' twice")

    def test_pickled_objects_are_never_loaded(self):
        document, arrays = document_of(golden_of(y=np.ones(2)))
        arrays["c0.o0"] = np.array([print, 1], object)
        self.expect(packed(document, **arrays), "holds object [2]")

    def test_compressed_members_are_refused(self):
        # 1 GB of zeros is 1 MB when compressed; a golden of ours never is
        buffer = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(WHOLE)) as old,
            zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new,
        ):
            for name in old.namelist():
                new.writestr(name, old.read(name))
        self.expect(buffer.getvalue(), "packed by another program")

    def test_a_header_that_claims_much_allocates_nothing(self):
        content = WHOLE.replace(b"'shape': (8,), ", b"'shape': (8" + b"0" * 2 + b",), ", 1)
        self.expect(content, "damaged")

    def test_nan_put_in_by_hand(self):
        document, arrays = document_of(golden_of(y=np.ones(2)))
        arrays["c0.o0"] = np.array([1, math.nan])
        self.expect(packed(document, **arrays), "reference output 'y' of case 'case0' is NaN at [1]")


@given(st.binary(max_size=400))
def test_any_bytes(content):
    for prefix in (b"", b"PK\x03\x04", b"\x93NUMPY"):
        with pytest.raises(GoldenError):
            golden_from_bytes(prefix + content)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_any_damage(tmp_path_factory, changes):
    content = bytearray(WHOLE)
    for place, value in changes:
        content[place] = value
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    path.write_bytes(content)
    try:
        assert isinstance(load_golden(path), Golden)
    except GoldenError as error:
        assert "damaged.npz" in str(error)  # noqa: PT017


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    JSON,
    st.sampled_from(["cases", "provenance", "case", "tensor", "name", "dtype", "shape", "seed", "extra"]),
)
def test_any_json(value, key):
    document, arrays = document_of(golden_of(y=np.ones(2)))
    case = document["cases"][0]
    if key == "case":
        document["cases"] = [value]
    elif key == "tensor":
        case["outputs"] = [value]
    elif key in ("name", "dtype", "shape"):
        case["outputs"][0][key] = value
    elif key in ("seed", "extra"):
        document["provenance"][key] = value
    else:
        document[key] = value
    try:
        golden_from_bytes(packed(document, **arrays))
    except GoldenError as error:
        assert str(error)  # noqa: PT017


class TestValidity:
    @pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
    @pytest.mark.parametrize(("bad", "text"), [(math.nan, "NaN"), (math.inf, "Inf"), (-math.inf, "-Inf")])
    def test_nonfinite_references_are_refused_unless_asked_for(self, dtype, bad, text):
        array = np.ones((2, 3), dtype)
        array[1, 0] = array[1, 2] = bad
        with pytest.raises(GoldenError) as info:
            golden_of(logits=array)
        assert f"reference output 'logits' of case 'case0' is {text} at [1, 0] (2 of 6 elements" in str(
            info.value
        )
        assert "allow_nonfinite" in info.value.mend
        allowed = Golden((Case("c", {}, {"y": array}),), replace(PROVENANCE, allows_nonfinite=True))
        assert_same(allowed, golden_from_bytes(golden_to_bytes(allowed)))

    def test_nonfinite_inputs_are_fine(self):
        Golden((Case("c", {"x": np.array([math.nan])}, {"y": np.ones(1)}),), PROVENANCE)

    def test_nothing_to_compare(self):
        with pytest.raises(GoldenError, match="has no case"):
            Golden((), PROVENANCE)
        with pytest.raises(GoldenError, match="case 'c' has no reference output"):
            Case("c", {"x": np.ones(1)}, {})

    def test_names(self):
        case = Case("c", {}, {"y": np.ones(1)})
        with pytest.raises(GoldenError, match="share a name: 'c'"):
            Golden((case, case), PROVENANCE)
        with pytest.raises(GoldenError, match="case 'd' has the outputs 'z', case 'c' has 'y'"):
            Golden((case, Case("d", {}, {"z": np.ones(1)})), PROVENANCE)

    @pytest.mark.parametrize("array", [np.array(["a"]), np.zeros(1, complex), np.array([None])])
    def test_dtypes(self, array):
        with pytest.raises(GoldenError, match="output 'y' of case 'c' is"):
            Case("c", {}, {"y": array})
        with pytest.raises(GoldenError, match="input 'x' of case 'c' is"):
            Case("c", {"x": array}, {"y": np.ones(1)})

    @pytest.mark.parametrize(
        "change", [{"seed": 1.5}, {"seed": True}, {"reference": None}, {"extra": {"a": 1}}]
    )
    def test_provenance(self, change):
        with pytest.raises(GoldenError, match="provenance"):
            replace(PROVENANCE, **change)


class TestSignature:
    golden = Golden(
        (Case("c", {"x": np.zeros((2, 3), np.float32)}, {"y": np.zeros((2, 4), np.float32)}),), PROVENANCE
    )

    def check(self, inputs: list[Info], outputs: list[Info]) -> None:
        self.golden.check_signature(
            {info.name: info for info in inputs}, {info.name: info for info in outputs}, where="test_a"
        )

    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn"])
    @pytest.mark.parametrize("shape", [(2, 3), ("batch", 3), (None, None), (-1, 3)])
    def test_fits(self, dtype, shape):
        self.check([Info("x", dtype, shape)], [Info("y", dtype, (2, "n"))])

    def test_every_difference_is_listed(self):
        with pytest.raises(GoldenError) as info:
            self.check(
                [Info("x", "int64", (2, 5)), Info("mask", "bool", (2,))], [Info("logits", "float32", (2, 4))]
            )
        text = str(info.value)
        assert "input 'x': dtype float32 does not fit int64" in text
        assert "input 'x': shape [2, 3] does not fit [2, 5]" in text
        assert "input 'mask' is missing" in text
        assert "output 'logits' is missing" in text
        assert "the model has no output 'y'" in text
        assert "in: test_a" in text
        assert "--gptune-update-goldens" in text

    def test_rank_and_unsupported(self):
        with pytest.raises(GoldenError, match=r"shape \[2, 3\] does not fit \[batch\]"):
            self.check([Info("x", "float32", ("batch",))], [Info("y", "float32", (2, 4))])
        with pytest.raises(GoldenError, match="dtype string of the model is not supported"):
            self.check([Info("x", "string", (2, 3))], [Info("y", "float32", (2, 4))])

    def test_a_shape_that_its_own_model_contradicted(self):
        provenance = replace(PROVENANCE, extra={"undeclared_shapes": '["y"]'})
        golden = replace(self.golden, provenance=provenance)
        inputs, outputs = {"x": Info("x", "float32", (2, 3))}, {"y": Info("y", "float32", (1, "n", 9))}
        golden.check_signature(inputs, outputs)
        with pytest.raises(GoldenError, match=r"output 'y': shape \[2, 4\] does not fit"):
            self.golden.check_signature(inputs, outputs)
        with pytest.raises(GoldenError, match="dtype float32 does not fit int64"):
            golden.check_signature(inputs, {"y": Info("y", "int64", (1, "n", 9))})
        with pytest.raises(GoldenError, match="input 'x': shape"):
            golden.check_signature({"x": Info("x", "float32", (2, 5))}, outputs)

    @pytest.mark.parametrize("text", ["", "y", "{}", "[1]", "null"])
    def test_damaged_names_of_undeclared_shapes_excuse_nothing(self, text):
        provenance = replace(PROVENANCE, extra={"undeclared_shapes": text})
        assert provenance.undeclared_shapes == ()
