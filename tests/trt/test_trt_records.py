"""What outlives a build: the timing cache of a search, digests, layers, and kept engines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gptune.engines.base import BuildRequest, EngineFailedError
from pytest_gptune.engines.tensorrt.digests import (
    inspector_digest,
    layer_lines,
    normalised,
    plan_digest,
)
from pytest_gptune.engines.tensorrt.kept import check_kept, facts_of
from pytest_gptune.engines.tensorrt.timing_cache import TimingCacheFile
from pytest_gptune.reports.layers import layer_difference

LIBRARY, GPU = "tensorrt 11.1.0.106", "NVIDIA H200 9.0"


@pytest.fixture
def timings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TimingCacheFile:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return TimingCacheFile.within(tmp_path, LIBRARY, GPU)


def test_nothing_is_kept_at_first(timings: TimingCacheFile) -> None:
    assert timings.read() == (b"", "")


@pytest.mark.parametrize("data", [b"", b"\n", b"measured\n\x00\xff" * 100])
def test_what_is_kept_is_read_back(timings: TimingCacheFile, data: bytes) -> None:
    timings.write(data)
    assert timings.read() == (data, "")


def test_a_file_for_each_version_and_gpu(tmp_path: Path) -> None:
    files = [
        TimingCacheFile.within(tmp_path, library, gpu).path
        for library in (LIBRARY, "tensorrt 11.4.0.106")
        for gpu in (GPU, "NVIDIA L4 8.9")
    ]
    assert len(set(files)) == 4


def test_a_foreign_cache_is_discarded_and_named(timings: TimingCacheFile) -> None:
    TimingCacheFile(timings.path, "tensorrt 10.16.1.11", GPU).write(b"measured")
    data, warning = timings.read()
    assert data == b""
    assert "is of tensorrt 10.16.1.11 on NVIDIA H200 9.0 and was discarded" in warning


@given(position=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_cache_is_discarded(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int, cut: bool
) -> None:
    folder = tmp_path_factory.getbasetemp()
    timings = TimingCacheFile(folder / "x.timing", LIBRARY, GPU)
    if not (folder / "whole").exists():
        timings.write(bytes(range(256)))
        (folder / "whole").write_bytes(timings.path.read_bytes())
    whole = (folder / "whole").read_bytes()
    at = position % len(whole)
    damaged = whole[:at] if cut else whole[:at] + bytes([value]) + whole[at + 1 :]
    timings.path.write_bytes(damaged)
    data, warning = timings.read()
    # White space within the header is no damage.
    assert (data, warning) == (bytes(range(256)), "") or (data == b"" and "discarded" in warning)
    if at > whole.index(b"\n") and damaged != whole:
        assert "is damaged and was discarded" in warning


def inspector(
    tactic: str = "sm90_gemm_0x1234567890abcdef", name: str = "gemm", keys_first: bool = True
) -> str:
    layer = {
        "Name": name,
        "LayerType": "gemm",
        "TacticName": tactic,
        "Outputs": [{"Name": "y", "Format/Datatype": "Float"}],
    }
    ordered = layer if keys_first else dict(reversed(layer.items()))
    return json.dumps({"Layers": [ordered], "Bindings": ["x", "y"]})


def test_an_engine_is_what_its_inspector_tells() -> None:
    digest = inspector_digest(inspector(), "model")
    assert inspector_digest(inspector(keys_first=False), "model") == digest
    assert inspector_digest(inspector(tactic="sm90_other"), "model") != digest
    # Equal layers over other weights are another engine.
    assert inspector_digest(inspector(), "another model") != digest
    assert plan_digest(b"plan") != plan_digest(b"plam")


def test_addresses_do_not_tell_engines_apart_and_tactics_do() -> None:
    first, second = "(0x7f12ab34cd56) 0x7f12ab34cd56 0x7f00ab34cd56", "(0x7e12ab34cd99) 0x7e12ab34cd99 0x7e1"
    assert normalised(first) == "(@0) @0 @1"
    assert normalised(second) == "(@0) @0 0x7e1"
    assert normalised("0x89c2d153627e52ba") == "0x89c2d153627e52ba"


def test_layers_and_what_changed_among_them() -> None:
    before = layer_lines(inspector())
    assert before == ("gemm | gemm | sm90_gemm_0x1234567890abcdef | Float",)
    after = layer_lines(inspector(tactic="sm90_other"))
    assert layer_difference(before, before) == ()
    assert layer_difference(before, after) == (f"-{before[0]}", f"+{after[0]}")
    assert layer_lines(json.dumps({"Layers": ["gemm"]})) == ("gemm",)
    assert layer_lines("not JSON") == layer_lines("[]") == layer_lines("{}") == ()


REQUEST = BuildRequest("model.onnx", "a" * 64, (("-copy_ppg", "off"),))


def test_an_engine_that_is_what_was_recorded_is_loaded() -> None:
    facts = facts_of(b"plan", REQUEST, LIBRARY, "9.0")
    check_kept(facts, facts)
    check_kept(facts_of(b"plan", REQUEST, LIBRARY, "8.9,9.0"), facts)


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (facts_of(b"plam", REQUEST, LIBRARY, "9.0"), "plan sha256 is "),
        (
            facts_of(b"plan", REQUEST, "tensorrt 11.4.0.106", "9.0"),
            "library is tensorrt 11.4.0.106, here it is",
        ),
        (facts_of(b"plan", REQUEST, LIBRARY, "8.9"), "compute capability is 8.9, here it is 9.0"),
        (
            facts_of(b"plan", BuildRequest("m", "a" * 64), LIBRARY, "9.0"),
            "route is default, here it is -copy_ppg=off",
        ),
        (
            facts_of(b"plan", BuildRequest("m", "b" * 64, REQUEST.route), LIBRARY, "9.0"),
            "model sha256 is bbb",
        ),
        ({"library": LIBRARY}, "plan sha256 is not recorded"),
        ({}, "no record of what it is"),
    ],
)
def test_what_does_not_match_is_said_before_anything_is_loaded(kept: dict[str, str], said: str) -> None:
    with pytest.raises(EngineFailedError) as caught:
        check_kept(kept, facts_of(b"plan", REQUEST, LIBRARY, "9.0"))
    assert said in caught.value.what
    assert caught.value.mend
