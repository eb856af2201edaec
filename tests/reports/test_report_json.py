"""The JSON report, held to its schema."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_records import BASELINE, MS, full_report, latency, ratio, record, report, spec, verdict

from pytest_gptune import __version__
from pytest_gptune.engines.base import LatencyKind
from pytest_gptune.records.route_record import Latency, RouteRecord
from pytest_gptune.reports import json_report as module
from pytest_gptune.reports.json_report import json_report, write_json_report
from pytest_gptune.reports.tuning_report import TuningReport
from pytest_gptune.search.base import ROUTE_STATUSES
from pytest_gptune.timing.finals import FinalsStop
from pytest_gptune.timing.protocol import StopReason
from pytest_gptune.timing.statistics import Ratio, Statistic
from pytest_gptune.verdict import GATES, Outcome, Verdict

SCHEMA: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "report.schema.json").read_text("utf-8")
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def valid(reports: list[TuningReport]) -> dict[str, Any]:
    """The report of these tunings as a reader of the file sees it, checked against the schema."""
    document: dict[str, Any] = json.loads(json.dumps(json_report(reports), allow_nan=False))
    VALIDATOR.validate(document)
    return document


def test_the_schema_is_one_and_names_every_property() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["schema"]["const"] == module.SCHEMA
    for name in ("test", "route", "latency", "verdict"):
        definition = SCHEMA["$defs"][name]
        assert definition["additionalProperties"] is False
        assert set(definition["required"]) == set(definition["properties"])


def test_the_schemas_words_are_the_codes() -> None:
    definitions = SCHEMA["$defs"]
    assert set(definitions["route"]["properties"]["status"]["enum"]) == set(ROUTE_STATUSES)
    outcomes = definitions["verdict"]["properties"]["outcome"]["enum"]
    assert set(outcomes) == set(get_args(Outcome))
    gates = definitions["verdict"]["properties"]["gate"]["enum"]
    assert set(gates) == (set(GATES) - {"auto"}) | {""}
    stops = definitions["latency"]["properties"]["stop_reason"]["enum"]
    assert set(stops) == set(get_args(StopReason)) | set(get_args(FinalsStop))
    tests = definitions["test"]["properties"]
    assert set(tests["latency_kind"]["enum"]) == {*get_args(LatencyKind), None}
    assert set(tests["statistic"]["enum"]) == {*get_args(Statistic), None}


def test_a_run_without_tunings() -> None:
    assert valid([]) == {"schema": 1, "environment": {"pytest_gptune": __version__}, "tests": []}


def test_a_full_tuning() -> None:
    document = valid([full_report(), report([record()])])
    first, second = document["tests"]
    assert first["nodeid"].endswith("test_encoder[fp16]")
    assert first["model"] == {"path": "/project/models/encoder.onnx", "sha256": "a" * 64}
    assert first["epsilon"] == {"logits": 0.01, "ids": 0.0}
    assert first["shapes"] == {"tokens": [8, 128]}
    assert first["default"] == "default"
    assert first["winner"] in first["co_winners"]
    assert set(first["finalists"]) >= set(first["co_winners"])
    assert first["latency_kind"] == "host_wall"
    assert first["verdict"]["ratio"] == 1.11
    assert first["verdict"]["interval"] == [1.08, 1.14]
    assert first["verdict"]["builds"] == 8
    assert first["verdict"]["baseline"]["latency_s"] == 2 * MS
    assert second["winner"] is None
    assert document["environment"]["onnxruntime"]["tuner_version"] == "1.32.0"


def test_winner_default_and_finalists_are_ids_of_routes() -> None:
    (test,) = valid([full_report()])["tests"]
    ids = {route["id"] for route in test["routes"]}
    assert {test["default"], test["winner"], *test["co_winners"], *test["finalists"]} <= ids


def test_a_route_that_did_not_run_is_no_id() -> None:
    tuning = report([record("-ort:a=1")], winner="-ort:gone=1", co_winners=("-ort:gone=1", "-ort:a=1"))
    (test,) = valid([tuning])["tests"]
    assert test["default"] is None
    assert test["winner"] is None
    assert test["co_winners"] == ["ort:a=1"]


def test_what_is_not_finite_is_null() -> None:
    inf, nan = math.inf, math.nan
    broken = record(
        "-ort:a=1",
        status="inaccurate",
        losses={"y": inf, "z": nan, "fine": 0.5},
        needed_epsilon=inf,
        latency=latency(1 * MS, p99=nan, interval=(-inf, inf)),
        speedup=nan,
        build_seconds=inf,
    )
    judged = verdict("ambiguous", "noise", gate="paired", ratio=Ratio(1.0, 0.0, inf, 1), limit=inf)
    tuning = report([record(), broken], judged, spec=spec(epsilon=inf))
    (test,) = valid([tuning])["tests"]
    route = test["routes"][1]
    assert route["loss"] == {"y": None, "z": None, "fine": 0.5}
    assert route["needed_epsilon"] is route["speedup"] is route["build_seconds"] is None
    assert route["latency"]["p99"] is None
    assert route["latency"]["interval"] == [None, None]
    assert test["verdict"]["interval"] == [0.0, None]
    assert test["verdict"]["limit"] is None
    assert test["epsilon"] is None


FLOATS = st.floats(allow_nan=True, allow_infinity=True)
TEXT = st.text(max_size=20)


@st.composite
def latencies(draw: st.DrawFn) -> Latency:
    figures = dict.fromkeys(("min", "p25", "median", "mean", "p90", "p95", "p99"))
    return latency(
        draw(FLOATS),
        **{name: draw(FLOATS) for name in figures},
        samples=draw(st.integers(0, 10**9)),
        interval=draw(st.none() | st.tuples(FLOATS, FLOATS)),
        stop_reason=draw(st.sampled_from([*get_args(StopReason), *get_args(FinalsStop)])),
        statistic=draw(st.sampled_from(["p25", "median"])),
        latency_kind=draw(st.sampled_from(get_args(LatencyKind))),
    )


@st.composite
def records(draw: st.DrawFn) -> RouteRecord:
    return record(
        draw(TEXT),
        None,
        draw(st.sampled_from(ROUTE_STATUSES)),
        id=draw(st.text(min_size=1, max_size=20)),
        losses=draw(st.dictionaries(TEXT, FLOATS, max_size=3)),
        needed_epsilon=draw(st.none() | FLOATS),
        latency=draw(st.none() | latencies()),
        build_seconds=draw(st.none() | FLOATS),
        builds=draw(st.integers(0, 20)),
        engine_digest=draw(TEXT),
        engine_bytes=draw(st.none() | st.integers(0, 2**40)),
        graph=draw(st.booleans()),
        speedup=draw(st.none() | FLOATS),
        speedup_interval=draw(st.none() | st.tuples(FLOATS, FLOATS)),
        error=draw(TEXT),
    )


@st.composite
def reports(draw: st.DrawFn) -> TuningReport:
    routes = draw(st.lists(records(), max_size=5, unique_by=(lambda r: r.key, lambda r: r.id)))
    keys = [item.key for item in routes]
    chosen = st.lists(st.sampled_from(keys), unique=True) if keys else st.just([])
    epsilon = draw(st.none() | FLOATS | st.dictionaries(TEXT, FLOATS, max_size=2))
    return report(
        routes,
        Verdict(
            draw(st.sampled_from(get_args(Outcome))),
            draw(TEXT),
            draw(st.sampled_from(["", "paired", "absolute", "relative", "off"])),
            draw(st.none() | st.builds(Ratio, FLOATS, FLOATS, FLOATS, st.integers(1, 20))),
            draw(FLOATS),
            tuple(draw(st.lists(TEXT, max_size=2))),
            draw(TEXT),
            draw(TEXT),
            draw(FLOATS | st.none()),
            draw(st.sampled_from([{}, BASELINE])),
        ),
        spec=spec(epsilon=epsilon, tuning=draw(TEXT), pruned=(("-ort:a", draw(TEXT), draw(TEXT)),)),
        winner=draw(st.sampled_from([*keys, None])),
        co_winners=tuple(draw(chosen)),
        finalists=tuple(draw(chosen)),
        shapes=draw(
            st.dictionaries(TEXT, st.lists(st.integers(0, 10**6), max_size=4).map(tuple), max_size=3)
        ),
        cases=tuple(draw(st.lists(TEXT, max_size=3))),
        notes=tuple(draw(st.lists(TEXT, max_size=3))),
    )


def only_null_for_what_is_not_finite(given: Any, written: Any) -> None:
    if isinstance(given, float):
        assert written == (given if math.isfinite(given) else None)
    elif isinstance(given, dict):
        for name, value in given.items():
            only_null_for_what_is_not_finite(value, written[name])
    elif isinstance(given, (tuple, list)):
        for value, other in zip(given, written, strict=True):
            only_null_for_what_is_not_finite(value, other)
    else:
        assert written == given


@settings(deadline=None, max_examples=60)
@given(st.lists(reports(), max_size=2))
def test_any_tuning_is_valid(tunings: list[TuningReport]) -> None:
    document = valid(tunings)
    for tuning, test in zip(tunings, document["tests"], strict=True):
        for item, route in zip(tuning.routes, test["routes"], strict=True):
            plain = item.as_plain()
            plain["loss"] = plain.pop("losses")
            only_null_for_what_is_not_finite(
                {name: plain[name] for name in route if name != "latency"},
                {name: value for name, value in route.items() if name != "latency"},
            )
            if item.latency is not None:
                figures = {name: getattr(item.latency, name) for name in route["latency"]}
                only_null_for_what_is_not_finite(figures, route["latency"])


def broken_reports() -> list[tuple[str, Any]]:
    def changed(change: Any) -> dict[str, Any]:
        document = json.loads(json.dumps(json_report([full_report()])))
        change(document)
        return document

    return [
        ("schema", changed(lambda d: d.update(schema=2))),
        ("extra", changed(lambda d: d.update(extra=1))),
        ("status", changed(lambda d: d["tests"][0]["routes"][0].update(status="fine"))),
        ("field", changed(lambda d: d["tests"][0]["routes"][0].update(wall_s=1.0))),
        ("missing", changed(lambda d: d["tests"][0].pop("verdict"))),
        ("verdict", changed(lambda d: d["tests"][0]["verdict"].update(outcome="okay"))),
        ("interval", changed(lambda d: d["tests"][0]["verdict"].update(interval=[1.0]))),
        ("text", changed(lambda d: d["tests"][0]["routes"][0].update(speedup="1x"))),
    ]


@pytest.mark.parametrize(("name", "document"), broken_reports(), ids=lambda value: str(value)[:10])
def test_the_schema_refuses_what_is_wrong(name: str, document: Any) -> None:
    assert not VALIDATOR.is_valid(document)


def test_the_file_is_the_report(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "report.json"
    write_json_report(path, [full_report()])
    text = path.read_text("utf-8")
    assert text.endswith("}\n")
    assert json.loads(text) == json.loads(json.dumps(json_report([full_report()])))


def test_names_that_are_not_utf8_are_escaped(tmp_path: Path) -> None:
    """A path of bytes that are no UTF-8 has lone surrogates; the run must not end for them."""
    path = tmp_path / "report.json"
    tuning = replace(report([record(error="gr\u00fc\u00dfe \udce4")]), spec=spec(tuning="a\udc80b \u4f60"))
    write_json_report(path, [tuning])
    (test,) = json.loads(path.read_text("utf-8"))["tests"]
    assert test["nodeid"] == "a\udc80b \u4f60"
    assert test["routes"][0]["error"] == "gr\u00fc\u00dfe \udce4"


def test_a_ratio_of_one_build_is_unbounded_not_absent() -> None:
    judged = verdict("ambiguous", "noise", gate="paired", ratio=ratio(1.0, 0.0, math.inf, 1))
    (test,) = valid([report([record()], judged)])["tests"]
    assert test["verdict"]["interval"] == [0.0, None]
