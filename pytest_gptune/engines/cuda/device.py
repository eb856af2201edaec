"""Devices that CUDA shows to this process."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pytest_gptune.engines.base import BackendMissingError
from pytest_gptune.engines.cuda.runtime import call, error_text, runtime

_MIG = " MIG "


@dataclass(frozen=True)
class Device:
    """A device as CUDA numbers and describes it.

    Attributes:
        index: its number among the visible devices.
        name: its name; that of a MIG instance ends in its profile, as ``NVIDIA H200 MIG 1g.18gb``.
        uuid: ``GPU-`` or ``MIG-`` and its UUID.
        compute_capability: as ``9.0``.
        sm_count: streaming multiprocessors that this process may use.
        memory_bytes: device memory, in bytes.
        l2_bytes: size of its L2 cache, in bytes.
        pci: its address, as ``0000:1B:00.0``.
    """

    index: int
    name: str
    uuid: str
    compute_capability: str
    sm_count: int
    memory_bytes: int
    l2_bytes: int
    pci: str

    @classmethod
    def find(cls, text: str = "0") -> Device:
        """The visible device called ``text``: its index, or its UUID from ``GPU-`` or ``MIG-`` on.

        A beginning of a UUID will do, as for ``CUDA_VISIBLE_DEVICES``. No context is made.

        Raises:
            BackendMissingError: there is no such device, no device at all, no driver, or no cuda-python.
        """
        devices = cls.visible()
        if text.isdecimal() and int(text) < len(devices):
            return devices[int(text)]
        if text.upper().startswith(("GPU-", "MIG-")):
            # CUDA shows one MIG instance alone, and the one that the variable names.
            named = [name.strip().lower() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
            if text.lower() in named[: len(devices)]:
                return devices[named.index(text.lower())]
            matching = [device for device in devices if device.uuid.lower().startswith(text.lower())]
            if len(matching) == 1:
                return matching[0]
        shown = "; ".join(str(device) for device in devices)
        limit = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise BackendMissingError(
            f"CUDA shows no device '{text}'; it shows {shown}",
            where="" if limit is None else f"CUDA_VISIBLE_DEVICES={limit}",
            mend="give the index or the UUID of one of these, or set CUDA_VISIBLE_DEVICES before the run",
        )

    @classmethod
    def visible(cls) -> tuple[Device, ...]:
        """All devices CUDA shows to this process, at least one; raises BackendMissingError where none is."""
        module = runtime()
        code, count = module.cudaGetDeviceCount()
        if int(code) or not count:
            reason = error_text(code) if int(code) else "none is visible"
            raise BackendMissingError(
                f"there is no CUDA device to use: {reason}",
                where=f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')}",
                mend="run on a machine with an NVIDIA GPU and a driver as new as cuda-python",
            )
        return tuple(cls._at(index) for index in range(count))

    @classmethod
    def _at(cls, index: int) -> Device:
        facts = call("cudaGetDeviceProperties", index)
        name = facts.name.split(b"\0", 1)[0].decode(errors="replace")
        raw = facts.uuid.bytes.hex()
        uuid = "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:]))
        return cls(
            index=index,
            name=name,
            uuid=("MIG-" if _MIG in name else "GPU-") + uuid,
            compute_capability=f"{facts.major}.{facts.minor}",
            sm_count=int(facts.multiProcessorCount),
            memory_bytes=int(facts.totalGlobalMem),
            l2_bytes=int(facts.l2CacheSize),
            pci=f"{facts.pciDomainID:04X}:{facts.pciBusID:02X}:{facts.pciDeviceID:02X}.0",
        )

    @property
    def is_mig(self) -> bool:
        """Whether it is an instance of a divided device."""
        return self.uuid.startswith("MIG-")

    @property
    def is_exclusive(self) -> bool:
        """Whether one process at a time may have a context on it (its compute mode)."""
        module = runtime()
        mode = call("cudaDeviceGetAttribute", module.cudaDeviceAttr.cudaDevAttrComputeMode, self.index)
        return int(mode) == int(module.cudaComputeMode.cudaComputeModeExclusiveProcess)

    def make_current(self) -> None:
        """Use it for what this thread does next; makes its context."""
        call("cudaSetDevice", self.index)

    @staticmethod
    def synchronize() -> None:
        """Wait for everything that this process has enqueued on the current device, on whatever stream."""
        call("cudaDeviceSynchronize")

    def free_bytes(self) -> int:
        """Memory of the current device that is free at present, in bytes."""
        free, _total = call("cudaMemGetInfo")
        return int(free)

    def __str__(self) -> str:
        return f"{self.index}: {self.name} ({self.uuid})"
