"""The protocol between the search loop and a backend.

Everything that crosses it is plain data (built-in types, frozen dataclasses of them, and arrays), because an
engine may live in another process. A backend builds engines; an engine runs and is sampled. When to stop
sampling, what to compare with what, and what it means is decided elsewhere (``timing/``, ``verdict``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pytest_gptune.errors import GptuneError
from pytest_gptune.search.base import RouteStatus

if TYPE_CHECKING:
    import numpy as np

LatencyKind = Literal["device_queued", "device_waited", "host_wall"]

RoutePairs = tuple[tuple[str, str], ...]


class BackendMissingError(GptuneError):
    """The backend, its package or its device is not there."""


class RouteFailureError(GptuneError):
    """A route ends here, and the search goes on; ``status`` is the route's."""

    status: RouteStatus = "crashed"


class BuildRejectedError(RouteFailureError):
    """The backend refuses to build this route, or cannot honour it."""

    status = "rejected"


class EngineFailedError(RouteFailureError):
    """Building or running the engine failed: an exception of the backend, or the death of its process."""

    status = "crashed"


class EngineTimeoutError(RouteFailureError):
    """Building or running the engine took longer than a route may."""

    status = "timeout"


class EngineOutOfMemoryError(RouteFailureError):
    """The memory of host or device ran out."""

    status = "out_of_memory"


