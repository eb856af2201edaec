"""What all engines of a process share on a device: its streams, and the pace at which kernels start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gptune.engines.cuda.launch_pace import LaunchPace
from pytest_gptune.engines.cuda.runtime import CudaError
from pytest_gptune.engines.cuda.stream import Stream

if TYPE_CHECKING:
    from pytest_gptune.engines.cuda.device import Device


class ProcessStreams:
    """The streams of a process, by device: engines that come one after another run on the same ones.

    An application has one session and its stream; so has every engine that is measured, the first of a
    process and the last. What an engine does may slow down all that comes later in its process, even where
    the engine is gone: on an H200, once cuDNN had run some routes, each kernel of a graph started later,
    which is 6 to 10 % of networks at batch 1 (docs/cuda.md). ``spent`` tells, of a process that is watched.
    """

    def __init__(self) -> None:
        self._made: dict[str, list[Stream]] = {}
        self._paces: dict[str, LaunchPace | None] = {}

    def of(self, device: Device) -> Stream:
        """The stream that engines on ``device``, which has to be the current one, run on."""
        return self._first(device, 1)[0]

    def auxiliary(self, device: Device, count: int) -> list[Stream]:
        """``count`` streams beside it, for engines that run layers side by side."""
        return self._first(device, 1 + count)[1:]

    def watch(self, device: Device) -> None:
        """Find out how fast kernels start, before the first engine of a process that is to have several.

        That takes a module, a graph and events, which no application has: the process of an engine that is
        its only one goes without. Nothing else may be under way on the device.

        Raises:
            CudaError: memory ran out, or the device failed.
        """
        device.make_current()
        stream = self.of(device)
        if device.uuid not in self._paces:
            try:
                self._paces[device.uuid] = LaunchPace(stream)
            except CudaError:  # not that memory ran out
                # A driver that compiles nothing (CUDA_DISABLE_PTX_JIT) runs engines all the same.
                self._paces[device.uuid] = None

    def spent(self, device: Device) -> str | None:
        """What engines that come later on ``device`` would suffer from; empty where nothing is known of any.

        None where the device admits no second process, so that nothing can be done. Nothing else may be under
        way on the device.

        Raises:
            CudaError: the device failed.
        """
        if device.is_exclusive:
            return None
        pace = self._paces.get(device.uuid)
        if pace is None:
            return ""
        device.make_current()
        slowdown = pace.slowdown()
        if not pace.lost(slowdown):
            return ""
        return f"a graph of small kernels takes {slowdown:.2f} times what it took at first"

    def _first(self, device: Device, count: int) -> list[Stream]:
        made = self._made.setdefault(device.uuid, [])
        while len(made) < count:
            made.append(Stream())
        return made[:count]
