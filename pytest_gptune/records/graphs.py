"""Engines that run without the graph they were to have do not compare with those that have one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_gptune.records.route_record import RouteRecord

_MEND = "\n  do: compare all engines without graphs, with options={'cuda_graph': False}"


def set_apart(records: Sequence[RouteRecord], default_key: str) -> tuple[RouteRecord, ...]:
    """The records, those rejected that do not compare with the default, for one of the two lacks its graph.

    A graph takes the host out of a latency, so that the difference would be the host's and not the route's.
    Where the default was not timed, engines with a graph stay.
    """
    timed = [record for record in records if record.latency is not None]
    default = next((record for record in timed if record.key == default_key), None)
    if default is not None:
        apart = ["graph"] if default.graph_missing else ["graph_missing"] if default.graph else []
    else:
        apart = ["graph_missing"] if any(record.graph for record in timed) else []
    return tuple(
        replace(record, status="rejected", latency=None, error=_why(record))
        if record in timed
        and record.status in ("passed", "inaccurate")
        and any(getattr(record, name) for name in apart)
        else record
        for record in records
    )


def baseline_kind(latency_kind: str, *, graph_missing: bool) -> str:
    """The kind of latency as baselines have it: without the graph that there should be it is another one."""
    return f"{latency_kind}, no graph" if graph_missing else latency_kind


def _why(record: RouteRecord) -> str:
    if record.graph:
        return f"it has a CUDA graph and the default's engine cannot, so they do not compare{_MEND}"
    said = next((text for text in record.warnings if "graph" in text), "no CUDA graph")
    return f"{said}; it does not compare with engines that have one{_MEND}"