@dataclass(frozen=True)
class TensorInfo:
    """Name, element type and shape of one input or output of a model.

    Attributes:
        dtype: NumPy's or ml_dtypes' name of the element type, as ``float32`` or ``bfloat16``.
        shape: a number for each static dimension, a name or None for each dynamic one; None in place of the
            tuple where even the rank is unknown.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None

    @property
    def dynamic(self) -> bool:
        """Whether the declaration leaves anything of the shape open."""
        return self.shape is None or any(not isinstance(dim, int) or dim < 0 for dim in self.shape)

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.name}: {self.dtype}[any rank]"
        dims = ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.name}: {self.dtype}[{dims}]"


@dataclass(frozen=True)
class ModelInfo:
    """What is known of a model file without building it."""

    path: str
    sha256: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    operators: frozenset[str] = frozenset()
    data_files: tuple[str, ...] = ()


@dataclass(frozen=True)
class ShapeRange:
    """The shapes of one input that an engine is built for.

    Attributes:
        min, max: the smallest and the largest, dimension by dimension.
        opt: what the engine is made fast for.
    """

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]

    @classmethod
    def fixed(cls, dims: Sequence[int]) -> ShapeRange:
        """One shape and no other."""
        return cls(tuple(dims), tuple(dims), tuple(dims))

    @classmethod
    def over(cls, shapes: Sequence[Sequence[int]]) -> ShapeRange:
        """The narrowest range with all of these shapes, which are of one rank; the first is the opt."""
        columns = list(zip(*shapes, strict=True))
        return cls(tuple(map(min, columns)), tuple(shapes[0]), tuple(map(max, columns)))

    def as_plain(self) -> list[list[int]]:
        """As built-in types."""
        return [list(self.min), list(self.opt), list(self.max)]

    @classmethod
    def from_plain(cls, plain: Sequence[Sequence[int]]) -> ShapeRange:
        """The inverse of ``as_plain``."""
        least, opt, most = (tuple(dims) for dims in plain)
        return cls(least, opt, most)


@dataclass(frozen=True)
class BuildRequest:
    """What an engine is built from.

    Attributes:
        model: path of the ONNX file; external data stands beside it.
        model_sha256: its digest, external data included.
        route: the knobs that differ from their defaults; empty for the default route.
        shapes: the shapes of each input the engine is declared for, where the model leaves them open.
        options: the backend's own options, from the marker's ``options``.
        fresh: a replicate of the finals: nothing that an earlier build left is used, as a timing cache,
            for it would make the two the same build.
        kept: for ``load`` only: the ``facts`` of the engine when it was kept.
        golden: path of the golden, whose inputs calibrate a route that needs it; empty where there is none.
        digest: of the engine, where another process has found it out; the backend need not then, so that
            nothing of that is left behind in the process whose engine is measured.
    """

    model: str
    model_sha256: str
    route: RoutePairs = ()
    shapes: Mapping[str, ShapeRange] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    fresh: bool = False
    kept: Mapping[str, str] = field(default_factory=dict)
    golden: str = ""
    digest: str | None = None

    @property
    def route_text(self) -> str:
        """The route as it is printed, ``default`` for the empty one."""
        return " ".join(f"{knob}={value}" for knob, value in self.route) or "default"


@dataclass(frozen=True)
class EngineInfo:
    """Facts about an engine that has been built.

    Attributes:
        digest: identifies the engine: equal digests are the same engine, built twice.
        digest_proves: False where equal digests are necessary and not enough: outputs equal to the bit and
            equal latencies complete the proof.
        engine_bytes: size of the serialised engine, None where the backend has none.
        graph: whether runs are replayed from a captured graph.
        graph_missing: whether they are not where the backend would replay them, since none can be captured or
            graphs are switched off: no such engine compares with one that has a graph.
        layers: what the compiler made of the model, a line for each layer; empty where it does not tell.
        facts: what has to agree for the serialised engine to be loaded again, and its SHA-256; empty where
            an engine cannot be kept.
        device_memory_bytes: the device's memory that it holds, by ``weights`` and ``context`` (activations
            and scratch); empty where the backend does not tell.
    """

    digest: str
    latency_kind: LatencyKind
    build_seconds: float
    engine_bytes: int | None = None
    graph: bool = False
    warnings: tuple[str, ...] = ()
    digest_proves: bool = True
    layers: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    device_memory_bytes: Mapping[str, int] = field(default_factory=dict)
    graph_missing: bool = False


@dataclass(frozen=True)
class Environment:
    """The machine and software a backend runs on; the fingerprint is made from it.

    Attributes:
        device_class: devices whose latencies may be compared, as ``cpu:AMD EPYC 7763:2``.
        tuner_version: version of what owns the knobs.
        software: versions and settings; a change makes another stack.
        device: facts of the device; a change makes another device.
        noted: recorded, never compared.
    """

    device_class: str
    tuner_version: str
    software: Mapping[str, Any]
    device: Mapping[str, Any]
    noted: Mapping[str, Any]


@dataclass(frozen=True)
class SampleBlock:
    """Samples taken one after another, and what is known of the conditions they were taken under.

    Attributes:
        latencies_s: seconds per inference, in the order taken.
        enqueue_share: the host's time to enqueue over the device's time to compute; near 1 the host is what
            is measured. None on a host engine.
        sm_clock_hz: clock of the device while the samples were taken; None where there is none.
        others_share: share of the usable cores' time that other processes took; None where it is unknown.
        conditions: what else disturbed the samples, in a few words each.
    """

    latencies_s: tuple[float, ...]
    enqueue_share: float | None = None
    sm_clock_hz: float | None = None
    others_share: float | None = None
    conditions: tuple[str, ...] = ()


class Engine(Protocol):
    """An engine that has been built and is loaded."""

    @property
    def info(self) -> EngineInfo:
        """Facts about it."""

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One inference: every output by its name, as arrays that own their data.

        Raises:
            RouteFailureError: it failed, ran out of memory or time, or its process died.
        """

    def load(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Put the inputs where the samples that follow read them, outside of the timed region."""

    def sample(self, seconds: float, at_most: int, batch: int = 1) -> SampleBlock:
        """Time inferences on the loaded inputs for ``seconds``, or until ``at_most`` samples are taken.

        Args:
            seconds: wall time to spend; at least one sample is taken.
            at_most: the most samples to take.
            batch: inferences per sample; a sample is their mean.
        """

    def layer_times(self) -> dict[str, float]:
        """Seconds of one inference on the loaded inputs by layer; empty where the backend does not tell.

        From runs of their own: a profiler lengthens what it watches, so that these are shares, to be compared
        with one another and never with samples. An engine of a backend of one's own may do without it.
        """

    def serialize(self) -> bytes | None:
        """The engine as it can be shipped and loaded again; None where the backend has no such form."""

    def close(self) -> None:
        """Release what the engine holds; it is not used afterwards."""


class Backend(Protocol):
    """Builds engines for one kind of compiler or runtime."""

    name: str

    def check_available(self, options: Mapping[str, Any]) -> None:
        """Raise BackendMissingError, saying what mends it, unless engines can be built and run here."""

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise SettingsError for an option this backend does not know or a value it cannot use."""

    def environment(self, options: Mapping[str, Any]) -> Environment:
        """The machine and software as this backend sees them."""

    def knob_space(self, model: ModelInfo | None, options: Mapping[str, Any]) -> str:
        """The knob space as JSON in the form of ``IBuilderConfig.getAllBuildRoutes()``."""

    def process_family(self, route: RoutePairs) -> str | None:
        """Names the process-wide settings of a route; two families never share a process. Empty: none.

        None: every build gets a process of its own, since earlier builds of a process leave traces in later
        ones.
        """

    def engine_digest(self, request: BuildRequest) -> str | None:
        """The digest that the engine of ``request`` has, known before it is built; None where it is not.

        Raises:
            ModelError, RouteFailureError: as ``build``.
        """

    def build(self, request: BuildRequest) -> Engine:
        """Build and load an engine.

        Raises:
            ModelError: the model itself cannot be built, whatever the route.
            RouteFailureError: this route cannot be built.
        """

    def load(self, request: BuildRequest, data: bytes) -> Engine:
        """Load an engine that was serialised; the caller has checked that it is the one that was recorded.

        Args:
            request: what it was built from.
            data: what ``Engine.serialize`` gave.

        Raises:
            RouteFailureError: it cannot be loaded here.
        """
