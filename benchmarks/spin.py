"""Kernels of known duration, compiled when asked for; they need a GPU and NVRTC."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from pytest_gptune.engines.cuda import Device, DeviceBuffer, Stream

SOURCE = rb"""
__device__ unsigned long long now() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

// Runs for `ns` from its own start. Notes its start and end.
extern "C" __global__ void spin(unsigned long long ns, unsigned long long* log, unsigned long long room) {
    unsigned long long start = now(), end = start;
    while (end - start < ns) end = now();
    unsigned long long i = log[0]++;
    if (i < room) { log[2 + 2 * i] = start; log[3 + 2 * i] = end; }
}

// Ends `ns` after the kernel before it was to end, so that the period is `ns`, launch included.
extern "C" __global__ void paced(unsigned long long ns, unsigned long long* log, unsigned long long room) {
    unsigned long long start = now(), due = log[1], end = start;
    due = start > due + ns ? start + ns : due + ns;
    while (end < due) end = now();
    log[1] = due;
    unsigned long long i = log[0]++;
    if (i < room) { log[2 + 2 * i] = start; log[3 + 2 * i] = end; }
}

// Reads `steps` addresses of the log, one after another, none beside the one before, past the L1 cache.
extern "C" __global__ void walk(unsigned long long steps, unsigned long long* log, unsigned long long room) {
    unsigned long long at = 0;
    for (unsigned long long i = 0; i < steps; i++) {
        unsigned long long value;
        asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(value) : "l"(log + at));
        at = (at + 16 * 1021 + value) & (2 * room - 1);
    }
    if (at == 1) log[0] = at;
}
"""

ROOM = 1 << 16


class SpinKernel:
    """One of the kernels on a device, with a log of what it read off the device's own clock."""

    def __init__(self, name: str, device: Device, stream: Stream) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._stream = stream
        self._log = DeviceBuffer(8 * (2 + 2 * ROOM))
        module = _checked(driver.cuModuleLoadData(_cubin(device)))
        self._function = _checked(driver.cuModuleGetFunction(module, name.encode()))
        self.reset()

    def reset(self) -> None:
        """Forget what was logged."""
        self._log.copy_from_host(np.zeros(2 + 2 * ROOM, np.uint64), self._stream)

    def launch(self, nanoseconds: int) -> None:
        """Enqueue one launch."""
        arguments = (nanoseconds, self._log.pointer, ROOM)
        types = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64)
        launched = self._driver.cuLaunchKernel(
            self._function, 1, 1, 1, 1, 1, 1, 0, self._stream.handle, (arguments, types), 0
        )
        _checked(launched)

    def times_ns(self) -> np.ndarray:
        """Start and end of each launch on the device's clock, uint64[launches, 2]."""
        log = np.empty(2 + 2 * ROOM, np.uint64)
        self._log.copy_to_host(log, self._stream)
        return log[2:].reshape(-1, 2)[: min(int(log[0]), ROOM)]

    def close(self) -> None:
        """Free the log."""
        self._log.close()


def _cubin(device: Device) -> bytes:
    from cuda.bindings import nvrtc

    program = _checked(nvrtc.nvrtcCreateProgram(SOURCE, b"spin.cu", 0, [], []))
    options = [f"--gpu-architecture=sm_{device.compute_capability.replace('.', '')}".encode()]
    _checked(nvrtc.nvrtcCompileProgram(program, len(options), options))
    cubin = bytes(_checked(nvrtc.nvrtcGetCUBINSize(program)))
    _checked(nvrtc.nvrtcGetCUBIN(program, cubin))
    return cubin


def _checked(result: tuple[Any, ...]) -> Any:
    code, *values = result
    if int(code):
        raise RuntimeError(f"{type(code).__name__}: {code}")
    return values[0] if values else None
