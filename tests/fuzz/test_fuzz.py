"""Whatever is in a file or an option, the answer is a value or an error of ours.

The short form takes a hundred inputs each; ``python -m pytest tests/fuzz --hypothesis-profile long`` takes
100,000.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gptune.accuracy import Case, Golden, Provenance, golden_from_bytes, golden_to_bytes
from pytest_gptune.cli import main
from pytest_gptune.errors import GptuneError
from pytest_gptune.records.baseline import BaselineEntry, load_baseline
from pytest_gptune.records.priors import helpful_values
from pytest_gptune.records.tuning_cache import read_cache
from pytest_gptune.routes import KnobSpace, Route, RouteExpression

_RECORDED = Path(__file__).parents[1] / "data" / "route_expansion.json"
SPACE = KnobSpace.from_json(json.dumps(json.loads(_RECORDED.read_text())["knobs"]))

_WORDS = [knob.name for knob in SPACE] + ["on", "off", "0", "1", "int32_t", "..."]
_pieces = st.sampled_from([*_WORDS, "=", "[", "]", "|", " ", "\n", "#", "-", "\t", "\x00", "é"]) | st.text(
    max_size=3
)
expressions = st.lists(_pieces, max_size=30).map("".join)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def _golden_bytes() -> bytes:
    import numpy as np

    case = Case("case0", {"x": np.arange(4, dtype=np.float32)}, {"y": np.arange(4, dtype=np.float32)})
    return golden_to_bytes(Golden((case,), Provenance("0" * 64, "reference", date="2026-01-01T00:00:00Z")))


GOLDEN = _golden_bytes()

# Those of an entry, read off the class that is written.
BASELINE_KEYS = [field.name for field in fields(BaselineEntry)]


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """The content with some bytes replaced, cut off, or put in."""
    places = st.integers(0, len(content))
    edits = st.lists(st.tuples(places, st.integers(0, 8), st.binary(max_size=8)), min_size=1, max_size=4)

    def apply(found: list[tuple[int, int, bytes]]) -> bytes:
        data = bytearray(content)
        for place, gone, put in found:
            data[place : place + gone] = put
        return bytes(data)

    return edits.map(apply)


def only_our_errors(call, *arguments):
    try:
        return call(*arguments)
    except GptuneError as error:
        return None if str(error).strip() else pytest.fail("an error without a message")


@given(expressions)
def test_route_expressions(text):
    for call in (RouteExpression.parse, Route.parse):
        only_our_errors(call, text, SPACE)


@given(json_values | st.fixed_dictionaries({"tuner_version": st.just("1"), "tuner_options": json_values}))
def test_knob_json(value):
    only_our_errors(KnobSpace.from_json, json.dumps(value))


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "option": st.just("-k") | json_values,
                "allowed_values": st.sampled_from(["-k=[a|b]", "-k=int32_t", "-k=[]", "k"]) | json_values,
                "default_value": st.sampled_from(["a", "c"]) | json_values,
            }
        ),
        max_size=2,
    )
)
def test_knob_json_of_the_right_form(options):
    only_our_errors(KnobSpace.from_json, json.dumps({"tuner_version": "1", "tuner_options": options}))


@given(st.binary(max_size=300) | damaged(GOLDEN))
def test_goldens(content):
    only_our_errors(golden_from_bytes, content)


@pytest.fixture(scope="module")
def fuzz_file(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "file"


@given(
    st.binary(max_size=100)
    | json_values.map(lambda v: json.dumps(v).encode())
    | st.fixed_dictionaries(dict.fromkeys(BASELINE_KEYS, json_values)).map(
        lambda entry: json.dumps({"schema": 1, "entries": [entry]}).encode()
    )
)
def test_baselines(fuzz_file, content):
    fuzz_file.write_bytes(content)
    only_our_errors(load_baseline, fuzz_file)


@given(
    st.binary(max_size=100)
    | st.lists(json_values, max_size=4).map(lambda rows: "\n".join(map(json.dumps, rows)).encode())
    | st.lists(
        st.fixed_dictionaries({"build_route": json_values, "record": json_values, "tuning": json_values}),
        max_size=3,
    ).map(lambda rows: b"".join(json.dumps(row).encode() + b"\n" for row in rows))
)
def test_caches(fuzz_file, content):
    fuzz_file.write_bytes(content)
    found = only_our_errors(read_cache, fuzz_file)
    for tuning, rows in (found.rows if found else {}).items():
        for key in rows:
            found.record(tuning, key)
    for command in ("show", "best", "what-if", "effects"):
        assert main([command, str(fuzz_file), *(["--json"] if command == "what-if" else [])]) in (0, 1, 2)


_latencies = st.fixed_dictionaries({"interval": json_values | st.lists(st.floats(), max_size=2)})
_losses = st.dictionaries(st.text(max_size=2), st.floats() | json_values, max_size=2)
_rows = st.fixed_dictionaries(
    {"build_route": st.sampled_from(["-a=1", "-a=2 -b=1", "-b=\x00"])},
    optional={
        "status": st.sampled_from(["passed", "inaccurate"]) | json_values,
        "latency_s": st.floats() | st.integers(),
        "gpu_time": st.floats() | json_values,
        "accuracy_loss": _losses | json_values,
        "engine_digest": st.just("d") | json_values,
        "record": st.fixed_dictionaries(
            {"latency": _latencies | json_values, "needed_epsilon": st.none() | st.floats() | json_values}
        ),
    },
)
_headers = st.fixed_dictionaries(
    {},
    optional={
        "default_build_route": st.sampled_from(["-a=1", "", "-a"]) | json_values,
        "accuracy_parameter": st.fixed_dictionaries({"epsilon": st.floats() | _losses}) | json_values,
        "converted_from": json_values,
        "tuner_version": json_values,
    },
)


# A round of the finals that is right but for some of its figures: numbers beyond every range among them.
_figures = st.sampled_from([10**400, -1, 0, float("inf"), float("nan"), [], [[]], [[0.0]], "x", None, {}])
_rounds = st.fixed_dictionaries(
    {
        "kind": st.just("finals"),
        "tuning": st.just("t"),
        "signature": st.just("s"),
        "latency_kind": st.just("host_wall"),
        "statistic": st.just("p25"),
        "blocks": st.fixed_dictionaries({"a": st.just([[0.5]]) | st.lists(st.lists(_figures, max_size=2))}),
        "counts": st.fixed_dictionaries({"a": st.just(3) | _figures}),
        "clocks_hz": st.fixed_dictionaries({"a": st.none() | _figures}),
        "digests": st.fixed_dictionaries({"a": st.just("d") | _figures}),
    }
)


@given(st.lists(_rounds, max_size=3))
def test_rounds_of_the_finals_in_caches(fuzz_file, rounds):
    fuzz_file.write_text("".join(json.dumps(line) + "\n" for line in rounds))
    for round_ in read_cache(fuzz_file).finals.get("t", ()):
        assert all(0 < s < float("inf") for block in round_.blocks["a"] for s in block)


@given(_headers, st.lists(_rows, max_size=4))
def test_caches_of_the_right_form(fuzz_file, header, rows):
    fuzz_file.write_text("".join(json.dumps(line) + "\n" for line in [header, *rows]))
    for command in (("show",), ("best",), ("what-if",), ("what-if", "--json"), ("effects",)):
        assert main([command[0], str(fuzz_file), *command[1:]]) in (0, 1, 2)
    out = fuzz_file.with_name("out")
    out.unlink(missing_ok=True)
    assert main(["convert", str(fuzz_file), str(out)]) in (0, 2)
    if out.exists():
        assert main(["show", str(out)]) == 0
    only_our_errors(lambda: helpful_values([read_cache(fuzz_file)]))


class FakeConfig:
    """Answers as pytest's configuration does, with ini values of the declared types."""

    rootpath = Path()
    invocation_params = SimpleNamespace(dir=Path())

    def __init__(self, ini):
        self._ini = ini

    def getoption(self, name, default=None):
        return None

    def getini(self, name):
        return self._ini.get(name)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "gptune_epsilon": st.floats(),
            "gptune_atol": st.floats(),
            "gptune_rtol": st.floats(),
            "gptune_max_regression": st.floats(),
            "gptune_max_routes": st.integers(),
            "gptune_final_builds": st.integers(),
            "gptune_gate": st.text(max_size=8),
            "gptune_metric": st.text(max_size=8),
            "gptune_search": st.text(max_size=8),
            "gptune_backend": st.text(max_size=8),
            "gptune_routes": expressions,
            "gptune_ambiguous": st.text(max_size=8),
        },
    )
)
def test_ini_values(ini):
    from pytest_gptune.accuracy import AccuracyGate, find_metric
    from pytest_gptune.plugin.settings import MarkerArguments, resolve

    settings = only_our_errors(resolve, FakeConfig(ini), MarkerArguments(), "test")
    if settings is not None and settings.epsilon is not None:
        only_our_errors(
            lambda: AccuracyGate(
                find_metric(settings.metric, {}), settings.epsilon, settings.atol, settings.rtol
            )
        )
