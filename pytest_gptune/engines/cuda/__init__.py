"""CUDA as all backends use it: devices, streams, buffers, graphs, events, clocks.

Over cuda-python (``cuda.bindings.runtime``) and nvidia-ml-py, both imported at first use. The settings of a
device are read and never changed. Which devices are visible is CUDA's decision: ``CUDA_VISIBLE_DEVICES``, MIG
and MPS hold as they do for any program.
"""

from pytest_gptune.engines.cuda.clocks import ClockReading, Clocks
from pytest_gptune.engines.cuda.device import Device
from pytest_gptune.engines.cuda.graph import Graph, capture
from pytest_gptune.engines.cuda.memory import POISON, DeviceBuffer, L2Flush, Region, Transfers, copy_to_host
from pytest_gptune.engines.cuda.process import ProcessStreams
from pytest_gptune.engines.cuda.runtime import CudaError
from pytest_gptune.engines.cuda.sampling import DeviceSamples, launches_for, sample_queued
from pytest_gptune.engines.cuda.stream import Stream

__all__ = [
    "POISON",
    "ClockReading",
    "Clocks",
    "CudaError",
    "Device",
    "DeviceBuffer",
    "DeviceSamples",
    "Graph",
    "L2Flush",
    "ProcessStreams",
    "Region",
    "Stream",
    "Transfers",
    "capture",
    "copy_to_host",
    "launches_for",
    "sample_queued",
]
