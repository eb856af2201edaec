"""``engines/cuda`` on a real device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from pytest_gptune.engines.base import EngineOutOfMemoryError
from pytest_gptune.engines.cuda import (
    Clocks,
    CudaError,
    Device,
    DeviceBuffer,
    L2Flush,
    Stream,
    capture,
    launches_for,
    sample_queued,
)
from pytest_gptune.engines.cuda.runtime import call

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LARGE = 1 << 30


def test_a_device_is_found_by_its_uuid(device: Device) -> None:
    assert Device.find(device.uuid) == device
    assert Device.find(device.uuid[:12]) == device
    assert device.sm_count > 0
    assert device.memory_bytes > device.l2_bytes > 0
    assert 0 < device.free_bytes() <= device.memory_bytes


def test_work_goes_to_the_device_that_is_current(device: Device) -> None:
    devices = Device.visible()
    if len(devices) < 2:
        pytest.skip("there is one device")
    import pynvml

    pynvml.nvmlInit()
    for one in devices[:2]:
        one.make_current()
        used = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(one.uuid)).used
        buffer = DeviceBuffer(4 * LARGE)
        now = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(one.uuid)).used
        buffer.close()
        assert now - used >= 4 * LARGE
    device.make_current()
    pynvml.nvmlShutdown()


def test_a_hidden_device_changes_the_numbers(device: Device) -> None:
    devices = Device.visible()
    if len(devices) < 2:
        pytest.skip("there is one device")
    code = "from pytest_gptune.engines.cuda import Device; print(Device.find(%r))"
    assert apart(code % devices[1].uuid, CUDA_VISIBLE_DEVICES="1").startswith("0: ")


def test_nvml_knows_the_same_device(device: Device) -> None:
    clocks = Clocks(device)
    assert not clocks.unavailable
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByPciBusId(device.pci)
    assert device.is_mig or pynvml.nvmlDeviceGetUUID(handle) == device.uuid
    reading = clocks.read()
    assert reading.sm_hz is not None
    assert 1e8 < reading.sm_hz < 1e10
    assert reading.power_limit_w is None or 10 < reading.power_limit_w < 10_000
    assert clocks.driver_version()
    clocks.close()


def test_arrays_there_and_back(stream: Stream) -> None:
    array = np.random.default_rng(0).standard_normal((1000, 1001)).astype(np.float32)
    buffer, back = DeviceBuffer(array.nbytes), np.empty_like(array)
    buffer.copy_from_host(array, stream)
    buffer.copy_to_host(back, stream)
    np.testing.assert_array_equal(back, array)
    buffer.poison(stream)
    buffer.copy_to_host(back, stream)
    assert np.isnan(back).all()
    buffer.close()


def test_memory_that_runs_out_leaves_the_device_usable(stream: Stream) -> None:
    with pytest.raises(EngineOutOfMemoryError, match="cudaMalloc failed: cudaErrorMemoryAllocation"):
        DeviceBuffer(1 << 50)
    DeviceBuffer(16).close()
    stream.synchronize()


def test_a_graph_does_what_was_captured(stream: Stream) -> None:
    buffer, content = DeviceBuffer(64), np.zeros(64, np.uint8)
    buffer.copy_from_host(content, stream)
    graph = capture(stream, lambda: buffer.poison(stream))
    buffer.copy_to_host(content, stream)
    assert (content == 0).all()  # a capture runs nothing
    graph.launch(stream)
    buffer.copy_to_host(content, stream)
    assert (content == 0xFF).all()
    graph.close()
    buffer.close()


def test_what_cannot_be_captured_leaves_the_stream_usable(stream: Stream) -> None:
    with pytest.raises(CudaError, match="cudaErrorStreamCapture"):
        capture(stream, stream.synchronize)
    stream.synchronize()


def test_work_of_the_device_is_timed(stream: Stream) -> None:
    """Twice the bytes take twice the time: what is timed is the work, not the calls."""
    buffer = DeviceBuffer(4 * LARGE)
    latencies = []
    for nbytes in (LARGE, 2 * LARGE, 4 * LARGE):

        def enqueue(nbytes: int = nbytes) -> None:
            call("cudaMemsetAsync", buffer.pointer, 0, nbytes, stream.handle)

        first = sample_queued(stream, enqueue, 0.05, 100)
        samples = sample_queued(stream, enqueue, 0.2, 1000, launches_for(min(first.latencies_s)))
        assert samples.ahead
        assert samples.enqueue_share < 0.5
        latencies.append(float(np.median(samples.latencies_s)))
    buffer.close()
    assert latencies[1] / latencies[0] == pytest.approx(2, rel=0.1)
    assert latencies[2] / latencies[1] == pytest.approx(2, rel=0.1)


def test_a_flushed_cache_is_slower(device: Device, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads that depend on one another find their data in the cache, unless it was emptied."""
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.syspath_prepend(BENCHMARKS)
    from spin import SpinKernel

    kernel, flush = SpinKernel("walk", device, stream), L2Flush(device, stream)
    warm = sample_queued(stream, lambda: kernel.launch(4096), 0.2, 1000)
    cold = sample_queued(stream, lambda: kernel.launch(4096), 0.2, 1000, flush=flush)
    flush.close()
    kernel.close()
    assert np.median(cold.latencies_s) > 1.3 * np.median(warm.latencies_s)


def apart(code: str, **variables: str) -> str:
    """What a process of its own prints: what it does to its context is nobody else's."""
    path = os.pathsep.join([str(BENCHMARKS), *sys.path])
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_a_fault_of_a_kernel_is_named(device: Device) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    said = apart(
        """
        from spin import SpinKernel
        from pytest_gptune.engines.cuda import CudaError, Device, Stream, sample_queued

        device = Device.find()
        device.make_current()
        stream = Stream()
        kernel = SpinKernel("walk", device, stream)
        kernel._log._pointer = 1 << 20
        try:
            sample_queued(stream, lambda: kernel.launch(10), 0.1, 100)
        except CudaError as error:
            print(error)
        """
    )
    assert "cudaErrorIllegalAddress" in said


def test_the_environment_decides_what_is_visible(device: Device) -> None:
    code = "from pytest_gptune.engines.cuda import Device; print(Device.find(%r))"
    assert apart(code % device.uuid, CUDA_VISIBLE_DEVICES=device.uuid).startswith("0: ")
    hidden = """
    from pytest_gptune.engines.base import BackendMissingError
    from pytest_gptune.engines.cuda import Device

    try:
        Device.find()
    except BackendMissingError as error:
        print(error)
    """
    said = apart(hidden, CUDA_VISIBLE_DEVICES="")
    assert "no CUDA device to use: cudaErrorNoDevice" in said
    assert "in: CUDA_VISIBLE_DEVICES=" in said


@pytest.mark.long
def test_kernels_of_known_duration(device: Device) -> None:
    """From 20 us to 20 ms, with and without graphs, within 1 %."""
    pytest.importorskip("cuda.bindings.nvrtc")
    run = subprocess.run(
        [sys.executable, str(BENCHMARKS / "cuda_timing.py"), "--seconds", "0.2", "--device", device.uuid],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    rows = json.loads(run.stdout)["rows"]
    assert len(rows) == 40
    assert [row for row in rows if abs(row["error_pct"]) > 1 or not row["queue_ahead"]] == []
