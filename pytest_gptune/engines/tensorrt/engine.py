"""TensorRT engines that are loaded, on a CUDA device; and plans that wait for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pytest_gptune.engines.base import (
    EngineFailedError,
    EngineInfo,
    EngineOutOfMemoryError,
    SampleBlock,
)
from pytest_gptune.engines.cuda import (
    ClockReading,
    Clocks,
    CudaError,
    Device,
    Graph,
    L2Flush,
    ProcessStreams,
    Transfers,
    capture,
    launches_for,
    sample_queued,
)
from pytest_gptune.engines.host_pace import CoreTurns
from pytest_gptune.engines.tensorrt.bindings import Bindings, engine_tensors
from pytest_gptune.engines.tensorrt.build_log import given
from pytest_gptune.engines.tensorrt.builder import Target
from pytest_gptune.engines.tensorrt.layer_times import profiled
from pytest_gptune.engines.tensorrt.network import load_plugins

if TYPE_CHECKING:
    import numpy as np

_MIB = 1 << 20
# Samples of a device that was slowed down are dropped; where it stays slow, they are given with the reason.
_TRIES = 3


class LoadedEngine:
    """A deserialised engine with one execution context, on the streams that all engines of a process share.

    Raises:
        EngineFailedError: TensorRT does not load the plan; its log says why.
        EngineOutOfMemoryError: engine or context need more memory than there is, or than is allowed.
    """

    def __init__(self, target: Target, data: bytes, device: Device, streams: ProcessStreams) -> None:
        device.make_current()
        trt = target.trt
        self._target = target
        self._device = device
        self._runtime = runtime = given(trt.Runtime(target.log), "runtime", target.log)
        # The registry of a runtime is not that of a builder.
        load_plugins(trt, runtime.get_plugin_registry(), target.log, target.options.plugins)
        self._cuda_engine = cuda_engine = runtime.deserialize_cuda_engine(data)
        if cuda_engine is None:
            raise self._failed("TensorRT does not load the engine")
        self._check_memory()
        self._stream = streams.of(device)
        self._aux = streams.auxiliary(device, cuda_engine.num_aux_streams)
        self._context = context = self._make_context()
        self._tensors = engine_tensors(trt, cuda_engine)
        self._bindings = Bindings(trt, context, self._tensors, self._stream)
        self._graph: Graph | None = None
        self._graph_generation = -1
        self._captures = False
        self._flush = L2Flush(device, self._stream) if target.options.l2_flush else None
        self._clocks = Clocks(device)
        self._cores = CoreTurns()
        self._transfers: Transfers | None = None
        self._inputs: Mapping[str, np.ndarray] | None = None
        self._placed = False
        self._latency_s: float | None = None
        self.no_graph = "" if target.options.cuda_graph else "switched off by options={'cuda_graph': False}"

    def describe(self) -> str:
        """The inspector's description, JSON where the engine was built in detail; empty without one."""
        inspector = self._cuda_engine.create_engine_inspector()
        if inspector is None:
            return ""
        return str(inspector.get_engine_information(self._target.trt.LayerInformationFormat.JSON))

    def memory(self) -> dict[str, int]:
        """Bytes of the device's memory that its weights and its context take."""
        cuda_engine, trt, features = self._cuda_engine, self._target.trt, self._target.features
        found = {"context": int(getattr(cuda_engine, features.context_bytes))}
        if features.tells_weights:
            found["weights"] = int(cuda_engine.get_engine_stat(trt.EngineStat.TOTAL_WEIGHTS_SIZE))
        return found

    def layer_times(self) -> dict[str, float]:
        """Seconds by layer on the loaded inputs, in a second context that is given up afterwards."""
        if self._inputs is None:
            raise EngineFailedError("layer_times() before load(): no inputs are bound")
        self._device.make_current()
        trt, context = self._target.trt, self._make_context()
        bindings = Bindings(trt, context, self._tensors, self._stream)
        try:
            bindings.bind(self._inputs)

            def run() -> None:
                if not context.execute_async_v3(self._stream.handle):
                    bindings.raise_refusal()
                    raise self._failed("TensorRT does not run the engine layer by layer")
                self._stream.synchronize()

            return profiled(trt, context, run)
        finally:
            bindings.close()

    def try_graph(self, inputs: Mapping[str, np.ndarray]) -> bool:
        """Whether runs can be captured; ``no_graph`` says why not.

        What is said here holds for all that is measured: from now on a capture that fails is a failure.
        """
        self.bind(inputs)
        self._captures = self._graph is not None
        return self._captures

    def bind(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Put the inputs on the device, run once, and capture what is run from now on."""
        self._device.make_current()
        self._bindings.bind(inputs)
        if self._graph is not None and self._graph_generation == self._bindings.generation:
            return
        self._drop_graph()
        # The first run after a change of shapes allocates and loads, which cannot be captured.
        self._enqueue()
        self._stream.synchronize()
        if self._bindings.allocates and not self.no_graph:
            self.no_graph = "the shape of an output depends on data"
        if self.no_graph:
            return
        try:
            self._graph = capture(self._stream, self._enqueue)
        except EngineFailedError as error:
            if self._captures:
                raise EngineFailedError(
                    f"no CUDA graph can be captured at these shapes, as it could at others: {error.what}",
                    mend="run it without graphs at all: options={'cuda_graph': False}",
                ) from error
            # Some layers wait for the host within a run; that is a property of the engine, not a fault.
            self.no_graph = error.what
            return
        self._graph_generation = self._bindings.generation

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One inference without the graph and one with it, which have to agree; the outputs of the latter."""
        self._placed = False
        self.bind(inputs)
        plain = self._outputs_of(self._enqueue)
        if self._graph is None:
            return plain
        replayed = self._outputs_of(self._launch())
        if differing := _differing(plain, replayed):
            again = self._outputs_of(self._enqueue)
            # An engine that sums in changing order differs from itself as well.
            steady = [name for name in differing if not _differing({name: plain[name]}, {name: again[name]})]
            if steady:
                raise EngineFailedError(
                    f"the replayed CUDA graph gives other values of {', '.join(steady)} than a run without it"
                )
        return replayed

    def load(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Bind the inputs for the samples that follow."""
        self._inputs, self._placed, self._latency_s = None, False, None
        self._drop_transfers()
        self.bind(inputs)
        if self._target.options.transfers:
            bindings = self._bindings
            outputs = bindings.regions(inputs=False)
            self._transfers = Transfers(
                bindings.regions(inputs=True),
                # What a run allocates may lie elsewhere after the next one; the rest costs no time to tell.
                lambda: bindings.regions(inputs=False) if bindings.allocates else outputs,
                self._stream,
            )
        self._inputs, self._placed = dict(inputs), True

    def sample(self, seconds: float, at_most: int, batch: int) -> SampleBlock:
        """Time inferences on the loaded inputs by device events."""
        if self._inputs is None:
            raise EngineFailedError("sample() before load(): no inputs are bound")
        self._device.make_current()
        if not self._placed:
            # Other inputs were run meanwhile, in the same buffers and perhaps of other shapes.
            self.load(self._inputs)
        enqueue: Callable[[], object] = self._enqueue if self._graph is None else self._launch()
        if self._transfers is not None:
            enqueue = self._transfers.around(enqueue)
        if self._flush is not None:
            batch = 1
        elif self._latency_s is not None:
            batch = max(batch, launches_for(self._latency_s))
        for _ in range(_TRIES):
            block = self._block(enqueue, seconds, at_most, batch)
            if not any(condition.startswith("throttled") for condition in block.conditions):
                break
        return block

    def _block(self, enqueue: Callable[[], object], seconds: float, at_most: int, batch: int) -> SampleBlock:
        readings: list[ClockReading] = []
        self._cores.move()
        samples = sample_queued(
            self._stream,
            enqueue,
            seconds,
            at_most,
            batch,
            flush=self._flush,
            observe=lambda: readings.append(self._clocks.read()),
        )
        self._cores.saw(samples.enqueue_share)
        self._latency_s = min(samples.latencies_s)
        return SampleBlock(
            samples.latencies_s,
            enqueue_share=samples.enqueue_share,
            sm_clock_hz=readings[0].sm_hz,
            conditions=readings[0].conditions,
        )

    def close(self) -> None:
        """Release the device's memory; the order is that of who uses whom."""
        self._device.make_current()
        with suppress(CudaError):  # a block that failed may have left runs that use what goes now
            self._stream.synchronize()
        self._drop_graph()
        self._drop_transfers()
        self._context = None
        self._bindings.close()
        if self._flush is not None:
            self._flush.close()
        self._clocks.close()
        self._cuda_engine = None
        self._runtime = None

    def zeros(self) -> dict[str, np.ndarray]:
        """Inputs of the shapes that the engine is made fast for, all zero; shapes hold their opt values."""
        import numpy as np

        from pytest_gptune.engines.tensorrt.tensors import array_dtype

        found = {}
        for tensor in self._tensors:
            if not tensor.is_input:
                continue
            shape = tuple(self._cuda_engine.get_tensor_shape(tensor.name))
            if any(dim < 0 for dim in shape):
                shape = tuple(self._cuda_engine.get_tensor_profile_shape(tensor.name, 0)[1])
            found[tensor.name] = np.zeros(shape, array_dtype(tensor.type_name))
            if tensor.on_host:
                # Unlike all its neighbours it takes the profile first.
                values = self._cuda_engine.get_tensor_profile_values(0, tensor.name)
                if values:
                    found[tensor.name][...] = np.reshape(np.array(values[1]), shape)
        return found

    def _enqueue(self) -> None:
        if not self._context.execute_async_v3(self._stream.handle):
            self._bindings.raise_refusal()
            raise self._failed("TensorRT does not enqueue the engine")

    def _launch(self) -> Callable[[], None]:
        graph, stream = self._graph, self._stream
        assert graph is not None
        return lambda: graph.launch(stream)

    def _outputs_of(self, enqueue: Callable[[], None]) -> dict[str, np.ndarray]:
        self._bindings.poison()
        enqueue()
        self._stream.synchronize()
        return self._bindings.outputs()

    def _drop_graph(self) -> None:
        if self._graph is not None:
            self._graph.close()
            self._graph = None

    def _drop_transfers(self) -> None:
        if self._transfers is not None:
            self._stream.synchronize()
            self._transfers.close()
            self._transfers = None

    def _make_context(self) -> Any:
        """An execution context on the shared streams."""
        context = self._cuda_engine.create_execution_context()
        if context is None:
            raise EngineOutOfMemoryError(
                "TensorRT makes no execution context, as where memory runs out",
                log=tuple(self._target.log.tail()),
            )
        # Markers for profilers lengthen the enqueue.
        context.nvtx_verbosity = self._target.trt.ProfilingVerbosity.NONE
        if self._aux:
            # Those that TensorRT makes by itself wait for the default stream.
            context.set_aux_streams([stream.handle for stream in self._aux])
        return context

    def _check_memory(self) -> None:
        allowed = self._target.options.device_memory_mib
        parts = self.memory()
        if allowed is not None and sum(parts.values()) > allowed * _MIB:
            needed = " and ".join(f"{size / _MIB:.1f} MiB for its {part}" for part, size in parts.items())
            raise EngineOutOfMemoryError(
                f"the engine needs {needed} of the device's memory, {allowed} MiB are allowed",
                mend="allow more with options={'device_memory_mib': ...}",
            )

    def _failed(self, what: str) -> EngineFailedError:
        errors = self._target.log.errors()
        return EngineFailedError(
            f"{what}: {errors[0] if errors else 'it does not say why'}", log=tuple(self._target.log.tail())
        )


class TensorRtEngine:
    """A plan, loaded where there is a device that it runs on."""

    def __init__(self, info: EngineInfo, data: bytes, loaded: LoadedEngine | None) -> None:
        self._info = info
        self._data = data
        self._loaded = loaded

    @property
    def info(self) -> EngineInfo:
        """Facts about it."""
        return self._info

    def serialize(self) -> bytes | None:
        """The plan, as TensorRT's own tools read it."""
        return self._data

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One inference: every output by its name."""
        return self._engine().run(inputs)

    def load(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Copy the inputs to the device; samples read those."""
        self._engine().load(inputs)

    def sample(self, seconds: float, at_most: int, batch: int = 1) -> SampleBlock:
        """Time inferences on the loaded inputs."""
        return self._engine().sample(seconds, at_most, batch)

    def layer_times(self) -> dict[str, float]:
        """Seconds by layer on the loaded inputs."""
        return self._engine().layer_times()

    def close(self) -> None:
        """Release it."""
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None

    def _engine(self) -> LoadedEngine:
        if self._loaded is None:
            raise EngineFailedError(
                "the engine was built for compute capabilities that are not here, or it was closed",
                mend="run it on a machine with such a GPU; without one use --gptune-build-only",
            )
        return self._loaded


def _differing(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> list[str]:
    """Names of outputs that are not equal to the bit."""
    return [
        name
        for name, array in first.items()
        if array.shape != second[name].shape or array.tobytes() != second[name].tobytes()
    ]
