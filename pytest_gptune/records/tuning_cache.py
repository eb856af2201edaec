"""The tuning cache: a record of every route tried, as JSON lines.

A header line for each tuning of a run, then a row per route, each appended under a lock and synced to disk
before the next route begins, so that a run that is killed loses the route in flight and no other. Rows have
the fields of trtexec's cache (times in milliseconds) and ours; trtexec's own files are read as well.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

from pytest_gptune.engines.base import LatencyKind
from pytest_gptune.errors import GptuneError
from pytest_gptune.records.route_record import RouteRecord
from pytest_gptune.storage import locked
from pytest_gptune.timing.statistics import Statistic

SCHEMA = 1

# How every header that this plugin writes begins.
_BEGINNING = b'{"schema":'

# The kind of a line that holds a round of the finals.
FINALS = "finals"

# Statuses of routes whose engine died, which trtexec calls a crash.
_CRASHES = frozenset({"crashed", "timeout", "out_of_memory"})


class CacheError(GptuneError):
    """The tuning cache cannot be read or written."""


@dataclass(frozen=True)
class CacheHeader:
    """What all rows of a tuning were measured with; a resumed search must agree in all of it.

    Attributes:
        fingerprint: software and device facts.
        protocol: what else a row depends on: tolerances, shapes, options, the test's own code.
        resumed: whether the run takes up what is there; it is no condition.
    """

    tuning: str
    backend: str
    model_sha256: str
    golden_sha256: str
    expression: str
    search: str
    metric: str
    epsilon: Any
    default_build_route: str
    tuner_version: str
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)
    resumed: bool = False

    def as_plain(self) -> dict[str, Any]:
        """As the JSON object of a header line."""
        return {
            "schema": SCHEMA,
            "kind": "header",
            "tuning": self.tuning,
            "backend": self.backend,
            "model_sha256": self.model_sha256,
            "golden_sha256": self.golden_sha256,
            "tuning_expr": self.expression,
            "searching_algorithm": self.search,
            "accuracy_algorithm": self.metric,
            "accuracy_parameter": {"epsilon": self.epsilon},
            "default_build_route": self.default_build_route,
            "tuner_version": self.tuner_version,
            "fingerprint": dict(self.fingerprint),
            "protocol": dict(self.protocol),
            "resumed": self.resumed,
        }

    def differences(self, earlier: Mapping[str, Any]) -> list[str]:
        """What an earlier header of the same tuning has otherwise, a line each."""
        return differing(json.loads(json.dumps(self.as_plain())), earlier)


@dataclass(frozen=True)
class FinalsRound:
    """One build of every contestant of the finals, measured in turns.

    Attributes:
        signature: of the contestants: which models, routes and options they are built from.
        latency_kind, statistic: how they were timed.
        blocks: for each contestant the samples of each block, in seconds, ascending and thinned out to at
            most 101 order statistics, which keep every quantile.
        counts: how many samples there were before they were thinned out.
        clocks_hz: mean clock of the device for each contestant, None where there is none.
        digests: digest of the engine of each contestant.
    """

    signature: str
    latency_kind: LatencyKind
    statistic: Statistic
    blocks: Mapping[str, list[list[float]]]
    counts: Mapping[str, int]
    clocks_hz: Mapping[str, float | None]
    digests: Mapping[str, str]

    def __post_init__(self) -> None:
        keys = set(self.blocks)
        if not keys or any(set(of) != keys for of in (self.counts, self.clocks_hz, self.digests)):
            raise ValueError("not every contestant has all of its figures")
        samples = [sample for build in self.blocks.values() for block in build for sample in block]
        if not all(build and all(build) for build in self.blocks.values()):
            raise ValueError("a contestant has no samples")
        if not all(math.isfinite(sample) and sample > 0 for sample in samples):
            raise ValueError("a sample is no time")

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> FinalsRound:
        """From the JSON object of a line.

        Raises:
            KeyError, TypeError, ValueError, AttributeError, OverflowError: it is not a round of finals.
        """
        return cls(
            signature=str(plain["signature"]),
            latency_kind=_one_of(plain["latency_kind"], LatencyKind),
            statistic=_one_of(plain["statistic"], Statistic),
            blocks={k: [[float(s) for s in block] for block in v] for k, v in plain["blocks"].items()},
            counts={key: int(count) for key, count in plain["counts"].items()},
            clocks_hz={k: None if v is None else float(v) for k, v in plain["clocks_hz"].items()},
            digests={key: str(digest) for key, digest in plain["digests"].items()},
        )


def _one_of(value: Any, words: Any) -> Any:
    if value not in get_args(words):
        raise ValueError(f"{value!r} is none of {get_args(words)}")
    return value


@dataclass(frozen=True)
class CacheContent:
    """What a cache file holds.

    Attributes:
        headers: the last header of each tuning.
        finals: the rounds of the finals of each tuning, in the order measured.
        rows: rows by tuning and route key, the last of each; rows of foreign files have the tuning ``""``.
        warnings: what was dropped.
    """

    headers: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, Mapping[str, Mapping[str, Any]]]
    warnings: tuple[str, ...] = ()
    finals: Mapping[str, tuple[FinalsRound, ...]] = field(default_factory=dict)

    def record(self, tuning: str, key: str) -> RouteRecord | None:
        """The record of a finished route, None where the cache has none."""
        row = self.rows.get(tuning, {}).get(key)
        if row is None or "record" not in row:
            return None
        try:
            return RouteRecord.from_plain(row["record"])
        except (KeyError, TypeError, AttributeError, IndexError):
            return None


def append_header(path: Path, header: CacheHeader) -> None:
    """Append the header of a tuning.

    Raises:
        CacheError: the file cannot be written.
    """
    _append(path, header.as_plain())


def append_row(path: Path, tuning: str, number: int, record: RouteRecord) -> None:
    """Append the row of a route that has ended.

    Raises:
        CacheError: the file cannot be written.
    """
    _append(path, row_of(tuning, number, record))


def append_finals(path: Path, tuning: str, finals: FinalsRound) -> None:
    """Append a round of the finals.

    Raises:
        CacheError: the file cannot be written.
    """
    _append(path, {"kind": FINALS, "tuning": tuning, **asdict(finals)})


def is_header(line: Mapping[str, Any]) -> bool:
    """Whether a line says what the rows of its tuning were measured with."""
    return "build_route" not in line and line.get("kind") != FINALS


def thinned(samples: Sequence[float], at_most: int = 101) -> list[float]:
    """The samples in ascending order, evenly thinned out; quantiles stay what they are within one of them."""
    ordered = sorted(samples)
    if len(ordered) <= at_most:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / (at_most - 1))] for i in range(at_most)]


def row_of(tuning: str, number: int, record: RouteRecord) -> dict[str, Any]:
    """A row: trtexec's fields, then ours."""
    latency = record.latency
    return {
        "kind": "row",
        "tuning": tuning,
        "iter": number,
        "build_route": record.route,
        "crash": record.status in _CRASHES,
        "error_message": record.error,
        "accuracy_loss": dict(record.losses) or None,
        "gpu_time": latency.value * 1e3 if latency else None,
        "status": record.status,
        "latency_s": latency.value if latency else None,
        "samples": latency.samples if latency else None,
        "engine_digest": record.engine_digest,
        "build_seconds": record.build_seconds,
        "record": record.as_plain(),
    }


