"""Which engines compare, where some have a graph and others that should have one do not."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gptune.records.graphs import set_apart
from pytest_gptune.records.route_record import Latency, RouteRecord

LATENCY = Latency(
    **dict.fromkeys(("value", "min", "p25", "median", "mean", "p90", "p95", "p99"), 1e-4),
    samples=100,
    interval=(0.9e-4, 1.1e-4),
    stop_reason="finals",
    statistic="median",
    latency_kind="device_queued",
)


def record(key: str, kind: str, status: str = "passed", **changes: Any) -> RouteRecord:
    """``kind``: ``graph``; ``missing``, one that could not be captured; ``none`` was asked for."""
    plain: dict[str, Any] = {
        "id": key or "default",
        "route": key,
        "key": key,
        "knobs": len(key.split()),
        "status": status,
        "latency": LATENCY,
        "graph": kind == "graph",
        "graph_missing": kind == "missing",
        "warnings": ("no CUDA graph: a layer waits",) if kind == "missing" else (),
    }
    return RouteRecord(**{**plain, **changes})


@pytest.mark.parametrize(
    ("kinds", "apart"),
    [
        ("graph graph missing", [2]),
        ("missing graph missing", [1]),
        ("graph graph", []),
        ("missing missing", []),
        # A graph that is a knob compares with none: that is what is asked.
        ("none graph none", []),
        ("graph none", []),
    ],
)
def test_what_does_not_compare_with_the_default_is_rejected(kinds: str, apart: list[int]) -> None:
    records = [record(f"-k={n}" if n else "", kind) for n, kind in enumerate(kinds.split())]
    found = set_apart(records, "")
    for number, (before, after) in enumerate(zip(records, found, strict=True)):
        if number in apart:
            assert (after.status, after.latency) == ("rejected", None)
            assert "'cuda_graph': False" in after.error
        else:
            assert after == before


def test_the_reason_is_the_backends() -> None:
    found = set_apart(
        [record("", "graph"), record("-k=1", "missing"), record("-k=2", "missing", "crashed")], ""
    )
    assert found[1].error.startswith(
        "no CUDA graph: a layer waits; it does not compare with engines that have"
    )
    assert found[2].status == "crashed"


def test_without_a_default_engines_with_a_graph_stay() -> None:
    default = record("", "missing", "crashed", latency=None)
    found = set_apart([default, record("-k=1", "missing"), record("-k=2", "graph")], "")
    assert [item.status for item in found] == ["crashed", "rejected", "passed"]
    found = set_apart([default, record("-k=1", "missing")], "")
    assert [item.status for item in found] == ["crashed", "passed"]
