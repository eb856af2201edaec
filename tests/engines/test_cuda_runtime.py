"""``engines/cuda`` over a fake of the bindings: codes, devices, memory and capture."""

from __future__ import annotations

import sys

import fake_cuda
import numpy as np
import pytest
from fake_cuda import Error, FakeRuntime

from pytest_gptune.engines.base import BackendMissingError, EngineFailedError, EngineOutOfMemoryError
from pytest_gptune.engines.cuda import CudaError, Device, DeviceBuffer, L2Flush, Stream, capture
from pytest_gptune.engines.failures import failure_from_plain, failure_of, failure_to_plain

MODULE = "cuda.bindings.runtime"
FIRST = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    runtime = FakeRuntime()
    monkeypatch.setitem(sys.modules, MODULE, runtime)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return runtime


def two_devices() -> tuple[fake_cuda.Device, ...]:
    other = bytes.fromhex("0001ff0304050607f8090a0b0c0d0e0f")
    return fake_cuda.Device(), fake_cuda.Device("NVIDIA H200 MIG 1g.18gb", other, sms=16)


def test_a_code_is_named_and_cleared(fake: FakeRuntime) -> None:
    fake.failing["cudaStreamSynchronize"] = Error.cudaErrorIllegalAddress
    stream = Stream()
    with pytest.raises(CudaError, match="cudaStreamSynchronize failed: cudaErrorIllegalAddress") as caught:
        stream.synchronize()
    assert fake.last_error == Error.cudaSuccess
    back = failure_from_plain(failure_to_plain(failure_of(caught.value)))
    assert type(back) is EngineFailedError
    assert back.what == caught.value.what


def test_memory_that_runs_out_is_a_status_of_its_own(fake: FakeRuntime) -> None:
    fake.failing["cudaMalloc"] = Error.cudaErrorMemoryAllocation
    with pytest.raises(EngineOutOfMemoryError, match=r"cudaMalloc failed: .*out of memory"):
        DeviceBuffer(10**15)


def test_cuda_python_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, None)
    with pytest.raises(
        BackendMissingError, match=r"cuda-python is not installed(.|\n)*pytest-gptune\[cuda\]"
    ):
        Device.find("0")


@pytest.mark.parametrize("code", [Error.cudaErrorNoDevice, Error.cudaErrorInsufficientDriver])
def test_a_machine_without_a_device(fake: FakeRuntime, code: Error) -> None:
    fake.failing["cudaGetDeviceCount"] = code
    with pytest.raises(BackendMissingError, match=rf"no CUDA device to use: {code.name}"):
        Device.find("0")


def test_the_facts_of_a_device(fake: FakeRuntime) -> None:
    device = Device.find("0")
    assert device == Device(0, "NVIDIA H200", FIRST, "9.0", 132, 150 * 10**9, 60 * 2**20, "0000:1B:00.0")
    assert not device.is_mig
    assert "cudaSetDevice" not in fake.called  # finding one makes no context
    device.make_current()
    assert fake.called[-1] == "cudaSetDevice"


@pytest.mark.parametrize(
    ("text", "index"),
    [("0", 0), ("1", 1), (FIRST, 0), ("GPU-0001", 0), (FIRST.upper(), 0), ("MIG-0001ff", 1), ("mig-", 1)],
)
def test_a_device_by_index_or_uuid(fake: FakeRuntime, text: str, index: int) -> None:
    fake.devices = two_devices()
    assert Device.find(text).index == index


