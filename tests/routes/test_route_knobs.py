from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from pytest_gptune.routes import Knob, KnobSpace, RouteError

COPY = {
    "option": "-copy_ppg",
    "allowed_values": "-copy_ppg=[on|off]",
    "default_value": "on",
    "help": "Copy propagation.",
}


def space_of(**changes: Any) -> KnobSpace:
    option = {key: value for key, value in {**COPY, **changes}.items() if value is not ...}
    return KnobSpace.from_json(json.dumps({"tuner_version": "2", "tuner_options": [option]}))


def test_values_are_read() -> None:
    (knob,) = space_of()
    assert knob == Knob("-copy_ppg", ("on", "off"), "on", "Copy propagation.")
    assert knob.bounded
    assert knob.allows("off")
    assert not knob.allows("ON")
    assert not knob.prunes("maybe")
    (trimmed,) = space_of(allowed_values="-copy_ppg=[ on || off ]")
    assert trimmed.values == ("on", "off")
    (single,) = space_of(allowed_values="-copy_ppg=on")
    assert single.values == ("on",)
    assert space_of(help=..., later_key=[1]).knobs[0].help == ""


@pytest.mark.parametrize("allowed", ["int32_t", "[0|1|...]", "int64_t"])
def test_open_ended_knobs(allowed: str) -> None:
    (knob,) = space_of(allowed_values=f"-copy_ppg={allowed}", default_value="16")
    assert knob.values is None
    assert not knob.bounded
    assert [v for v in ("0", "-3", "32", "007", "x", "int32_t", "", "...", "1.5", "٣") if knob.allows(v)] == [
        "0",
        "-3",
        "32",
    ]


def test_an_open_ended_knob_of_words_takes_words() -> None:
    (knob,) = space_of(allowed_values="-copy_ppg=string", default_value="")
    assert [v for v in ("fast", "string", "...", "", "a b") if knob.allows(v)] == ["fast"]


def test_pruned_values() -> None:
    (knob,) = space_of(pruned_values="-copy_ppg=[half|full]", pruned_reason="old device")
    assert knob.pruned == ("half", "full")
    assert knob.pruned_reason == "old device"
    assert knob.prunes("half")
    assert not knob.allows("half")
    assert not knob.prunes("on")
    (threads,) = space_of(
        allowed_values="-copy_ppg=[0|1|2]", default_value="0", pruned_values="-copy_ppg=int32_t"
    )
    assert threads.pruned is None
    assert [v for v in ("0", "2", "3", "128", "-1", "03", "x", "9" * 99) if threads.prunes(v)] == ["3", "128"]
    (limit,) = space_of(allowed_values="-copy_ppg=int32_t", default_value="1", pruned_values="-copy_ppg=[64]")
    assert limit.prunes("64")
    assert not limit.allows("64")
    assert limit.allows("63")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"option": 3}, "option of knob 1 is of type int"),
        ({"option": ...}, "option of knob 1 is missing"),
        ({"option": "copy_ppg", "allowed_values": "copy_ppg=[on|off]"}, "'copy_ppg'"),
        ({"option": "-", "allowed_values": "-=[on|off]"}, "'-'"),
        ({"option": "-a b", "allowed_values": "-a b=[on|off]"}, "'-a b'"),
        ({"option": "-\ud800", "allowed_values": "-\ud800=[on|off]"}, "ud800"),
        ({"allowed_values": "-other=[on|off]"}, "'-other=[on|off]'"),
        ({"allowed_values": "-copy_ppg=[]"}, "has no values"),
        ({"allowed_values": "-copy_ppg=[on|off|on]"}, "'on' twice"),
        ({"allowed_values": "-copy_ppg=[on|o,ff]"}, "'o,ff'"),
        ({"allowed_values": "-copy_ppg=[on|[off]]"}, "'[off]'"),
        ({"allowed_values": "-copy_ppg=[on|int32_t]"}, "'int32_t'"),
        ({"allowed_values": None}, "allowed_values of '-copy_ppg' is missing"),
        ({"default_value": "maybe"}, "'maybe'"),
        ({"default_value": 1}, "default_value of '-copy_ppg' is of type int"),
        ({"default_value": ...}, "default_value of '-copy_ppg' is missing"),
        ({"allowed_values": "-copy_ppg=off"}, "'on'"),
        ({"allowed_values": "-copy_ppg=int32_t", "default_value": "a b"}, "'a b'"),
        ({"help": ["x"]}, "help of '-copy_ppg' is of type list"),
        ({"pruned_values": "-copy_ppg=[on]"}, "'on' twice"),
        ({"pruned_values": {}}, "pruned_values of '-copy_ppg' is of type dict"),
        ({"pruned_reason": 1}, "pruned_reason"),
        (
            {"allowed_values": "-copy_ppg=int32_t", "pruned_values": "-copy_ppg=int32_t"},
            "open-ended and prunes every integer",
        ),
    ],
)
def test_a_malformed_knob_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(RouteError) as caught:
        space_of(**changes)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "null",
        "[]",
        "3",
        "9" * 10_000,
        "[" * 200_000,
        '{"a":' * 200_000,
        "{}",
        '{"tuner_version": 1, "tuner_options": []}',
        '{"tuner_version": "1"}',
        '{"tuner_version": "1", "tuner_options": {}}',
        '{"tuner_version": "1", "tuner_options": [[]]}',
        '{"tuner_version": "1", "tuner_options": [null]}',
        json.dumps({"tuner_version": "1", "tuner_options": [COPY, COPY]}),
    ],
    ids=lambda text: text[:30],
)
def test_a_malformed_document_is_a_route_error(text: str) -> None:
    with pytest.raises(RouteError) as caught:
        KnobSpace.from_json(text)
    assert caught.value.mend


