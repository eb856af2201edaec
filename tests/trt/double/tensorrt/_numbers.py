"""What an engine of the double computes: ONNX Runtime's numbers, between addresses of memory."""

from __future__ import annotations

import ctypes

import numpy as np
import onnx
import onnxruntime

_DTYPES = {
    onnx.TensorProto.FLOAT: ("FLOAT", np.float32),
    onnx.TensorProto.FLOAT16: ("HALF", np.float16),
    onnx.TensorProto.INT32: ("INT32", np.int32),
    onnx.TensorProto.INT64: ("INT64", np.int64),
    onnx.TensorProto.BOOL: ("BOOL", np.bool_),
}
_DATA_DEPENDENT = {"NonZero"}


def declared_shape(value):
    return tuple(
        dim.dim_value if dim.WhichOneof("value") == "dim_value" else -1
        for dim in value.type.tensor_type.shape.dim
    )


def shape_inputs(graph):
    """Inputs of the model that say which shape something has."""
    return {node.input[1] for node in graph.node if node.op_type in ("Expand", "Reshape")}


class Model:
    """A model, with its inputs and outputs by name: ``tensors`` are members of ``DataType``."""

    def __init__(self, path):
        graph = onnx.load(path).graph
        weights = {tensor.name for tensor in graph.initializer}
        values = [value for value in graph.input if value.name not in weights]
        self.weights_bytes = sum(onnx.numpy_helper.to_array(item).nbytes for item in graph.initializer)
        self.inputs = [value.name for value in values]
        self.outputs = [value.name for value in graph.output]
        self.on_host = shape_inputs(graph) & set(self.inputs)
        kinds = {value.name: value.type.tensor_type.elem_type for value in (*values, *graph.output)}
        self.tensors = {name: _DTYPES[kind][0] for name, kind in kinds.items()}
        self._dtypes = {name: _DTYPES[kind][1] for name, kind in kinds.items()}
        self.shapes = {value.name: declared_shape(value) for value in (*values, *graph.output)}
        self._depends = any(node.op_type in _DATA_DEPENDENT for node in graph.node)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def output_shapes(self, shapes, addresses):
        """The shape of each output, -1 where data decides."""
        zeros = {name: np.zeros(shapes[name], self._dtypes[name]) for name in self.inputs}
        zeros |= self.values_on_host(shapes, addresses)
        found = dict(zip(self.outputs, self._session.run(None, zeros), strict=True))
        if self._depends:
            return {name: tuple(-1 for _ in array.shape) for name, array in found.items()}
        return {name: array.shape for name, array in found.items()}

    def values_on_host(self, shapes, addresses):
        """What the inputs that hold shapes hold now."""
        return {name: self._read(name, shapes, addresses) for name in self.on_host}

    def _read(self, name, shapes, addresses):
        array = np.zeros(shapes[name], self._dtypes[name])
        ctypes.memmove(array.ctypes.data, addresses[name], array.nbytes)
        return array

    def run(self, shapes, addresses, allocators, values, offset):
        """Read the inputs, compute, and write the outputs with ``offset`` added; False without memory."""
        given = {name: self._read(name, shapes, addresses) for name in self.inputs} | values
        for name, array in zip(self.outputs, self._session.run(None, given), strict=True):
            array = np.ascontiguousarray(array + offset, self._dtypes[name])
            address = addresses.get(name)
            if name in allocators:
                address = allocators[name].reallocate_output_async(name, 0, array.nbytes, 256, 0)
                allocators[name].notify_shape(name, array.shape)
            if not address:
                return False
            ctypes.memmove(address, array.ctypes.data, array.nbytes)
        return True