@pytest.mark.parametrize("text", ["2", "-1", "", "GPU-ff", "MIG-0001020304", "NVIDIA H200"])
def test_a_device_that_is_not_shown(fake: FakeRuntime, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.devices = two_devices()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    with pytest.raises(BackendMissingError) as caught:
        Device.find(text)
    assert f"no device '{text}'" in caught.value.what
    assert FIRST in caught.value.what
    assert "MIG 1g.18gb (MIG-0001ff03-" in caught.value.what
    assert caught.value.where == "CUDA_VISIBLE_DEVICES=3,5"


def test_an_ambiguous_beginning_is_refused(fake: FakeRuntime) -> None:
    fake.devices = (fake_cuda.Device(), fake_cuda.Device(uuid=bytes(range(8)) + bytes(8)))
    with pytest.raises(BackendMissingError):
        Device.find("GPU-0001")


def test_the_instance_that_the_environment_names(fake: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever UUID CUDA tells of it: the variable is what made it visible."""
    fake.devices = two_devices()[1:]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-c0ffee00-1111-2222-3333-444444444444")
    assert Device.find("mig-c0ffee00-1111-2222-3333-444444444444").is_mig


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4).T,
        np.array([True, False]),
        np.array(3.5),
        np.zeros((0, 4), np.int64),
    ],
)
def test_arrays_there_and_back(fake: FakeRuntime, array: np.ndarray) -> None:
    stream, buffer = Stream(), DeviceBuffer(array.nbytes)
    buffer.copy_from_host(array, stream)
    back = np.empty(array.shape, array.dtype)
    buffer.copy_to_host(back, stream)
    np.testing.assert_array_equal(back, array)
    assert fake.called.count("cudaStreamSynchronize") == 2
    assert buffer.pointer
    buffer.close()
    buffer.close()
    assert not fake.memory


def test_poison_shows_in_floats_and_integers(fake: FakeRuntime) -> None:
    stream, buffer = Stream(), DeviceBuffer(16)
    buffer.copy_from_host(np.zeros(4, np.float32), stream)
    buffer.poison(stream)
    floats, numbers = np.zeros(4, np.float32), np.zeros(4, np.int32)
    buffer.copy_to_host(floats, stream)
    buffer.copy_to_host(numbers, stream)
    assert np.isnan(floats).all()
    assert (numbers == -1).all()


def test_copies_that_do_not_fit_are_refused(fake: FakeRuntime) -> None:
    stream, buffer = Stream(), DeviceBuffer(8)
    with pytest.raises(CudaError, match="16 bytes does not fit a device buffer of 8"):
        buffer.copy_from_host(np.zeros(4, np.float32), stream)
    with pytest.raises(CudaError, match="16 bytes"):
        buffer.copy_to_host(np.zeros(4, np.float32), stream)
    with pytest.raises(CudaError, match="contiguous"):
        buffer.copy_to_host(np.zeros((2, 4), np.int8)[:, ::2], stream)


def test_the_flush_is_larger_than_the_cache(fake: FakeRuntime) -> None:
    stream = Stream()
    flush = L2Flush(Device.find("0"), stream)
    assert [len(block) for block in fake.memory.values()] == [2 * 60 * 2**20]
    flush()
    assert fake.called[-1] == "cudaMemsetAsync"
    flush.close()
    assert not fake.memory


def test_a_capture(fake: FakeRuntime) -> None:
    stream, during = Stream(), []
    graph = capture(stream, lambda: during.append(fake.capturing))
    assert during == [True]
    assert not fake.capturing
    assert fake.called.count("cudaGraphDestroy") == 1
    graph.launch(stream)
    graph.close()
    graph.close()
    assert fake.called.count("cudaGraphExecDestroy") == 1


def test_a_capture_that_fails_leaves_the_stream_usable(fake: FakeRuntime) -> None:
    def enqueue() -> None:
        raise RuntimeError("the engine refused")

    with pytest.raises(RuntimeError, match="the engine refused"):
        capture(Stream(), enqueue)
    assert not fake.capturing
    assert fake.called.count("cudaGraphDestroy") == 1


def test_what_cannot_be_captured_is_named(fake: FakeRuntime) -> None:
    fake.failing["cudaStreamEndCapture"] = Error.cudaErrorStreamCaptureUnsupported
    with pytest.raises(CudaError, match="cudaStreamEndCapture failed: cudaErrorStreamCaptureUnsupported"):
        capture(Stream(), lambda: None)
    fake.failing = {"cudaGraphInstantiate": Error.cudaErrorInvalidValue}
    with pytest.raises(CudaError, match="cudaGraphInstantiate"):
        capture(Stream(), lambda: None)
    assert fake.called.count("cudaGraphDestroy") == 1
