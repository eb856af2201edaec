"""What is known of a route after it ran, and of its tuning: plain data that crosses processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any

from pytest_gptune.timing.protocol import Measurement
from pytest_gptune.timing.stability import told_enqueue_bound


@dataclass(frozen=True)
class Latency:
    """A latency with its spread; times in seconds.

    Attributes:
        value: the statistic that stands for it.
        interval: over blocks for a first measurement, over builds for a finalist.
        stop_reason: why sampling ended.
        builds: how many builds it was taken over.
        warnings: what a reader of it has to know.
    """

    value: float
    min: float
    p25: float
    median: float
    mean: float
    p90: float
    p95: float
    p99: float
    samples: int
    interval: tuple[float, float] | None
    stop_reason: str
    statistic: str
    latency_kind: str
    builds: int = 1
    warnings: tuple[str, ...] = ()

    @property
    def at_hosts_pace(self) -> bool:
        """Whether the host could not enqueue as fast as the device computed."""
        return told_enqueue_bound(self.warnings)

    @classmethod
    def of(cls, measurement: Measurement) -> Latency:
        """From a first measurement."""
        return cls(
            value=measurement.latency_s,
            **asdict(measurement.summary),
            interval=measurement.interval,
            stop_reason=measurement.stop_reason,
            statistic=measurement.statistic,
            latency_kind=measurement.latency_kind,
            warnings=measurement.warnings,
        )


@dataclass(frozen=True)
class RouteRecord:
    """One route of one tuning.

    Attributes:
        id: the route as test ids show it.
        route: the route in full.
        key: knobs that differ from their defaults, in the order of the knob space; identifies the route.
        knobs: how many knobs differ from the default route.
        status: one of the route statuses.
        losses: worst loss over cases, by output.
        needed_epsilon: the smallest epsilon at which it would pass, None where that is not one number.
        timed_case: the golden's case that the latency is of.
        digest_proves: whether equal digests alone make two engines the same.
        same_as: id of the route whose engine it is, where it is inert.
        kept: path of the kept engine that was loaded; empty where it was built.
        not_kept: why it was built although kept engines were given; empty otherwise.
        warnings: what its backend said of the engine, as that no graph could be captured.
        graph_missing: whether it has no graph where its backend would replay one.
        error: why it did not pass, in the words shown to the user.
        device_memory_bytes: what the engine holds of a device's memory, by ``weights`` and ``context``.
        speedup: the default's latency over this one's, of the finals where both were in them.
        speedup_interval: its 95 % interval over builds; None where it is not of the finals.
        wall_s: seconds the route took in all.
    """

    id: str
    route: str
    key: str
    knobs: int
    status: str
    losses: Mapping[str, float] = field(default_factory=dict)
    needed_epsilon: float | None = None
    latency: Latency | None = None
    timed_case: str | None = None
    build_seconds: float | None = None
    builds: int = 0
    engine_digest: str = ""
    digest_proves: bool = True
    same_as: str = ""
    kept: str = ""
    not_kept: str = ""
    warnings: tuple[str, ...] = ()
    engine_bytes: int | None = None
    device_memory_bytes: Mapping[str, int] = field(default_factory=dict)
    graph: bool = False
    graph_missing: bool = False
    speedup: float | None = None
    speedup_interval: tuple[float, float] | None = None
    error: str = ""
    wall_s: float = 0.0

    @property
    def loss(self) -> float | None:
        """The worst loss over outputs and cases, None where none was computed."""
        return max(self.losses.values()) if self.losses else None

    def as_plain(self) -> dict[str, Any]:
        """As built-in types."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> RouteRecord:
        """The inverse of ``as_plain``."""
        # Rows of earlier versions lack what was added since.
        required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
        known = [f.name for f in fields(cls) if f.name in plain or f.name in required]
        record = cls(**{name: plain[name] for name in known})
        # Files spell an infinite loss as a word.
        losses = {name: float(value) for name, value in record.losses.items()}
        needed = None if record.needed_epsilon is None else float(record.needed_epsilon)
        warnings = tuple(record.warnings)
        ends = record.speedup_interval
        record = replace(
            record,
            losses=losses,
            needed_epsilon=needed,
            warnings=warnings,
            speedup_interval=None if ends is None else (float(ends[0]), float(ends[1])),
        )
        if isinstance(record.latency, Mapping):
            latency = Latency(**record.latency)
            low_high = latency.interval
            # Files spell an infinite end as a word.
            interval = None if low_high is None else (float(low_high[0]), float(low_high[1]))
            warnings = tuple(latency.warnings)
            record = replace(record, latency=replace(latency, interval=interval, warnings=warnings))
        return record


@dataclass(frozen=True)
class TuningSpec:
    """A tuning: one test, one combination of the user's own parameters, and what its routes share.

    Attributes:
        tuning: node id of the test without the route.
        command_id: the same as a command line in the current folder names it.
        gate_id: node id of the verdict's report.
        owner: ``Class.test[user parameters]``.
        file: the test file, relative to the root folder as node ids have it.
        model_root: folder that ``model_path`` in baselines is relative to.
        planned: routes of the search, at collection.
        baseline_keys: the key of each route that the baseline names, None for one that is not available.
        expression: what was searched, as an expression; empty for every bounded knob.
        default_key, default_route: the default route.
        pruned: knob, value and reason of values that this machine lacks.
        shapes: for each input the smallest shape, the one to be fast for, and the largest.
        test_sha256: digest of the test's own code.
        budget_s: seconds that the routes of the search may take, None without a limit.
        save_engine: folder for the winner's engine; empty keeps none.
    """

    tuning: str
    command_id: str
    gate_id: str
    owner: str
    file: str
    root: str
    golden_path: str
    baseline_path: str
    model_path: str
    model_sha256: str
    backend: str
    options: Mapping[str, Any]
    search: str
    metric: str
    epsilon: float | Mapping[str, float] | None
    atol: float
    rtol: float
    expression: str
    default_key: str
    default_route: str
    defaults_digest: str
    planned: int
    baseline_keys: Mapping[str, str | None]
    pruned: tuple[tuple[str, str, str], ...]
    max_regression: float
    gate: str
    against: str
    update_baseline: bool
    require_baseline: bool
    ambiguous_fails: bool
    final_builds: int
    shapes: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    max_routes: int = 10_000
    mixed_max_routes: int = 256
    test_sha256: str = ""
    budget_s: float | None = None
    save_engine: str = ""
    save_all_engines: bool = False
    build_only: bool = False

    def route_nodeid(self, route_id: str) -> str:
        """Node id of the report of a route."""
        if self.tuning.endswith("]"):
            return f"{self.tuning[:-1]}-{route_id}]"
        return f"{self.tuning}[{route_id}]"

    def as_plain(self) -> dict[str, Any]:
        """As built-in types."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> TuningSpec:
        """The inverse of ``as_plain``."""
        spec = cls(**{f.name: plain[f.name] for f in fields(cls)})
        return replace(spec, pruned=tuple((p[0], p[1], p[2]) for p in spec.pruned))
