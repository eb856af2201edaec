"""A double of ``cuda.bindings.runtime`` whose one device is this process: its memory, and a clock of its own.

What is enqueued runs at once. The device's clock stands still but for what kernels say they take, so that
latencies are exact. A stream that is captured keeps what is enqueued instead of running it.
"""

# ruff: noqa: N801, N815, N816

from __future__ import annotations

import ctypes
import enum
from types import SimpleNamespace

cudaStreamNonBlocking = 1


class cudaError_t(enum.IntEnum):
    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorNotReady = 600
    cudaErrorStreamCaptureUnsupported = 900


class cudaMemcpyKind(enum.IntEnum):
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2


class cudaStreamCaptureMode(enum.IntEnum):
    cudaStreamCaptureModeThreadLocal = 1


class cudaDeviceAttr(enum.IntEnum):
    cudaDevAttrComputeMode = 20


class cudaComputeMode(enum.IntEnum):
    cudaComputeModeExclusiveProcess = 3


_OK = cudaError_t.cudaSuccess
_MEMORY_BYTES = 1 << 30


class _Device:
    def __init__(self):
        self.clock_s = 0.0
        self.captures = {}
        self.memory = {}
        self.graphs = {}
        self.next = 1

    def number(self):
        self.next += 1
        return self.next

    def enqueue(self, stream, work, seconds=0.0):
        """What the double of TensorRT, and the functions below, put on a stream."""
        if int(stream) in self.captures:
            self.captures[int(stream)].append((work, seconds))
            return
        work()
        self.clock_s += seconds


_device = _Device()


class cudaEvent_t:
    def __init__(self):
        self.at_s = None
        self.settled = False


def cudaGetDeviceCount():
    return _OK, 1


def cudaDeviceGetAttribute(attribute, index):
    assert attribute == cudaDeviceAttr.cudaDevAttrComputeMode
    return _OK, 0


def cudaGetDeviceProperties(index):
    return _OK, SimpleNamespace(
        name=b"Double GPU\0\0",
        uuid=SimpleNamespace(bytes=bytes(range(16))),
        major=9,
        minor=0,
        multiProcessorCount=4,
        totalGlobalMem=_MEMORY_BYTES,
        l2CacheSize=1 << 16,
        pciDomainID=0,
        pciBusID=1,
        pciDeviceID=0,
    )


def cudaSetDevice(index):
    return (_OK,)


def cudaMemGetInfo():
    return _OK, _MEMORY_BYTES, _MEMORY_BYTES


def cudaGetLastError():
    return (_OK,)


def cudaGetErrorString(code):
    return _OK, cudaError_t(code).name.encode()


def cudaMalloc(size):
    if size > _MEMORY_BYTES:
        return cudaError_t.cudaErrorMemoryAllocation, 0
    block = ctypes.create_string_buffer(size)
    address = ctypes.addressof(block)
    _device.memory[address] = block
    return _OK, address


def cudaMallocHost(size):
    return cudaMalloc(size)


def cudaFreeHost(address):
    return cudaFree(address)


def cudaFree(address):
    return (_OK if _device.memory.pop(address, None) else cudaError_t.cudaErrorInvalidValue,)


def cudaMemcpyAsync(target, source, size, kind, stream):
    _device.enqueue(stream, lambda: ctypes.memmove(target, source, size))
    return (_OK,)


def cudaMemsetAsync(address, value, size, stream):
    _device.enqueue(stream, lambda: ctypes.memset(address, value, size))
    return (_OK,)


def cudaStreamCreateWithFlags(flags):
    return _OK, _device.number()


def cudaStreamSynchronize(stream):
    return (cudaError_t.cudaErrorStreamCaptureUnsupported if int(stream) in _device.captures else _OK,)


def cudaStreamDestroy(stream):
    return (_OK,)


def cudaEventCreate():
    return _OK, cudaEvent_t()


def cudaEventRecord(event, stream):
    event.at_s, event.settled = _device.clock_s, False
    return (_OK,)


def cudaEventQuery(event):
    # The device is as far behind the host as the host lets it be.
    return (_OK if event.settled else cudaError_t.cudaErrorNotReady,)


def cudaEventSynchronize(event):
    event.settled = True
    return (_OK,)


def cudaEventElapsedTime(start, end):
    return _OK, (end.at_s - start.at_s) * 1e3


def cudaEventDestroy(event):
    return (_OK,)


def cudaStreamBeginCapture(stream, mode):
    _device.captures[int(stream)] = []
    return (_OK,)


def cudaStreamEndCapture(stream):
    number = _device.number()
    _device.graphs[number] = _device.captures.pop(int(stream))
    return _OK, number


def cudaGraphInstantiate(graph, flags):
    number = _device.number()
    _device.graphs[number] = _device.graphs[graph]
    return _OK, number


def cudaGraphDestroy(graph):
    del _device.graphs[graph]
    return (_OK,)


def cudaGraphExecDestroy(graph):
    del _device.graphs[graph]
    return (_OK,)


def cudaGraphLaunch(graph, stream):
    for work, seconds in _device.graphs[graph]:
        _device.enqueue(stream, work, seconds)
    return (_OK,)


def cudaProfilerStart():
    return (_OK,)


def cudaProfilerStop():
    return (_OK,)
