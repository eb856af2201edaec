"""An ONNX Runtime session on a CUDA device as an engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gptune.engines.base import (
    BuildRejectedError,
    EngineFailedError,
    EngineInfo,
    SampleBlock,
)
from pytest_gptune.engines.cuda import (
    POISON,
    ClockReading,
    Clocks,
    CudaError,
    Device,
    DeviceBuffer,
    L2Flush,
    Region,
    Stream,
    Transfers,
    copy_to_host,
    launches_for,
    sample_queued,
)
from pytest_gptune.engines.host_pace import CoreTurns
from pytest_gptune.engines.onnxruntime.session import check_names, failed, is_of_another_shape
from pytest_gptune.engines.onnxruntime.tensors import element_type_of, from_ort_value, to_ort_value
from pytest_gptune.errors import GptuneError

if TYPE_CHECKING:
    import numpy as np

# Bindings kept: each holds device memory, and with graphs a graph of ONNX Runtime's as well.
_MOST_BINDINGS = 8

# ONNX Runtime's run options: which graph a run belongs to, none for -1; and whether it waits for the device.
_GRAPH_ID = "gpu_graph_id"
_NO_GRAPH = -1
_NO_WAIT = "disable_synchronize_execution_providers"


@dataclass(frozen=True)
class _Tensor:
    """An input or output as one run had it."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """What it takes of memory."""
        return self.dtype.itemsize * math.prod(self.shape)


class _Binding:
    """Inputs and outputs in device buffers whose addresses stay, and the graph that reads and writes them.

    Attributes:
        graph_id: ONNX Runtime's number of the graph, -1 for none.
        host_inputs: values of ONNX Runtime's own, for inputs that are read on the host.
        allocated: outputs that ONNX Runtime allocates in each run, since it would refuse buffers for them.
    """

    def __init__(self, io: Any, graph_id: int) -> None:
        self.io = io
        self.graph_id = graph_id
        self.inputs: dict[_Tensor, DeviceBuffer] = {}
        self.outputs: dict[_Tensor, DeviceBuffer] = {}
        self.host_inputs: dict[str, Any] = {}
        self.allocated: dict[str, _Tensor] = {}

    def close(self) -> None:
        """Free the buffers."""
        self.io = None
        for buffer in (*self.inputs.values(), *self.outputs.values()):
            buffer.close()
        self.inputs, self.outputs, self.host_inputs, self.allocated = {}, {}, {}, {}


class CudaSessionEngine:
    """A session whose work is all on one stream of ours: bound to device buffers, sampled by device events.

    Args:
        session: made with ``stream`` as its compute stream.
        info: facts about it; ``graph`` says whether the session captures graphs.
        serialise: gives the engine as it can be shipped.
        device: made current for all that is done here; another engine may have another.
        stream: all its work is enqueued on it; other engines may have it as well.
        l2_flush: empty the L2 cache before each sample.
        transfers: time the copies of inputs and outputs as well.
        memory: ONNX Runtime's name of the memory that buffers lie in.

    Raises:
        BuildRejectedError: there is to be a graph, and the host has a part in it.
    """

    def __init__(
        self,
        session: Any,
        info: EngineInfo,
        serialise: Callable[[], bytes | None],
        device: Device,
        stream: Stream,
        *,
        l2_flush: bool = False,
        transfers: bool = False,
        memory: str = "cuda",
    ) -> None:
        self._session = session
        self._info = info
        self._serialise = serialise
        self._device = device
        self._stream = stream
        self._memory = memory
        self._inputs = [item.name for item in session.get_inputs()]
        self._output_names = [item.name for item in session.get_outputs()]
        # Bound to the device, these would be copied from and to it in each run. With ONNX Runtime 1.31.1 a
        # model that ran on the host gave zeros that way.
        self._on_host = self._elsewhere("input") | self._elsewhere("output")
        if info.graph and self._on_host:
            raise BuildRejectedError(
                f"the route asks for a CUDA graph, but {', '.join(sorted(self._on_host))} lie on the host, "
                "which a replay neither reads nor writes",
                mend="leave enable_cuda_graph off for this model",
            )
        self._bindings: dict[object, _Binding] = {}
        self._graphs_made = 0
        self._loaded: _Binding | None = None
        self._batch = 1
        self._flush = L2Flush(device, stream) if l2_flush else None
        self._transfers: Transfers | None = None
        self._with_transfers = transfers
        self._clocks = Clocks(device)
        self._cores = CoreTurns()

    @property
    def info(self) -> EngineInfo:
        """Facts about it."""
        return self._info

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One inference: every output by its name; with a graph, from its replay."""
        import numpy as np

        binding = self._bind(inputs)
        for buffer in binding.outputs.values():
            buffer.poison(self._stream)
        if binding.allocated:
            self._bind_outputs(binding)
        self._run_once(binding.io, self._options(binding.graph_id, wait=True))
        results: dict[str, np.ndarray] = {}
        for name, value in zip(self._output_names, binding.io.get_outputs(), strict=True):
            if name in self._on_host:
                results[name] = from_ort_value(value, name)
            elif output := binding.allocated.get(name):
                results[name] = np.empty(tuple(value.shape()), output.dtype)
                copy_to_host(results[name], value.data_ptr(), self._stream)
        for output, buffer in binding.outputs.items():
            results[output.name] = np.empty(output.shape, output.dtype)
            buffer.copy_to_host(results[output.name], self._stream)
        return {name: results[name] for name in self._output_names}

    def load(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Put the inputs into device buffers; samples read those."""
        self._loaded = self._bind(inputs)
        self._drop_transfers()
        if self._with_transfers:
            self._transfers = self._transfers_of(self._loaded)
        self._batch = 1
        if self._flush is None:
            # The first runs search for algorithms and grow the arena; the fastest says how long one takes.
            with _failures():
                first = sample_queued(self._stream, self._enqueue(self._loaded), 0.02, at_most=10)
            self._batch = launches_for(min(first.latencies_s))

    def sample(self, seconds: float, at_most: int, batch: int = 1) -> SampleBlock:
        """Time inferences on the loaded inputs with device events, runs queued back to back."""
        if self._loaded is None:
            raise EngineFailedError("sample() before load(): no inputs are bound")
        self._device.make_current()
        self._cores.move()
        readings: list[ClockReading] = []
        with _failures():
            samples = sample_queued(
                self._stream,
                self._enqueue(self._loaded),
                seconds,
                at_most,
                1 if self._flush else max(batch, self._batch),
                flush=self._flush,
                observe=lambda: readings.append(self._clocks.read()),
            )
        self._cores.saw(samples.enqueue_share)
        reading = readings[0]
        return SampleBlock(
            samples.latencies_s,
            enqueue_share=samples.enqueue_share,
            sm_clock_hz=reading.sm_hz,
            conditions=reading.conditions,
        )

    def layer_times(self) -> dict[str, float]:
        """Empty: ONNX Runtime profiles a session for all its life or not at all."""
        return {}

    def serialize(self) -> bytes | None:
        """The optimised model; None where ONNX Runtime cannot write it."""
        return self._serialise()

    def close(self) -> None:
        """Drop the session, then the memory it used."""
        self._device.make_current()
        # What failed before was told. Whatever fails here, nothing may be under way when the session goes.
        with suppress(EngineFailedError):
            self._release_temporaries()
        with suppress(CudaError):
            self._device.synchronize()
        self._drop_transfers()
        for binding in self._bindings.values():
            binding.close()
        self._bindings, self._loaded, self._session = {}, None, None
        if self._flush is not None:
            self._flush.close()
        self._clocks.close()

    def _release_temporaries(self) -> None:
        """Have ONNX Runtime release the host memory that queued runs of kernels (an LSTM's) left for later.

        A run that synchronizes enqueues a callback for it; queued ones only collect, and the session's end
        enqueues it for them. Then the callback outlives the session, and frees its memory, which CUDA forbids
        in callbacks: ONNX Runtime 1.31.1 ends the process (``CudaStream::CleanUpOnRunEnd``, called by
        ``DeviceStreamCollectionImpl::CleanUp`` if ``sync_streams``).
        """
        if self._loaded is not None:
            if self._loaded.allocated:
                with _failures():
                    self._bind_outputs(self._loaded)
            self._run_once(self._loaded.io, self._options(self._loaded.graph_id, wait=True))

    def _drop_transfers(self) -> None:
        if self._transfers is not None:
            self._stream.synchronize()
            self._transfers.close()
            self._transfers = None

    def _transfers_of(self, binding: _Binding) -> Transfers:
        """Copies of what lies on the device; what lies on the host is copied by the session, if at all."""
        inputs, outputs = (
            [Region(buffer.pointer, tensor.nbytes) for tensor, buffer in placed.items()]
            for placed in (binding.inputs, binding.outputs)
        )

        def with_allocated() -> list[Region]:
            values = zip(self._output_names, binding.io.get_outputs(), strict=True)
            allocated = [
                Region(value.data_ptr(), tensor.nbytes)
                for name, value in values
                if (tensor := binding.allocated.get(name))
            ]
            return [*outputs, *allocated]

        if not binding.allocated:
            return Transfers(inputs, lambda: outputs, self._stream)
        # Only a run tells where they lie.
        self._bind_outputs(binding)
        self._run_once(binding.io, self._options(binding.graph_id, wait=True))
        return Transfers(inputs, with_allocated, self._stream)

    def _enqueue(self, binding: _Binding) -> Callable[[], object]:
        run, io, options = self._session.run_with_iobinding, binding.io, self._options(binding.graph_id)

        def run_and_allocate() -> None:
            self._bind_outputs(binding)
            run(io, options)

        enqueue = run_and_allocate if binding.allocated else lambda: run(io, options)
        return enqueue if self._transfers is None else self._transfers.around(enqueue)

    def _bind(self, inputs: Mapping[str, np.ndarray]) -> _Binding:
        """The binding for inputs and outputs of these shapes, with these inputs in it."""
        import numpy as np

        check_names(self._inputs, inputs)
        self._device.make_current()
        arrays = {name: np.asarray(inputs[name]) for name in self._inputs}
        with _failures():
            outputs = self._outputs_for(arrays)
            key = (*((name, array.dtype, array.shape) for name, array in arrays.items()), outputs)
            binding = self._bindings.pop(key, None)
            if binding is None:
                self._make_room()
                binding = self._new_binding(arrays, outputs)
            else:
                self._fill(binding, arrays)
            self._bindings[key] = binding  # the one used last stands last
        return binding

    def _outputs_for(self, arrays: Mapping[str, np.ndarray]) -> tuple[_Tensor, ...]:
        """Types and shapes of the outputs for these inputs, by a run without a graph into the host's memory.

        They may depend on values, so they are asked for each time.
        """
        binding, values = self._session.io_binding(), []
        for name, array in arrays.items():
            values.append(to_ort_value(array))
            binding.bind_ortvalue_input(name, values[-1])
        for name in self._output_names:
            binding.bind_output(name)
        self._run_once(binding, self._options(_NO_GRAPH, wait=True))
        outputs = []
        for name, value in zip(self._output_names, binding.get_outputs(), strict=True):
            array = from_ort_value(value, name)
            outputs.append(_Tensor(name, array.dtype, array.shape))
        return tuple(outputs)

    def _new_binding(self, arrays: Mapping[str, np.ndarray], outputs: tuple[_Tensor, ...]) -> _Binding:
        binding = _Binding(self._session.io_binding(), self._graphs_made if self._info.graph else _NO_GRAPH)
        self._graphs_made += 1
        try:
            for name, array in arrays.items():
                if name not in self._on_host:
                    tensor = _Tensor(name, array.dtype, array.shape)
                    buffer = binding.inputs[tensor] = DeviceBuffer(array.nbytes)
                    self._place(binding.io.bind_input, tensor, buffer)
            for output in outputs:
                if output.name not in self._on_host:
                    binding.outputs[output] = DeviceBuffer(output.nbytes)
            self._bind_outputs(binding)
            self._fill(binding, arrays)
            self._try(binding)
            if self._info.graph:
                self._capture(binding)
        except BaseException:
            with suppress(CudaError):  # what failed first is what is told
                binding.close()
            raise
        return binding

    def _bind_outputs(self, binding: _Binding) -> None:
        """Bind every output, in the session's order, to its buffer or to memory that the run allocates."""
        binding.io.clear_binding_outputs()
        placed = {tensor.name: (tensor, buffer) for tensor, buffer in binding.outputs.items()}
        for name in self._output_names:
            if name in placed:
                self._place(binding.io.bind_output, *placed[name])
            elif name in self._on_host:
                binding.io.bind_output(name)
            else:
                binding.io.bind_output(name, self._memory, self._device.index)

    def _try(self, binding: _Binding) -> None:
        """Run once without a graph; outputs of other shapes than declared are left to ONNX Runtime then.

        Raises:
            BuildRejectedError: there are such outputs, and there is to be a graph.
        """
        try:
            self._session.run_with_iobinding(binding.io, self._options(_NO_GRAPH, wait=True))
        except Exception as error:  # ONNX Runtime's errors derive from Exception alone
            declared = {item.name: item.shape for item in self._session.get_outputs()}
            elsewhere = [o for o in binding.outputs if not _fits(o.shape, declared[o.name])]
            if not (elsewhere and is_of_another_shape(error)):
                raise
        else:
            return
        for output in elsewhere:
            binding.allocated[output.name] = output
            binding.outputs.pop(output).close()
        if self._info.graph:
            raise BuildRejectedError(
                f"the route asks for a CUDA graph, but {', '.join(sorted(binding.allocated))} are of another "
                "shape than the model declares, so that each run allocates them elsewhere",
                mend="correct the declared shapes of the model, or leave enable_cuda_graph off",
            )
        self._bind_outputs(binding)

    def _place(self, bind: Callable[..., object], tensor: _Tensor, buffer: DeviceBuffer) -> None:
        element_type = element_type_of(tensor.dtype)
        bind(tensor.name, self._memory, self._device.index, element_type, list(tensor.shape), buffer.pointer)

    def _fill(self, binding: _Binding, arrays: Mapping[str, np.ndarray]) -> None:
        for tensor, buffer in binding.inputs.items():
            buffer.copy_from_host(arrays[tensor.name], self._stream)
        for name in self._inputs:
            if name in self._on_host:
                binding.host_inputs[name] = to_ort_value(arrays[name])
                binding.io.bind_ortvalue_input(name, binding.host_inputs[name])

    def _capture(self, binding: _Binding) -> None:
        """Let the session capture its graph, and prove that it replays one.

        ONNX Runtime does not tell. A replay writes where the captured run wrote, whatever is bound by then:
        with a second set of outputs bound, it is the first that is written.
        """
        self._run_once(binding.io, self._options(binding.graph_id, wait=True))
        second = self._session.io_binding()
        buffers: list[DeviceBuffer] = []
        try:
            for tensor, buffer in binding.inputs.items():
                self._place(second.bind_input, tensor, buffer)
            for output, buffer in binding.outputs.items():
                buffers.append(DeviceBuffer(buffer.nbytes))
                self._place(second.bind_output, output, buffers[-1])
                buffer.poison(self._stream)
                buffers[-1].poison(self._stream)
            self._run_once(second, self._options(binding.graph_id, wait=True))
            if any(self._written(buffer) for buffer in buffers):
                raise BuildRejectedError(
                    "the route asks for a CUDA graph, but ONNX Runtime ran without one",
                    mend="leave enable_cuda_graph off for this model",
                )
        finally:
            for buffer in buffers:
                buffer.close()

    def _written(self, buffer: DeviceBuffer) -> bool:
        import numpy as np

        content = np.empty(buffer.nbytes, np.uint8)
        buffer.copy_to_host(content, self._stream)
        return bool((content != POISON).any())

    def _make_room(self) -> None:
        """Close the bindings used longest ago, but not the loaded one."""
        for key, binding in list(self._bindings.items()):
            if len(self._bindings) < _MOST_BINDINGS:
                return
            if binding is not self._loaded:
                self._bindings.pop(key).close()

    def _run_once(self, io: Any, options: Any) -> None:
        with _failures():
            self._session.run_with_iobinding(io, options)

    def _elsewhere(self, kind: str) -> frozenset[str]:
        """Inputs or outputs that the session has in another memory than ours; older versions do not tell."""
        ask: Callable[[], list[Any]] = getattr(self._session, f"get_{kind}_memory_infos", list)
        names = self._inputs if kind == "input" else self._output_names
        places = zip(names, ask(), strict=False)
        return frozenset(name for name, info in places if info.name.lower() != self._memory)

    @staticmethod
    def _options(graph_id: int, *, wait: bool = False) -> Any:
        import onnxruntime as ort

        options = ort.RunOptions()
        # Told in every run: ONNX Runtime 1.31's InferenceSession looks for it, and where it is not there that
        # takes an exception of some 30 us (benchmarks/graph_id.py).
        options.add_run_config_entry(_GRAPH_ID, str(graph_id))
        options.add_run_config_entry(_NO_WAIT, "0" if wait else "1")
        return options


def _fits(shape: tuple[int, ...], declared: Sequence[Any]) -> bool:
    """Whether a tensor has the rank and the sizes that are declared; names stand for any size."""
    return len(shape) == len(declared) and all(
        not isinstance(size, int) or size == dim for dim, size in zip(shape, declared, strict=True)
    )


@contextmanager
def _failures() -> Iterator[None]:
    """What ONNX Runtime raises, as a failure of the engine; ours as they are."""
    try:
        yield
    except GptuneError:
        raise
    except Exception as error:  # ONNX Runtime's errors derive from Exception alone
        raise failed(error) from error