def test_a_compiler_without_a_tuner_is_told_apart_from_bad_json() -> None:
    with pytest.raises(RouteError, match="this compiler has no tuner"):
        KnobSpace.from_json("")


def test_looking_knobs_up() -> None:
    space = KnobSpace(
        "1",
        (
            Knob("-copy_ppg", ("on", "off"), "on", "Copy propagation."),
            Knob("-kgen:codegen:cuda_tile", ("0", "1"), "1", "Tile codegen."),
            Knob("-slice", ("on", "off"), "on", "Slices."),
        ),
    )
    assert len(space) == 3
    assert [knob.name for knob in space] == ["-copy_ppg", "-kgen:codegen:cuda_tile", "-slice"]
    assert space.get("-slice") is space.knobs[2]
    assert space.get("slice") is None
    assert space.nearest("copy_pgg") == "-copy_ppg"
    assert space.nearest("-COPY_PPG") == "-copy_ppg"
    assert space.nearest("cuda_tile") == "-kgen:codegen:cuda_tile"
    assert space.nearest("zzzzzz") is None
    assert KnobSpace("1", (Knob("-CopyPpg", None, "1", ""),)).nearest("copypgg") == "-CopyPpg"
    # Not compared at all: difflib would need minutes for a pasted file.
    assert KnobSpace("1", (Knob("-" + "k" * 300, None, "1", ""),)).nearest("-" + "k" * 299) is None
    assert [knob.name for knob in space.filter("PROPAG")] == ["-copy_ppg"]
    assert [knob.name for knob in space.filter("CoDeGen")] == ["-kgen:codegen:cuda_tile"]
    assert space.filter("") == space
    assert space.filter("codegen").tuner_version == "1"


def test_defaults_digest_sees_names_and_defaults_only() -> None:
    one, two = Knob("-a", ("0", "1"), "0", "help"), Knob("-b", None, "7", "")
    digest = KnobSpace("1", (one, two)).defaults_digest
    assert digest == hashlib.sha256(b"-a=0\n-b=7").hexdigest()
    assert KnobSpace("2", (two, Knob("-a", ("0",), "0", "other"))).defaults_digest == digest
    assert KnobSpace("1", (Knob("-a", ("0", "1"), "1", "help"), two)).defaults_digest != digest
    assert KnobSpace("1", (one,)).defaults_digest != digest


def test_notes_are_kept_and_are_texts() -> None:
    space = KnobSpace("1", (), ("no routes here",))
    assert KnobSpace.from_json(space.to_json()) == space
    assert space.filter("nothing").notes == ("no routes here",)
    assert "notes" not in KnobSpace("1", ()).to_json()
    with pytest.raises(RouteError, match="a note of the knob space"):
        KnobSpace.from_json('{"tuner_version": "1", "tuner_options": [], "notes": [1]}')
