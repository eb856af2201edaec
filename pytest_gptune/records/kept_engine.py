"""Engines that are kept as files, each with a sidecar that says what it is.

Loading an engine runs code of its backend on what the file holds, so the file must be the one that was
recorded: its SHA-256 is checked against the sidecar's before any backend sees a byte of it, and what it was
built for against the model, backend and device it is to run on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from pytest_gptune.errors import GptuneError
from pytest_gptune.storage import safe_name, write_atomically

SCHEMA = 1
SUFFIX = ".engine"


class KeptEngineError(GptuneError):
    """A kept engine is missing, is not the one that was recorded, or is not for this model and machine."""


@dataclass(frozen=True)
class Sidecar:
    """What is recorded beside an engine.

    Attributes:
        tuning: node id of the test it was tuned by.
        route: the route's key.
        file_sha256: of the engine's file.
        engine_digest: of the engine, as its backend computes it.
        facts: what the backend wants to see again before it loads the engine.
        shapes: min, opt and max of each input that it was built for.
        loss: the worst over outputs and cases.
        latency_s: of this very build, in seconds; None where it was not timed.
        fingerprint: of the run that built it.
    """

    tuning: str
    backend: str
    tuner_version: str
    device_class: str
    route: str
    model_sha256: str
    file_sha256: str
    engine_digest: str
    facts: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    loss: float | None = None
    metric: str = ""
    latency_s: float | None = None
    latency_kind: str = ""
    statistic: str = ""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)

    def check(
        self,
        *,
        backend: str,
        tuner_version: str,
        device_class: str,
        model_sha256: str,
        options: Mapping[str, Any],
    ) -> None:
        """Raise KeptEngineError, naming what differs, unless the engine is for this model and machine."""
        here = {
            "backend": backend,
            "tuner_version": tuner_version,
            "device_class": device_class,
            "model_sha256": model_sha256,
            "options": dict(options),
        }
        differing = [
            f"{name} {getattr(self, name)}, here {now}"
            for name, now in here.items()
            if getattr(self, name) != now
        ]
        if differing:
            raise KeptEngineError(
                f"the kept engine is for something else: {'; '.join(differing)}",
                mend="build it again: --gptune-save-engine",
            )


def engine_path(folder: Path, test_file: str, owner: str, backend: str, route_id: str = "") -> Path:
    """Where the engine of a tuning is kept in ``folder``: the winner's, or that of the route ``route_id``."""
    base = folder / safe_name(Path(test_file).stem)
    if route_id:
        return base / safe_name(owner) / f"{safe_name(route_id)}.{backend}{SUFFIX}"
    return base / f"{safe_name(owner)}.{backend}{SUFFIX}"


def sidecar_path(engine: Path) -> Path:
    """Where the sidecar of an engine stands."""
    return engine.with_name(engine.name + ".json")


def save_engine(path: Path, data: bytes, sidecar: Sidecar) -> None:
    """Keep an engine. The sidecar is written last: an engine without one is never loaded.

    Raises:
        StorageError: a file cannot be written.
    """
    text = json.dumps({"schema": SCHEMA, **asdict(sidecar)}, indent=2, sort_keys=True)
    sidecar_path(path).unlink(missing_ok=True)
    write_atomically(path, data)
    write_atomically(sidecar_path(path), (text + "\n").encode())


def read_sidecar(path: Path) -> Sidecar:
    """The sidecar of the engine at ``path``.

    Raises:
        KeptEngineError: it is missing or is none.
    """
    where, mend = str(sidecar_path(path)), "keep engines with --gptune-save-engine, which writes it"
    if path.name.endswith(f"{SUFFIX}.json"):
        engine = path.name.removesuffix(".json")
        raise KeptEngineError("that is the sidecar of an engine", where=str(path), mend=f"give {engine}")
    if not path.is_file():
        raise KeptEngineError("there is no kept engine", where=str(path), mend="correct the path")
    try:
        plain = json.loads(sidecar_path(path).read_bytes())
    except FileNotFoundError:
        raise KeptEngineError("the kept engine has no sidecar", where=where, mend=mend) from None
    except (OSError, ValueError, RecursionError) as error:
        raise KeptEngineError(f"the sidecar cannot be read: {error}", where=where, mend=mend) from None
    if not isinstance(plain, Mapping) or plain.get("schema") != SCHEMA:
        schema = plain.get("schema") if isinstance(plain, Mapping) else None
        raise KeptEngineError(
            f"the sidecar has schema {schema!r}, this version reads {SCHEMA}", where=where, mend=mend
        )
    values = {key: value for key, value in plain.items() if key != "schema"}
    texts = [f.name for f in fields(Sidecar) if f.type == "str"]
    maps = [f.name for f in fields(Sidecar) if str(f.type).startswith("Mapping")]
    try:
        sidecar = Sidecar(**values)
    except TypeError as error:
        raise KeptEngineError(
            f"the sidecar is not one of an engine: {error}", where=where, mend=mend
        ) from None
    wrong = [name for name in texts if not isinstance(getattr(sidecar, name), str)]
    wrong += [name for name in maps if not isinstance(getattr(sidecar, name), Mapping)]
    numbers = [f.name for f in fields(Sidecar) if f.type == "float | None"]
    wrong += [n for n in numbers if not isinstance(getattr(sidecar, n), (int, float, type(None)))]
    wrong += ["facts"] if not all(isinstance(value, str) for value in sidecar.facts.values()) else []
    if wrong:
        raise KeptEngineError(f"the sidecar has no usable {', '.join(wrong)}", where=where, mend=mend)
    return sidecar


def read_engine(path: Path, sidecar: Sidecar) -> bytes:
    """The engine's bytes, if they are those that were recorded.

    Raises:
        KeptEngineError: they are not, or cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise KeptEngineError(
            f"the kept engine cannot be read: {error.strerror or error}",
            where=str(path),
            mend="correct the path",
        ) from None
    digest = hashlib.sha256(data).hexdigest()
    if digest != sidecar.file_sha256:
        raise KeptEngineError(
            f"the kept engine is not the one that was recorded: SHA-256 {digest[:12]}, "
            f"its sidecar says {sidecar.file_sha256[:12]}",
            where=str(path),
            mend="restore the file, or build it again: --gptune-save-engine; it was not loaded",
        )
    return data
