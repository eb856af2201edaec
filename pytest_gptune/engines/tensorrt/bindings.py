"""The tensors of an engine on the device: inputs bound by name, outputs allocated, poisoned and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gptune.engines.base import EngineFailedError, RouteFailureError
from pytest_gptune.engines.cuda import DeviceBuffer, Region, Stream
from pytest_gptune.engines.tensorrt.tensors import (
    array_dtype,
    device_bytes,
    from_device_layout,
    to_device_layout,
)

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Tensor:
    """An input or output of an engine.

    Attributes:
        type_name: member of ``trt.DataType``.
        on_host: it is read or written by the host, as shapes are.
    """

    name: str
    is_input: bool
    type_name: str
    on_host: bool


def engine_tensors(trt: Any, cuda_engine: Any) -> tuple[Tensor, ...]:
    """Inputs and outputs of a deserialised engine, in its order."""
    names = [cuda_engine.get_tensor_name(index) for index in range(cuda_engine.num_io_tensors)]
    return tuple(
        Tensor(
            name,
            cuda_engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT,
            cuda_engine.get_tensor_dtype(name).name,
            cuda_engine.get_tensor_location(name) == trt.TensorLocation.HOST,
        )
        for name in names
    )


class Bindings:
    """Memory of one execution context's tensors.

    Attributes:
        generation: grows with every change of a shape or an address; what was captured before is stale then.
        allocates: whether an output's shape depends on data, so that it is allocated while it runs.
    """

    def __init__(self, trt: Any, context: Any, tensors: tuple[Tensor, ...], stream: Stream) -> None:
        self.generation = 0
        self.allocates = False
        self._trt = trt
        self._context = context
        self._tensors = tensors
        self._stream = stream
        self._buffers: dict[str, DeviceBuffer] = {}
        self._on_host: dict[str, np.ndarray] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}

    def bind(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Copy the inputs to the device and give every tensor its address.

        Raises:
            EngineFailedError: names, types or shapes do not fit the engine.
            EngineOutOfMemoryError: the device has not enough memory.
        """
        context = self._context
        self._check_names(inputs)
        for tensor in self._tensors:
            if tensor.is_input:
                self._bind_input(tensor, inputs[tensor.name])
        missing = context.infer_shapes()
        if missing:
            raise EngineFailedError(f"TensorRT lacks shapes or values of {', '.join(missing)}")
        for tensor in self._tensors:
            if not tensor.is_input:
                self._bind_output(tensor)

    def poison(self) -> None:
        """Fill every output, so that one that is not written does not hold an earlier run's values."""
        for tensor in self._tensors:
            if tensor.is_input:
                continue
            if tensor.on_host:
                self._on_host[tensor.name].fill(0xFF)
            elif tensor.name in self._allocators:
                if (buffer := self._allocators[tensor.name].buffer) is not None:
                    buffer.poison(self._stream)
            else:
                self._buffers[tensor.name].poison(self._stream)

    def outputs(self) -> dict[str, np.ndarray]:
        """Every output by its name, after the stream was waited for."""
        import numpy as np

        self.raise_refusal()
        found = {}
        for tensor in self._tensors:
            if tensor.is_input:
                continue
            name, allocator = tensor.name, self._allocators.get(tensor.name)
            shape = self._shapes[name] if allocator is None else allocator.shape
            if shape is None:
                raise EngineFailedError(f"TensorRT did not tell the shape of output '{name}'")
            raw = np.empty(device_bytes(tensor.type_name, shape), np.uint8)
            if tensor.on_host:
                raw[:] = self._on_host[name][: raw.size]
            elif raw.size:
                buffer = self._buffers[name] if allocator is None else allocator.buffer
                buffer.copy_to_host(raw, self._stream)
            found[name] = from_device_layout(raw, tensor.type_name, shape)
        return found

    def regions(self, *, inputs: bool) -> list[Region]:
        """What the inputs, or the outputs, take of the device's memory; of outputs, as the last run left it.

        Buffers stay as large as the largest shape was that they held.
        """
        found = []
        for tensor in self._tensors:
            allocator = self._allocators.get(tensor.name)
            buffer = self._buffers.get(tensor.name) if allocator is None else allocator.buffer
            shape = self._shapes.get(tensor.name) if allocator is None else allocator.shape
            if tensor.is_input is inputs and buffer is not None and shape is not None:
                found.append(Region(buffer.pointer, device_bytes(tensor.type_name, shape)))
        return found

    def raise_refusal(self) -> None:
        """Raise what kept an output from being allocated while the engine ran, if anything did."""
        for allocator in self._allocators.values():
            if allocator.refusal is not None:
                raise allocator.refusal

    def close(self) -> None:
        """Free the memory."""
        for buffer in self._buffers.values():
            buffer.close()
        for allocator in self._allocators.values():
            allocator.close()
        self._buffers.clear()
        self._allocators.clear()

    def _check_names(self, inputs: Mapping[str, np.ndarray]) -> None:
        wanted = [tensor.name for tensor in self._tensors if tensor.is_input]
        missing = [name for name in wanted if name not in inputs]
        extra = [name for name in inputs if name not in wanted]
        if missing or extra:
            raise EngineFailedError(
                f"inputs do not match the engine's: missing {missing}, unknown {extra}",
                mend=f"give exactly {wanted}",
            )

    def _bind_input(self, tensor: Tensor, array: np.ndarray) -> None:
        import numpy as np

        raw = to_device_layout(np.asarray(array), tensor.type_name)
        shape = tuple(np.shape(array))
        if not self._context.set_input_shape(tensor.name, shape):
            raise EngineFailedError(
                f"input '{tensor.name}' of shape {list(shape)} is outside of what the engine was built for",
                mend="declare the shape with shapes= of the marker: min, opt and max span all cases",
            )
        self._note_shape(tensor.name, shape)
        if tensor.on_host:
            held = self._place_on_host(tensor, raw.size)
            if held[: raw.size].tobytes() != raw.tobytes():
                # Values that decide shapes are part of what is captured.
                self.generation += 1
                held[: raw.size] = raw
        else:
            self._place(tensor, raw.size).copy_from_host(raw, self._stream)

    def _bind_output(self, tensor: Tensor) -> None:
        shape = tuple(self._context.get_tensor_shape(tensor.name))
        if any(dim < 0 for dim in shape):
            self._bind_allocator(tensor)
            return
        self._note_shape(tensor.name, shape)
        size = device_bytes(tensor.type_name, shape)
        if tensor.on_host:
            self._place_on_host(tensor, size)
        else:
            self._place(tensor, size)

    def _bind_allocator(self, tensor: Tensor) -> None:
        if tensor.name in self._allocators:
            self._allocators[tensor.name].shape = None
            self._allocators[tensor.name].refusal = None
            return
        self.allocates = True
        allocator = make_output_allocator(self._trt)
        self._allocators[tensor.name] = allocator
        if not self._context.set_output_allocator(tensor.name, allocator):
            raise EngineFailedError(f"TensorRT takes no allocator for output '{tensor.name}'")

    def _place(self, tensor: Tensor, size: int) -> DeviceBuffer:
        """Device memory of at least ``size`` bytes; it grows, and stays where it is otherwise."""
        buffer = self._buffers.get(tensor.name)
        if buffer is None or buffer.nbytes < size:
            if buffer is not None:
                buffer.close()
                del self._buffers[tensor.name]
            buffer = self._buffers[tensor.name] = DeviceBuffer(size)
        self._address(tensor.name, buffer.pointer)
        return buffer

    def _place_on_host(self, tensor: Tensor, size: int) -> np.ndarray:
        import numpy as np

        array = self._on_host.get(tensor.name)
        if array is None or array.size < size:
            array = self._on_host[tensor.name] = np.zeros(
                max(size, array_dtype(tensor.type_name).itemsize), np.uint8
            )
        self._address(tensor.name, array.ctypes.data)
        return array

    def _address(self, name: str, pointer: int) -> None:
        if self._addresses.get(name) == pointer:
            return
        if not self._context.set_tensor_address(name, pointer):
            raise EngineFailedError(f"TensorRT refuses the address of '{name}'")
        self._addresses[name] = pointer
        self.generation += 1

    def _note_shape(self, name: str, shape: tuple[int, ...]) -> None:
        if self._shapes.get(name) != shape:
            self._shapes[name] = shape
            self.generation += 1


def make_output_allocator(trt: Any) -> Any:
    """A ``trt.IOutputAllocator`` over one buffer that grows; its public attributes and ``close`` are ours."""

    class OutputAllocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.shape: tuple[int, ...] | None = None
            self.buffer: DeviceBuffer | None = None
            self.refusal: RouteFailureError | None = None

        def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
            try:
                if self.buffer is None or self.buffer.nbytes < size:
                    self.close()
                    self.buffer = DeviceBuffer(size)
            except RouteFailureError as error:
                # An exception would end the process: what calls this throws none.
                self.refusal = error
                return 0
            return self.buffer.pointer

        def reallocate_output_async(
            self, tensor_name: str, memory: int, size: int, alignment: int, stream: int
        ) -> int:
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            self.shape = tuple(shape)

        def close(self) -> None:
            if self.buffer is not None:
                self.buffer.close()
                self.buffer = None

    return OutputAllocator()
