"""The committed record a winner is gated against: JSON, schema 1.

One entry for each backend, device class, declared shapes and latency kind; updating replaces its own entry
only. The file is written by ``--gptune-update-baseline`` and belongs in the same commit as the model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from pytest_gptune.errors import GptuneError
from pytest_gptune.records.fingerprint import Fingerprint
from pytest_gptune.storage import write_atomically

SCHEMA = 1

Shapes = Mapping[str, tuple[int, ...]]


class BaselineError(GptuneError):
    """The baseline cannot be read."""


class BaselineSchemaError(BaselineError):
    """The baseline has another schema than this version writes and reads."""


@dataclass(frozen=True)
class DefaultRecord:
    """The default route as it was measured beside the winner; latency in seconds."""

    latency_s: float
    interval: tuple[float, float] | None
    loss: float | None


@dataclass(frozen=True)
class BaselineEntry:
    """The winner of one tuning on one device class.

    Attributes:
        shapes: shape of each input of the timed case.
        route: knobs that differ from their defaults; empty for the default route.
        latency_s: median over builds of the statistic, in seconds.
        interval: confidence interval of it over builds, None for a single build.
        between_build_spread: relative standard deviation between builds, None for a single build.
        default: the default route in the same finals; None where it gives no engine.
        calibration_s: latency of the calibration engine in the same run, in seconds.
        loss: worst loss over outputs and cases.
        epsilon: the number, or the number for each output.
        model_path: relative to the repository's root where there is one, otherwise to the root folder.
        defaults_digest: digest of the defaults of all knobs.
    """

    backend: str
    device_class: str
    shapes: Shapes
    latency_kind: str
    statistic: str
    route: str
    latency_s: float
    interval: tuple[float, float] | None
    builds: int
    between_build_spread: float | None
    default: DefaultRecord | None
    calibration_s: float | None
    loss: float | None
    metric: str
    epsilon: float | Mapping[str, float]
    model_sha256: str
    model_path: str
    golden_sha256: str
    tuner_version: str
    defaults_digest: str
    engine_sha256: str
    fingerprint: Fingerprint
    objective: str = "latency"

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What identifies an entry within its file."""
        return self.backend, self.device_class, shapes_text(self.shapes), self.latency_kind


@dataclass(frozen=True)
class Baseline:
    """All entries of one test's baseline file."""

    entries: tuple[BaselineEntry, ...] = ()

    def with_entry(self, entry: BaselineEntry) -> Baseline:
        """The same with ``entry`` in place of the one with its key, or at the end."""
        others = [e for e in self.entries if e.key != entry.key]
        return Baseline((*others, entry))

    def of_backend(self, backend: str) -> Baseline:
        """Only the entries of one backend."""
        return Baseline(tuple(e for e in self.entries if e.backend == backend))

    def concerning(self, backend: str, device_class: str) -> tuple[BaselineEntry, ...]:
        """The entries of a backend that a run on this device looks at.

        Those of its own device class; where there are none, all, for gates that compare within one run.
        """
        entries = self.of_backend(backend).entries
        return tuple(e for e in entries if e.device_class == device_class) or entries


def shapes_text(shapes: Shapes) -> str:
    """Shapes as they are printed: ``x[1,3,64,64] mask[1,64]``."""
    return " ".join(f"{name}[{','.join(map(str, dims))}]" for name, dims in sorted(shapes.items()))


