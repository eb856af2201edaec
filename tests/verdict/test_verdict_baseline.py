"""The baseline file and the fingerprint: what is written is read again, and nothing else is believed."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from verdict_records import entry

from pytest_gptune.engines.base import Environment
from pytest_gptune.records.baseline import (
    Baseline,
    BaselineError,
    BaselineSchemaError,
    DefaultRecord,
    load_baseline,
    save_baseline,
    select_entry,
    shapes_text,
)
from pytest_gptune.records.fingerprint import DEVICE, SOFTWARE, Fingerprint
from pytest_gptune.records.route_record import Latency, RouteRecord, TuningSpec

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
POSITIVE = st.floats(1e-12, 1e9)
LOSS = st.none() | st.floats(0, 1e9)
INTERVAL = st.none() | st.tuples(POSITIVE, POSITIVE)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
FACTS = st.dictionaries(
    TEXT, st.none() | st.integers() | TEXT | st.dictionaries(TEXT, TEXT, max_size=2), max_size=3
)
ENTRIES = st.builds(
    entry,
    backend=TEXT,
    device_class=TEXT,
    shapes=st.dictionaries(
        TEXT, st.lists(st.integers(0, 10**6), max_size=4).map(tuple), min_size=1, max_size=3
    ),
    latency_kind=st.sampled_from(["host_wall", "device_queued", "device_waited"]),
    route=TEXT,
    latency_s=POSITIVE,
    interval=INTERVAL,
    builds=st.integers(0, 100),
    between_build_spread=st.none() | st.floats(0, 1),
    default=st.none() | st.builds(DefaultRecord, POSITIVE, INTERVAL, LOSS),
    calibration_s=st.none() | POSITIVE,
    loss=LOSS,
    epsilon=st.floats(0, 1e6) | st.dictionaries(TEXT, st.floats(0, 1e6), max_size=3),
    fingerprint=st.builds(Fingerprint, st.dictionaries(TEXT, FACTS, max_size=2), FACTS),
)
QUICKLY = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(folder: Path, content: bytes | str) -> Baseline | None:
    path = folder / "x.baseline.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return load_baseline(path)


def plain(folder: Path, **values: Any) -> dict[str, Any]:
    """The JSON of a baseline of one entry."""
    save_baseline(folder / "plain.json", Baseline((entry(**values),)))
    document = json.loads((folder / "plain.json").read_text())
    assert isinstance(document, dict)
    return document


class TestRoundTrip:
    @QUICKLY
    @given(st.lists(ENTRIES, max_size=3))
    def test_what_is_saved_is_loaded(self, tmp_path: Path, entries: list[Any]) -> None:
        path = tmp_path / "folder" / "x.baseline.json"
        save_baseline(path, Baseline(tuple(entries)))
        assert load_baseline(path) == Baseline(tuple(entries))

    def test_saving_what_was_loaded_changes_no_byte(self, tmp_path: Path) -> None:
        first, second = tmp_path / "first.json", tmp_path / "second.json"
        save_baseline(first, Baseline((entry(), entry(backend="other"))))
        loaded = load_baseline(first)
        assert loaded is not None
        save_baseline(second, loaded)
        assert first.read_bytes() == second.read_bytes()

    def test_a_path_that_is_no_utf8(self, tmp_path: Path) -> None:
        odd = Baseline((entry(model_path="models/net\udcff.onnx"),))
        save_baseline(tmp_path / "x.json", odd)
        assert load_baseline(tmp_path / "x.json") == odd

    def test_a_missing_file_is_no_baseline(self, tmp_path: Path) -> None:
        assert load_baseline(tmp_path / "x.json") is None

    def test_a_key_of_a_later_version_is_passed_over(self, tmp_path: Path) -> None:
        document = plain(tmp_path)
        document["entries"][0]["energy_j"] = 1.0
        document["comment"] = "by hand"
        assert read(tmp_path, json.dumps(document)) == Baseline((entry(),))

    def test_the_file_ends_in_a_newline_and_has_a_line_for_each_field(self, tmp_path: Path) -> None:
        save_baseline(tmp_path / "x.json", Baseline((entry(),)))
        text = (tmp_path / "x.json").read_text()
        assert text.endswith("}\n")
        assert '      "latency_s": 0.001,\n' in text


class TestDamage:
    @QUICKLY
    @given(st.binary(max_size=200))
    def test_any_bytes_give_our_error_or_a_baseline(self, tmp_path: Path, content: bytes) -> None:
        with contextlib.suppress(BaselineError):
            assert isinstance(read(tmp_path, content), Baseline)

    @QUICKLY
    @given(JSON)
    def test_any_json_gives_our_error_or_a_baseline(self, tmp_path: Path, document: Any) -> None:
        for whole in (document, {"schema": 1, "entries": document}, {"schema": document, "entries": []}):
            try:
                result = read(tmp_path, json.dumps(whole))
            except BaselineError:
                continue
            assert isinstance(result, Baseline)

    @settings(QUICKLY, max_examples=200)
    @given(st.data())
    def test_any_value_in_any_place_gives_our_error_or_a_baseline_that_can_be_saved(
        self, tmp_path: Path, data: st.DataObject
    ) -> None:
        document = plain(tmp_path)
        target = document["entries"][0]
        for _ in range(data.draw(st.integers(0, 2))):
            inner = [value for value in target.values() if isinstance(value, dict) and value]
            target = data.draw(st.sampled_from(inner)) if inner else target
        target[data.draw(st.sampled_from(sorted(target)))] = data.draw(JSON)
        try:
            result = read(tmp_path, json.dumps(document))
        except BaselineError:
            return
        assert result is not None
        save_baseline(tmp_path / "again.json", result)
        assert load_baseline(tmp_path / "again.json") == result

    @pytest.mark.parametrize("cut", [0, 1, 10, 200, -3])
    def test_a_truncated_file_is_said_to_be(self, tmp_path: Path, cut: int) -> None:
        with pytest.raises(BaselineError, match="not JSON") as caught:
            read(tmp_path, json.dumps(plain(tmp_path))[:cut])
        assert "--gptune-update-baseline" in str(caught.value)

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
    def test_what_json_does_not_have_is_refused_everywhere(self, tmp_path: Path, number: str) -> None:
        text = json.dumps(plain(tmp_path)).replace('"host": "h"', f'"load": {number}')
        assert number in text
        with pytest.raises(BaselineError, match="not JSON"):
            read(tmp_path, text)

    @pytest.mark.parametrize("schema", [0, 2, "1", None, 1.5, [1], True])
    def test_another_schema_is_named(self, tmp_path: Path, schema: object) -> None:
        with pytest.raises(BaselineSchemaError, match="this version reads schema 1"):
            read(tmp_path, json.dumps({"schema": schema, "entries": []}))

    @pytest.mark.parametrize("document", [[], "text", 1, None, {}, {"entries": []}])
    def test_another_document_is_said_not_to_be_a_baseline(self, tmp_path: Path, document: object) -> None:
        with pytest.raises(BaselineError, match="not a baseline"):
            read(tmp_path, json.dumps(document))

    @pytest.mark.parametrize("key", sorted({*asdict(entry())} - {"objective"}))
    def test_a_missing_key_is_named(self, tmp_path: Path, key: str) -> None:
        document = plain(tmp_path)
        del document["entries"][0][key]
        with pytest.raises(BaselineError, match=f"cannot be read.*{key}"):
            read(tmp_path, json.dumps(document))

    @pytest.mark.parametrize("value", [0, -1e-3, "1", None, True, 10**400])
    def test_a_latency_is_a_positive_number(self, tmp_path: Path, value: object) -> None:
        document = plain(tmp_path)
        document["entries"][0]["latency_s"] = value
        with pytest.raises(BaselineError, match="cannot be read"):
            read(tmp_path, json.dumps(document))

    @pytest.mark.parametrize("value", [0, "", False, [], {}])
    def test_a_default_is_a_record_or_null(self, tmp_path: Path, value: object) -> None:
        document = plain(tmp_path)
        document["entries"][0]["default"] = value
        with pytest.raises(BaselineError, match="cannot be read"):
            read(tmp_path, json.dumps(document))

    def test_a_folder_in_its_place(self, tmp_path: Path) -> None:
        with pytest.raises(BaselineError, match="cannot read the baseline"):
            load_baseline(tmp_path)

    def test_nesting_without_end(self, tmp_path: Path) -> None:
        with pytest.raises(BaselineError, match="not JSON"):
            read(tmp_path, "[" * 200_000)


class TestEntries:
    @QUICKLY
    @given(st.lists(ENTRIES, max_size=5), ENTRIES)
    def test_updating_replaces_its_own_entry_only(self, entries: list[Any], new: Any) -> None:
        before = Baseline(tuple(entries))
        after = before.with_entry(new)
        assert [e for e in after.entries if e.key == new.key] == [new]
        assert [e for e in after.entries if e.key != new.key] == [
            e for e in before.entries if e.key != new.key
        ]

    @pytest.mark.parametrize(
        "other",
        [
            {"backend": "tensorrt"},
            {"device_class": "cpu:Two:2"},
            {"shapes": {"x": (8, 8)}},
            {"latency_kind": "device_queued"},
        ],
    )
    def test_what_makes_an_entry_of_its_own(self, other: dict[str, Any]) -> None:
        both = Baseline((entry(),)).with_entry(entry(**other))
        assert both.entries == (entry(), entry(**other))

    def test_another_latency_route_or_model_does_not(self) -> None:
        new = entry(latency_s=2e-3, route="", model_sha256="f" * 64, tuner_version="2.0")
        assert Baseline((entry(),)).with_entry(new).entries == (new,)

    def test_of_one_backend(self) -> None:
        both = Baseline((entry(), entry(backend="tensorrt")))
        assert both.of_backend("tensorrt").entries == (entry(backend="tensorrt"),)


class TestSelection:
    def select(self, *entries: Any, **values: Any) -> tuple[Any, str]:
        here: dict[str, Any] = {
            "device_class": "cpu:One:2",
            "shapes": {"x": (4, 8)},
            "latency_kind": "host_wall",
        }
        return select_entry(entries, **(here | values))

    def test_none_is_new(self) -> None:
        assert self.select() == (None, "new")

    def test_other_shapes(self) -> None:
        assert self.select(entry(), shapes={"x": (8, 8)}) == (None, "shapes")
        assert self.select(entry(), shapes={"y": (4, 8)}) == (None, "shapes")

    def test_other_kind(self) -> None:
        assert self.select(entry(), latency_kind="device_queued") == (None, "kind")

    def test_an_unknown_kind_fits_any(self) -> None:
        assert self.select(entry(), latency_kind=None) == (entry(), "")

    def test_shapes_come_before_the_kind(self) -> None:
        entries = entry(shapes={"x": (8, 8)}), entry(shapes={"x": (9, 9)}, latency_kind="device_queued")
        assert self.select(*entries) == (None, "shapes")

    def test_this_device_is_preferred(self) -> None:
        foreign = entry(device_class="cpu:Two:2", latency_s=2e-3)
        assert self.select(foreign, entry()) == (entry(), "")

    def test_another_device_serves_where_there_is_none_of_this(self) -> None:
        foreign = entry(device_class="cpu:Two:2")
        assert self.select(foreign) == (foreign, "")

    def test_of_other_devices_one_with_the_route_is_preferred(self) -> None:
        first, second = entry(device_class="cpu:Two:2"), entry(device_class="cpu:Three:2", route="-a=b")
        assert self.select(first, second, route="-a=b") == (second, "")
        assert self.select(first, second) == (first, "")

    def test_shapes_are_printed_in_the_order_of_names(self) -> None:
        assert shapes_text({"x": (1, 3), "mask": (1,), "scalar": ()}) == "mask[1] scalar[] x[1,3]"


class TestFingerprint:
    then = Fingerprint({SOFTWARE: {"backend": "one 1.0", "gone": 1}, DEVICE: {"cores": 2}}, {"host": "a"})

    def test_nothing_changed(self) -> None:
        assert self.then.changes(self.then, SOFTWARE) == []
        assert self.then.changes(self.then, DEVICE) == []

    def test_what_changed_is_named_with_both_values(self) -> None:
        now = Fingerprint({SOFTWARE: {"backend": "one 2.0", "new": [1]}, DEVICE: {"cores": 4}}, {"host": "b"})
        assert now.changes(self.then, SOFTWARE) == [
            "backend: one 1.0 -> one 2.0",
            "gone: 1 -> unset",
            "new: unset -> [1]",
        ]
        assert now.changes(self.then, DEVICE) == ["cores: 2 -> 4"]

    def test_what_is_noted_is_never_compared(self) -> None:
        now = replace(self.then, noted={"host": "b", "load": 3.0})
        assert now.changes(self.then, SOFTWARE) + now.changes(self.then, DEVICE) == []

    def test_a_part_that_is_missing(self) -> None:
        assert Fingerprint().changes(self.then, DEVICE) == ["cores: 2 -> unset"]
        assert Fingerprint().changes(Fingerprint(), DEVICE) == []

    def test_of_an_environment_and_back_through_json(self) -> None:
        environment = Environment("cpu:One:2", "1.0", {"backend": "one 1.0"}, {"cores": 2}, {"host": "a"})
        fingerprint = Fingerprint.of(environment)
        assert fingerprint.invalidating == {"software": {"backend": "one 1.0"}, "device": {"cores": 2}}
        assert Fingerprint.from_plain(json.loads(json.dumps(fingerprint.as_plain()))) == fingerprint


class TestPlainData:
    """Records cross to another process as JSON values."""

    def test_a_route_record(self) -> None:
        latency = Latency(1.0, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 7, (0.9, 1.1), "narrow", "p25", "host_wall")
        record = RouteRecord("a", "-a=b", "-a=b", 1, "passed", losses={"y": 0.5}, latency=latency)
        record = replace(record, speedup=1.5, speedup_interval=(1.25, 2.0))
        assert RouteRecord.from_plain(json.loads(json.dumps(record.as_plain()))) == record
        bare = RouteRecord("a", "-a=b", "-a=b", 1, "rejected", error="no")
        assert RouteRecord.from_plain(json.loads(json.dumps(bare.as_plain()))) == bare

    def test_a_tuning(self) -> None:
        from verdict_records import spec

        tuning = spec(pruned=(("-a", "4", "two cores"),), baseline_keys={"-a=b": "-a=b", "-gone=1": None})
        assert TuningSpec.from_plain(json.loads(json.dumps(tuning.as_plain()))) == tuning
