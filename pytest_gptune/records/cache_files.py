"""Tuning caches as a user's files: read where there must be one, merged without loss, converted to ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_gptune.records.cached_tuning import COMPARED, CachedTuning, Writer, cached_tunings
from pytest_gptune.records.tuning_cache import (
    FINALS,
    SCHEMA,
    CacheContent,
    CacheError,
    conditions_of,
    differing,
    is_header,
    line_of,
    lines_of,
    read_cache,
)
from pytest_gptune.storage import locked, write_while_locked

_MEND = "give a file that --gptune-cache wrote, or a tuning cache of trtexec or Torch-TensorRT"

# A row of a route that ended otherwise stands, whatever a later run that did not get as far wrote of it.
_UNFINISHED = frozenset({"test_failed", "unchecked", "skipped"})


@dataclass(frozen=True)
class Merged:
    """What became of a merge.

    Attributes:
        tunings: how many the merged cache has.
        routes: routes of all of them.
        rows: rows of the file, earlier ones of a route included.
        warnings: what was dropped: torn last lines.
    """

    tunings: int
    routes: int
    rows: int
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Converted:
    """What became of a conversion.

    Attributes:
        writer: what wrote the foreign cache.
        routes: how many it has.
        missing: what a cache of ours has and this one cannot, and what that means, a sentence each.
        warnings: what was dropped: a torn last line.
    """

    writer: Writer
    routes: int
    missing: tuple[str, ...]
    warnings: tuple[str, ...]


def read_existing(path: Path) -> CacheContent:
    """Read a cache that has at least one route, ours or a foreign one, every route of which can be read.

    Raises:
        CacheError: there is none, or it is something else, or it has no route.
    """
    if not path.exists():
        raise CacheError("there is no such tuning cache", where=str(path), mend="correct the path")
    try:
        content = read_cache(path)
    except CacheError as error:
        raise CacheError(error.what, where=str(path), mend=_MEND) from None
    if not any(content.rows.values()):
        raise CacheError("the file has no row of a route", where=str(path), mend=_MEND)
    try:
        cached_tunings(content)
    except CacheError as error:
        raise error.located(str(path)) from None
    return content


def merge(out: Path, inputs: Sequence[Path]) -> Merged:
    """Write the rows of several caches of ours into one file, whole or not at all.

    Every header and row of every input is in it; a line that is there twice is there once. Where several tell
    of one route, the last that finished counts, in the order of ``inputs``. ``out`` may be one of them.

    Raises:
        CacheError: an input cannot be read or is a foreign one; a tuning was measured under other conditions
            in one than in another; ``out`` exists and is not one of them.
        StorageError: ``out`` cannot be written; it is as it was.
    """
    if out.exists() and not any(_same_file(out, path) for path in inputs):
        raise CacheError(
            "the file to write exists already, and its rows would be lost",
            where=str(out),
            mend="name it among the caches to merge as well, or give another name",
        )
    warnings: list[str] = []
    # Held since it is read, so that a run that appends to it meanwhile loses nothing.
    with locked(out):
        collected = [(path, _own_lines(path, warnings)) for path in inputs]
        lines = merged_lines(collected)
        write_while_locked(out, b"".join(map(line_of, lines)))
    content = read_existing(out)
    return Merged(
        tunings=len(content.rows),
        routes=sum(map(len, content.rows.values())),
        rows=sum("build_route" in line for line in lines),
        warnings=tuple(warnings),
    )


def merged_lines(
    inputs: Sequence[tuple[Path, Sequence[Mapping[str, Any]]]],
) -> tuple[Mapping[str, Any], ...]:
    """The lines of a cache that holds those of all ``inputs``.

    Raises:
        CacheError: a tuning was measured under other conditions in one than in another.
    """
    superseded: dict[str, list[Mapping[str, Any]]] = {}
    last: dict[str, tuple[Path, _Block]] = {}
    for path, lines in inputs:
        for tuning, blocks in _blocks(lines).items():
            superseded.setdefault(tuning, []).extend(line for block in blocks[:-1] for line in block.lines)
            if tuning in last:
                _extend(tuning, last[tuning], (path, blocks[-1]))
            else:
                last[tuning] = path, blocks[-1]
    merged: list[Mapping[str, Any]] = []
    for tuning, (_, block) in last.items():
        headers = _distinct(line for line in block.lines if is_header(line))
        rows = _distinct(line for line in block.lines if "build_route" in line)
        finals = _distinct(line for line in block.lines if line.get("kind") == FINALS)
        merged += [*superseded[tuning], *headers]
        merged += sorted(rows, key=lambda row: str(row.get("status")) not in _UNFINISHED)
        merged += finals
    return tuple(merged)


def convert(source: Path, out: Path, tuning: str = "") -> Converted:
    """Write a foreign cache in the form of ours.

    Args:
        source: trtexec's or Torch-TensorRT's.
        out: must not exist.
        tuning: what the tuning is called; by default the name of the file.

    Raises:
        CacheError: it cannot be read, or is one of ours; ``out`` exists.
        StorageError: ``out`` cannot be written.
    """
    content = read_existing(source)
    if "" not in content.rows:
        raise CacheError("the cache has the form of ours already", where=str(source), mend="use it as it is")
    with locked(out):
        if out.exists():
            raise CacheError(
                "the file to write exists already", where=str(out), mend="remove it, or give another name"
            )
        header = content.headers.get("", {})
        (foreign,) = (found for found in cached_tunings(content) if not found.tuning)
        name = tuning or source.name
        lines = [_converted_header(header, foreign, name)]
        for row in _lines(source, []):
            if is_header(row):
                continue
            (read,) = cached_tunings(CacheContent({"": header}, {"": {"": row}}))[0].routes
            lines.append(
                {
                    "kind": "row",
                    "tuning": name,
                    **row,
                    "status": read.status,
                    "latency_s": read.latency_s,
                    "samples": None,
                    "engine_digest": "",
                    "build_seconds": None,
                }
            )
        write_while_locked(out, b"".join(map(line_of, lines)))
    return Converted(foreign.writer, len(foreign.routes), _missing(foreign), content.warnings)


@dataclass
class _Block:
    """Lines of a tuning that were written under the same conditions; None before the first header."""

    header: Mapping[str, Any] | None = None
    lines: list[Mapping[str, Any]] = field(default_factory=list)


def _blocks(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[_Block]]:
    """Blocks by tuning, in the order written; reading takes the last, the others are kept for the record."""
    blocks: dict[str, list[_Block]] = {}
    for line in lines:
        of_tuning = blocks.setdefault(str(line.get("tuning", "")), [_Block()])
        block = of_tuning[-1]
        if is_header(line):
            if block.header is not None and conditions_of(block.header) != conditions_of(line):
                block = _Block()
                of_tuning.append(block)
            block.header = line
        block.lines.append(line)
    return blocks


def _extend(tuning: str, known: tuple[Path, _Block], more: tuple[Path, _Block]) -> None:
    (path, block), (other, extra) = known, more
    differences = differing(extra.header or {}, block.header or {})
    if differences:
        raise CacheError(
            f"{tuning} was measured under other conditions in one cache than in the other: "
            + "; ".join(differences),
            where=f"{path} and {other}",
            mend="merge caches of one model, golden, device and stack; keep the others apart",
        )
    block.lines += extra.lines


def _own_lines(path: Path, warnings: list[str]) -> tuple[Mapping[str, Any], ...]:
    content = read_existing(path)
    if "" in content.rows:
        raise CacheError(
            "this is a cache of another tool, which names no test",
            where=str(path),
            mend="convert it first: gptune convert IN OUT",
        )
    return _lines(path, warnings)


def _lines(path: Path, warnings: list[str]) -> tuple[Mapping[str, Any], ...]:
    try:
        return tuple(lines_of(path.read_bytes(), path, warnings))
    except OSError as error:
        raise CacheError(
            f"cannot read the tuning cache: {error.strerror or error}", where=str(path), mend=_MEND
        ) from None


def _distinct(lines: Iterator[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without repetitions; of equal lines the last stands, as reading would have it."""
    by_text: dict[bytes, Mapping[str, Any]] = {}
    for line in lines:
        text = line_of(line)
        by_text.pop(text, None)
        by_text[text] = line
    return list(by_text.values())


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _converted_header(header: Mapping[str, Any], foreign: CachedTuning, name: str) -> dict[str, Any]:
    parameter = header.get("accuracy_parameter")
    parameter = parameter if isinstance(parameter, Mapping) else {}
    return {
        "schema": SCHEMA,
        "kind": "header",
        "tuning": name,
        "backend": "tensorrt",
        "model_sha256": "",
        "golden_sha256": "",
        "tuning_expr": header.get("tuning_expr", ""),
        "searching_algorithm": foreign.search,
        "accuracy_algorithm": foreign.metric,
        "accuracy_parameter": {"epsilon": parameter.get("epsilon")},
        "default_build_route": foreign.default_route,
        "tuner_version": foreign.tuner_version,
        "fingerprint": {},
        "protocol": {name: parameter[name] for name in ("atol", "rtol") if name in parameter},
        "converted_from": {"writer": foreign.writer, "header": dict(header)},
    }


