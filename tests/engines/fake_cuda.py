"""A device with a clock of its own, behind the functions of ``cuda.bindings.runtime`` that the package calls.

Time is virtual: calls of the host and kernels of the device take what the test says, so that the logic of
queues is tested exactly. It computes nothing.
"""

# ruff: noqa: N815 - the names are CUDA's

from __future__ import annotations

import ctypes
from enum import IntEnum
from types import SimpleNamespace
from typing import Any


class Error(IntEnum):
    """Codes of ``cudaError_t``, with the numbers of CUDA."""

    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorInsufficientDriver = 35
    cudaErrorNoDevice = 100
    cudaErrorNotReady = 600
    cudaErrorIllegalAddress = 700
    cudaErrorStreamCaptureUnsupported = 900


class Device:
    """What ``cudaGetDeviceProperties`` tells of a device."""

    def __init__(self, name: str = "NVIDIA H200", uuid: bytes = bytes(range(16)), sms: int = 132) -> None:
        self.name = name.encode() + b"\0" * 8
        self.uuid = SimpleNamespace(bytes=uuid)
        self.major, self.minor = 9, 0
        self.multiProcessorCount = sms
        self.totalGlobalMem = 150 * 10**9
        self.l2CacheSize = 60 * 2**20
        self.pciDomainID, self.pciBusID, self.pciDeviceID = 0, 0x1B, 0


class FakeRuntime:
    """The module.

    Attributes:
        now: the host's clock, in seconds.
        free_at: when the device has done all that is enqueued.
        graph_s: what a launch of a graph keeps the device busy for, one after another; the last one stays.
        failing: codes that functions return, by name.
        attributes: of the devices.
        called: names of all functions that were called, in order.
    """

    cudaError_t = Error
    cudaStreamNonBlocking = 1
    cudaDeviceAttr = SimpleNamespace(cudaDevAttrComputeMode="cudaDevAttrComputeMode")
    cudaComputeMode = SimpleNamespace(cudaComputeModeExclusiveProcess=3)
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)

    def __init__(self, *devices: Device) -> None:
        self.devices = devices or (Device(),)
        self.now = 0.0
        self.free_at = 0.0
        self.call_s = 0.0
        self.event_s = 0.0
        self.graph_s: list[float] = [0.0]
        self.failing: dict[str, Error] = {}
        self.attributes = {"cudaDevAttrComputeMode": 0}
        self.called: list[str] = []
        self.last_error = Error.cudaSuccess
        self.memory: dict[int, Any] = {}
        self.pinned: dict[int, Any] = {}
        self.capturing = False
        self._events: dict[int, float] = {}
        self._next = 1

    def kernel(self, seconds: float, host_s: float) -> None:
        """The host spends ``host_s`` on a launch that keeps the device busy for ``seconds``."""
        self.now += host_s
        self.free_at = max(self.free_at, self.now) + seconds

    def perf_counter(self) -> float:
        """The host's clock."""
        return self.now

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if not (name.startswith("cuda") and callable(value)) or isinstance(value, type):
            return value

        def called(*args: Any) -> Any:
            self.called.append(name)
            self.now += self.call_s
            if code := self.failing.get(name):
                self.last_error = code
                return (code, None)
            result = value(*args)
            if isinstance(result, Error):
                return (result,)
            return (Error.cudaSuccess, *(() if result is None else (result,)))

        return called

    def cudaGetErrorString(self, code: int) -> bytes:
        return {2: b"out of memory", 100: b"no CUDA-capable device is detected"}.get(int(code), b"some words")

    def cudaGetLastError(self) -> None:
        self.last_error = Error.cudaSuccess

    def cudaGetDeviceCount(self) -> int:
        return len(self.devices)

    def cudaGetDeviceProperties(self, index: int) -> Device:
        return self.devices[index]

    def cudaDeviceGetAttribute(self, attribute: str, index: int) -> int:
        return self.attributes[attribute]

    def cudaDriverGetVersion(self) -> int:
        return 13000

    def cudaSetDevice(self, index: int) -> None: ...

    def cudaProfilerStart(self) -> None: ...

    def cudaProfilerStop(self) -> None: ...

    def cudaStreamCreateWithFlags(self, flags: int) -> int:
        assert flags == self.cudaStreamNonBlocking
        return self._number()

    def cudaStreamDestroy(self, stream: int) -> None: ...

    def cudaStreamSynchronize(self, stream: int) -> None:
        self.now = max(self.now, self.free_at)

    def cudaDeviceSynchronize(self) -> None:
        self.now = max(self.now, self.free_at)

    def cudaMalloc(self, size: int) -> int:
        assert size > 0
        block = ctypes.create_string_buffer(size)
        self.memory[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def cudaMallocHost(self, size: int) -> int:
        block = ctypes.create_string_buffer(size)
        self.pinned[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def cudaFreeHost(self, pointer: int) -> None:
        del self.pinned[pointer]

    def cudaFree(self, pointer: int) -> None:
        del self.memory[pointer]

    def cudaMemcpyAsync(self, target: int, source: int, size: int, kind: int, stream: int) -> None:
        ctypes.memmove(target, source, size)

    def cudaMemsetAsync(self, pointer: int, value: int, size: int, stream: int) -> None:
        ctypes.memset(pointer, value, size)

    def cudaEventCreate(self) -> int:
        event = self._number()
        self._events[event] = -1.0
        return event

    def cudaEventDestroy(self, event: int) -> None:
        del self._events[event]

    def cudaEventRecord(self, event: int, stream: int) -> None:
        self.free_at = self._events[event] = max(self.free_at, self.now) + self.event_s

    def cudaEventQuery(self, event: int) -> Error:
        return Error.cudaSuccess if self._events[event] <= self.now else Error.cudaErrorNotReady

    def cudaEventSynchronize(self, event: int) -> None:
        self.now = max(self.now, self._events[event])

    def cudaEventElapsedTime(self, start: int, end: int) -> float:
        return (self._events[end] - self._events[start]) * 1e3

    def cudaStreamBeginCapture(self, stream: int, mode: int) -> None:
        self.capturing = True

    def cudaStreamEndCapture(self, stream: int) -> int:
        self.capturing = False
        return self._number()

    def cudaGraphInstantiate(self, graph: int, flags: int) -> int:
        return self._number()

    def cudaGraphLaunch(self, executable: int, stream: int) -> None:
        self.kernel(self.graph_s.pop(0) if len(self.graph_s) > 1 else self.graph_s[0], 1e-7)

    def cudaGraphDestroy(self, graph: int) -> None: ...

    def cudaGraphExecDestroy(self, executable: int) -> None: ...

    @property
    def living_events(self) -> int:
        """Events not destroyed."""
        return len(self._events)

    def _number(self) -> int:
        self._next += 1
        return self._next


class FakeDriver:
    """The functions of ``cuda.bindings.driver`` that the package calls.

    Attributes:
        refuses: the code that every function returns, 0 for success.
        launches: kernels that were launched.
        unloaded: modules that were unloaded.
    """

    def __init__(self) -> None:
        self.refuses = 0
        self.launches = 0
        self.unloaded = 0

    def cuModuleLoadData(self, image: bytes) -> tuple[int, int]:
        assert image.endswith(b"\0")
        return self.refuses, 1

    def cuModuleGetFunction(self, module: int, name: bytes) -> tuple[int, int]:
        return self.refuses, 2

    def cuModuleUnload(self, module: int) -> tuple[int]:
        self.unloaded += 1
        return (0,)

    def cuLaunchKernel(self, function: int, *args: Any) -> tuple[int]:
        self.launches += 1
        return (self.refuses,)
