"""How exactly ``engines/cuda`` measures: kernels of known duration, with and without CUDA graphs.

    python benchmarks/cuda_timing.py > docs/results/cuda-timing.json

Two kernels, a thread each. ``paced`` ends a fixed time after the launch before it was to end, so that the
period is known to be ``nominal_us``, the gap between launches included. ``spin`` runs for ``nominal_us``
from its own start; what comes on top is the gap between launches, which an engine has as well, so the truth
is taken from the kernel's own readings of the device's clock (``device_us``: the median period within
samples). Latency is the median of samples, as it is everywhere on device clocks.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import statistics
from typing import Any

import numpy as np
from spin import SpinKernel

from pytest_gptune.engines.cuda import Clocks, Device, Stream, capture, launches_for, sample_queued

DURATIONS_US = (20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000)


def period_ns(times: np.ndarray, batch: int) -> float:
    """The median period of launches that share a pair of events, by the device's clock, in nanoseconds."""
    if batch == 1:
        return float(np.median(times[:, 1] - times[:, 0]))
    whole = times[: len(times) // batch * batch, 0].astype(np.int64).reshape(-1, batch)
    return float(np.median((whole[:, -1] - whole[:, 0]) / (batch - 1)))


def measure(
    device: Device, kernel_name: str, microseconds: int, graph: bool, seconds: float
) -> dict[str, Any]:
    """One row: a kernel of one duration."""
    stream = Stream()
    kernel = SpinKernel(kernel_name, device, stream)

    def enqueue() -> None:
        kernel.launch(microseconds * 1000)

    captured = capture(stream, enqueue) if graph else None
    run = enqueue if captured is None else lambda: captured.launch(stream)
    batch = launches_for(microseconds * 1e-6)
    sample_queued(stream, run, 0.05, 1_000_000, batch)
    kernel.reset()
    samples = sample_queued(stream, run, seconds, 1_000_000, batch)
    latency_us = statistics.median(samples.latencies_s) * 1e6
    device_us = period_ns(kernel.times_ns(), batch) / 1e3
    if captured is not None:
        captured.close()
    kernel.close()
    stream.close()
    truth_us = microseconds if kernel_name == "paced" else device_us
    return {
        "kernel": kernel_name,
        "graph": graph,
        "nominal_us": microseconds,
        "device_us": round(device_us, 3),
        "measured_us": round(latency_us, 3),
        "error_pct": round((latency_us / truth_us - 1) * 100, 3),
        "over_nominal_pct": round((latency_us / microseconds - 1) * 100, 3),
        "batch": batch,
        "samples": len(samples.latencies_s),
        "queue_ahead": samples.ahead,
        "enqueue_share": round(samples.enqueue_share, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="0", help="index or UUID, default 0")
    parser.add_argument("--seconds", type=float, default=0.5, help="of sampling for each row, default 0.5")
    given = parser.parse_args()
    device = Device.find(given.device)
    device.make_current()
    clocks = Clocks(device)
    rows = [
        measure(device, kernel, duration, graph, given.seconds)
        for kernel in ("paced", "spin")
        for graph in (False, True)
        for duration in DURATIONS_US
    ]
    reading = clocks.read()
    about = {
        "date": datetime.date.today().isoformat(),
        "command": "python benchmarks/cuda_timing.py",
        "gpu": device.name,
        "driver": clocks.driver_version(),
        "cuda_bindings": importlib.metadata.version("cuda-bindings"),
        "sm_mhz": None if reading.sm_hz is None else reading.sm_hz / 1e6,
        "power_w": reading.power_w,
        "throttle": list(reading.throttle),
        "largest_error_pct": max(abs(row["error_pct"]) for row in rows),
        "rows": rows,
    }
    print(json.dumps(about, indent=1))


if __name__ == "__main__":
    main()