def load_baseline(path: Path) -> Baseline | None:
    """The baseline at ``path``, None where there is no such file.

    Raises:
        BaselineSchemaError: it has another schema.
        BaselineError: it is not a baseline.
    """
    mend = "restore it from version control, or delete it and run with --gptune-update-baseline"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BaselineError(
            f"cannot read the baseline: {error.strerror or error}", where=str(path), mend="make it readable"
        ) from None
    try:
        plain = json.loads(content, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise BaselineError(f"the baseline is not JSON: {error}", where=str(path), mend=mend) from None
    if not isinstance(plain, dict) or "schema" not in plain:
        raise BaselineError("not a baseline of pytest-gptune", where=str(path), mend=mend)
    if plain["schema"] != SCHEMA or isinstance(plain["schema"], bool):
        raise BaselineSchemaError(
            f"the baseline has schema {plain['schema']!r}, this version reads schema {SCHEMA}",
            where=str(path),
            mend="use the version that wrote it, or write it anew with --gptune-update-baseline",
        )
    try:
        return Baseline(tuple(_entry(item) for item in plain["entries"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        detail = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise BaselineError(
            f"the baseline has an entry that cannot be read: {detail}", where=str(path), mend=mend
        ) from None


def save_baseline(path: Path, baseline: Baseline) -> None:
    """Write the baseline, whole or not at all; keys in a fixed order, so that diffs are small.

    Raises:
        StorageError: it cannot be written; the old file is as it was.
    """
    plain = {"schema": SCHEMA, "entries": [_plain(entry) for entry in baseline.entries]}
    text = json.dumps(plain, indent=2, allow_nan=False, ensure_ascii=False)
    # Paths that are no UTF-8 are text with surrogates in Python; the reader decodes them in the same way.
    write_atomically(path, (text + "\n").encode("utf-8", "surrogatepass"))


def select_entry(
    entries: Iterable[BaselineEntry],
    *,
    device_class: str,
    shapes: Shapes,
    latency_kind: str | None,
    route: str | None = None,
) -> tuple[BaselineEntry | None, str]:
    """The entry to compare with, and otherwise the reason why there is none.

    An entry of this device class is preferred. One of another device class serves where the comparison is
    made within this run (verdict ``unchanged``, gate ``paired``); among several, one with ``route`` first.

    Returns:
        The entry, or None and one of the reasons ``new``, ``shapes``, ``kind``.
    """
    candidates: Sequence[BaselineEntry] = tuple(entries)
    if not candidates:
        return None, "new"
    same_shapes = [e for e in candidates if shapes_text(e.shapes) == shapes_text(shapes)]
    if not same_shapes:
        return None, "shapes"
    same_kind = [e for e in same_shapes if latency_kind is None or e.latency_kind == latency_kind]
    if not same_kind:
        return None, "kind"
    here = [e for e in same_kind if e.device_class == device_class]
    ranked = here or sorted(same_kind, key=lambda e: e.route != route)
    return ranked[0], ""


def _plain(entry: BaselineEntry) -> dict[str, Any]:
    plain = asdict(replace(entry, fingerprint=Fingerprint()))
    plain["shapes"] = {name: list(dims) for name, dims in entry.shapes.items()}
    plain["epsilon"] = dict(entry.epsilon) if isinstance(entry.epsilon, Mapping) else entry.epsilon
    plain["fingerprint"] = entry.fingerprint.as_plain()
    return plain


def _entry(plain: Mapping[str, Any]) -> BaselineEntry:
    known = {field.name for field in fields(BaselineEntry)}
    values: dict[str, Any] = {name: plain[name] for name in known if name != "objective"}
    values["shapes"] = {_text(k): tuple(_count(d) for d in dims) for k, dims in plain["shapes"].items()}
    values["interval"] = _interval(plain["interval"])
    default = plain["default"]
    if default is not None:
        values["default"] = DefaultRecord(
            _positive(default["latency_s"]), _interval(default["interval"]), _loss(default["loss"])
        )
    values["latency_s"] = _positive(plain["latency_s"])
    values["builds"] = _count(plain["builds"])
    for name in ("between_build_spread", "calibration_s"):
        values[name] = None if plain[name] is None else _positive(plain[name], zero=True)
    values["loss"] = _loss(plain["loss"])
    values["fingerprint"] = _fingerprint(plain["fingerprint"])
    for name in ("backend", "device_class", "latency_kind", "statistic", "route", "metric", "model_sha256"):
        values[name] = _text(plain[name])
    for name in ("model_path", "golden_sha256", "tuner_version", "defaults_digest", "engine_sha256"):
        values[name] = _text(plain[name])
    epsilon = plain["epsilon"]
    if isinstance(epsilon, Mapping):
        values["epsilon"] = {_text(k): _positive(v, zero=True) for k, v in epsilon.items()}
    else:
        values["epsilon"] = _positive(epsilon, zero=True)
    return BaselineEntry(**values)


def _fingerprint(plain: Any) -> Fingerprint:
    invalidating, noted = plain["invalidating"], plain["noted"]
    if not isinstance(noted, Mapping) or not all(isinstance(part, Mapping) for part in invalidating.values()):
        raise ValueError("fingerprint is not an object of objects")
    return Fingerprint.from_plain(plain)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number of JSON")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} where text is expected")
    return value


def _positive(value: Any, *, zero: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} where a number is expected")
    number = float(value)
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        raise ValueError(f"{value!r} where a positive number is expected")
    return number


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} where a count is expected")
    return value


def _loss(value: Any) -> float | None:
    return None if value is None else _positive(value, zero=True)


def _interval(value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    low, high = value
    return _positive(low, zero=True), _positive(high, zero=True)