def _missing(foreign: CachedTuning) -> tuple[str, ...]:
    routes = foreign.routes
    missing = [
        "model and golden digests, fingerprint: no run can continue it; it serves gptune and --gptune-prior.",
        "samples and intervals: effects of a single pair of routes have no interval.",
        "engine digests: which routes gave one and the same engine cannot be told.",
    ]
    if foreign.writer == "trtexec":
        missing.append("latencies are means over all samples of one measurement, in trtexec's conditions.")
        missing.append(
            "losses may be too good: trtexec compares no NaN and no output of bf16, int64, bool, uint8, fp8."
        )
    else:
        missing.append("latencies are medians of one measurement, in Torch-TensorRT's conditions.")
    if foreign.epsilon is None:
        missing.append("epsilon: no route is known to have passed.")
    uncompared = sum(not route.losses for route in routes if route.status != "crashed")
    if uncompared:
        missing.append(f"losses of {uncompared} of {len(routes)} routes: they are eligible at no epsilon.")
    untimed = sum(route.latency_s is None for route in routes if route.status in COMPARED)
    if untimed:
        missing.append(
            f"latencies of {untimed} of {len(routes)} routes, inaccurate ones above all: "
            "they are eligible at no epsilon."
        )
    if foreign.default is None or foreign.default.latency_s is None:
        missing.append("the default route's latency: there are no speedups.")
    return tuple(missing)