def read_cache(path: Path) -> CacheContent:
    """Read a cache, ours or trtexec's; a torn last line is dropped with a warning.

    Raises:
        CacheError: it cannot be read, or a line before the last is not JSON.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return CacheContent({}, {})
    except OSError as error:
        raise _unreadable(error, path) from None
    headers: dict[str, Mapping[str, Any]] = {}
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    finals: dict[str, list[FinalsRound]] = {}
    warnings: list[str] = []
    for line in lines_of(content, path, warnings):
        tuning = line.get("tuning", "")
        if not isinstance(tuning, str):
            raise CacheError("a line of the tuning cache names no test", where=str(path), mend=_MEND)
        if line.get("kind") == FINALS:
            try:
                finals.setdefault(tuning, []).append(FinalsRound.from_plain(line))
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                warnings.append(f"{path.name}: a round of finals is damaged and was dropped")
        elif "build_route" in line:
            record = line.get("record")
            key = record.get("key") if isinstance(record, Mapping) else line["build_route"]
            rows.setdefault(tuning, {})[str(key)] = line
        else:
            _check_schema(line, path)
            if tuning in headers and conditions_of(headers[tuning]) != conditions_of(line):
                # Of another model, golden or stack: nothing to take up.
                rows.pop(tuning, None)
                finals.pop(tuning, None)
            if not line.get("resumed", False):
                finals.pop(tuning, None)  # a run that begins anew measures its finals anew
            headers[tuning] = line
    return CacheContent(headers, rows, tuple(warnings), {key: tuple(r) for key, r in finals.items()})


_MEND = "give another file to --gptune-cache, or delete this one"


def check_begun(path: Path) -> None:
    """Refuse a file that is there and is no tuning cache, by its first line: large caches open at once.

    Raises:
        CacheError: it cannot be read, or its first line is none of a tuning cache.
    """
    if not path.is_file():  # there is none yet, or it is a device or a pipe, which reading would disturb
        return
    try:
        with path.open("rb") as stream:
            number, first = next(((n, line) for n, line in enumerate(stream, 1) if line.strip()), (1, b""))
    except OSError as error:
        raise _unreadable(error, path) from None
    if first.endswith(b"\n"):
        line = _parsed(number, first, path)
        if is_header(line):
            _check_schema(line, path)
    elif not first.startswith(_BEGINNING) and not _BEGINNING.startswith(first):
        # A run that was killed as it wrote its very first line left the beginning of a header. Anything else
        # without an end is somebody's file, which the first row would replace.
        raise _no_line(number, path)


def _unreadable(error: OSError, path: Path) -> CacheError:
    return CacheError(f"cannot read the tuning cache: {error.strerror or error}", where=str(path))


def _no_line(number: int, path: Path) -> CacheError:
    return CacheError(f"line {number} is not a line of a tuning cache", where=str(path), mend=_MEND)


def _check_schema(header: Mapping[str, Any], path: Path) -> None:
    if header.get("schema", SCHEMA) != SCHEMA:
        raise CacheError(
            f"the tuning cache has schema {header['schema']!r}, this version reads {SCHEMA}",
            where=str(path),
            mend=_MEND,
        )


def lines_of(content: bytes, path: Path, warnings: list[str]) -> Iterator[Mapping[str, Any]]:
    """The lines of a cache; what is torn is dropped, and said in ``warnings``.

    Raises:
        CacheError: a line before the last is not a JSON object.
    """
    lines = content.split(b"\n")
    torn = lines.pop()
    if torn:
        warnings.append(
            f"{path.name}: the last line is torn and was dropped: a run was killed as it wrote it"
        )
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        yield _parsed(number, line, path)


def _parsed(number: int, line: bytes, path: Path) -> Mapping[str, Any]:
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError):
        plain = None
    if not isinstance(plain, Mapping):
        raise _no_line(number, path)
    return plain


def conditions_of(header: Mapping[str, Any]) -> dict[str, Any]:
    """What rows were measured with; another search over the same is none of it."""
    return {key: value for key, value in header.items() if key not in ("searching_algorithm", "resumed")}


def line_of(plain: Mapping[str, Any]) -> bytes:
    """A line as it stands in the file, its end included."""
    return json.dumps(_finite(plain), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def differing(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    """What differs between the conditions of two headers, a line each, ``then`` first."""
    new, old = _flat(conditions_of(now)), _flat(conditions_of(then))
    return [
        f"{key}: {old.get(key)} -> {new.get(key)}"
        for key in sorted({*new, *old})
        if new.get(key) != old.get(key)
    ]


def _append(path: Path, plain: Mapping[str, Any]) -> None:
    """Append one line and sync it; a torn line that a killed run left is ended first."""
    line = line_of(plain)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path), path.open("a+b") as stream:
            if _ends_torn(stream):
                _drop_torn(stream)
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise CacheError(
            f"cannot write the tuning cache: {error.strerror or error}",
            where=str(path),
            mend="make the file writable and free some space",
        ) from None


def _ends_torn(stream: Any) -> bool:
    size = stream.seek(0, os.SEEK_END)
    if size == 0:
        return False
    stream.seek(size - 1)
    return bool(stream.read(1) != b"\n")


def _drop_torn(stream: Any) -> None:
    stream.seek(0)
    content = stream.read()
    stream.truncate(content.rfind(b"\n") + 1)
    stream.seek(0, os.SEEK_END)


def _flat(plain: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(plain, Mapping):
        return {prefix: plain}
    flat: dict[str, Any] = {}
    for key, value in plain.items():
        flat |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _finite(value: Any) -> Any:
    """Infinite losses as a word, which ``float`` reads again; JSON has no number for them."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
