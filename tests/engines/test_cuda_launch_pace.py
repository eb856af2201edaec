"""Whether a process still starts kernels as fast as it did, over a fake of the bindings."""

from __future__ import annotations

import sys

import pytest
from fake_cuda import Error, FakeDriver, FakeRuntime

from pytest_gptune.engines.base import EngineOutOfMemoryError
from pytest_gptune.engines.cuda import CudaError, Device, ProcessStreams, Stream
from pytest_gptune.engines.cuda.launch_pace import LaunchPace

USUAL_S = 145e-6
READING = 100  # launches


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = FakeDriver()
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", made)
    return made


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> FakeRuntime:
    runtime = FakeRuntime()
    runtime.graph_s = [USUAL_S]
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", runtime)
    return runtime


def test_a_pace_that_is_kept(fake: FakeRuntime, driver: FakeDriver) -> None:
    pace = LaunchPace(Stream())
    assert driver.launches == 201  # the first one is loaded, the others are captured
    fake.graph_s = [1.01 * USUAL_S]
    assert pace.slowdown() == pytest.approx(1.01, abs=1e-3)
    assert not pace.lost(pace.slowdown())
    pace.close()
    assert driver.unloaded == 1
    assert not fake.memory
    assert fake.living_events == 0


def test_a_pace_that_is_lost_for_good(fake: FakeRuntime) -> None:
    pace = LaunchPace(Stream())
    fake.graph_s = [1.25 * USUAL_S]
    assert pace.slowdown() == pytest.approx(1.25, abs=1e-3)
    assert pace.lost(pace.slowdown())


def test_what_passes_is_waited_for(fake: FakeRuntime) -> None:
    """Other work on the device, or clocks that rise again."""
    pace = LaunchPace(Stream())
    fake.graph_s = [3 * USUAL_S] * (4 * READING) + [USUAL_S]
    assert pace.slowdown() == pytest.approx(1.0, abs=1e-3)


def test_first_readings_at_low_clocks_hide_nothing(fake: FakeRuntime) -> None:
    fake.graph_s = [factor * USUAL_S for factor in (4, 3, 2, 1.5, 1.3, 1.3, 1.1) for _ in range(READING)]
    fake.graph_s += [USUAL_S]
    pace = LaunchPace(Stream())
    fake.graph_s = [1.25 * USUAL_S]
    assert pace.slowdown() == pytest.approx(1.25, abs=1e-3)
    assert pace.lost(pace.slowdown())


def test_a_process_says_what_it_lost(fake: FakeRuntime) -> None:
    streams, device = ProcessStreams(), Device.find("0")
    assert streams.spent(device) == ""  # nothing ran in it
    assert streams.of(device) is streams.of(device)
    assert streams.spent(device) == ""
    streams.watch(device)
    assert streams.spent(device) == ""
    streams.watch(device)  # later engines do not move what it is compared with
    fake.graph_s = [1.25 * USUAL_S]
    assert streams.spent(device) == "a graph of small kernels takes 1.25 times what it took at first"
    fake.failing["cudaGraphLaunch"] = Error.cudaErrorIllegalAddress
    with pytest.raises(CudaError, match="cudaGraphLaunch failed"):
        streams.spent(device)


def test_a_driver_that_compiles_nothing_is_done_without(fake: FakeRuntime, driver: FakeDriver) -> None:
    driver.refuses = 222
    streams, device = ProcessStreams(), Device.find("0")
    streams.watch(device)
    fake.graph_s = [9 * USUAL_S]
    assert streams.spent(device) == ""
    assert not fake.memory


def test_memory_that_runs_out_is_no_driver_that_compiles_nothing(
    fake: FakeRuntime, driver: FakeDriver
) -> None:
    driver.refuses = 2
    with pytest.raises(EngineOutOfMemoryError, match="cuModuleLoadData failed: 2"):
        ProcessStreams().watch(Device.find("0"))
    assert not fake.memory


def test_a_device_for_one_process_alone_is_not_asked(fake: FakeRuntime) -> None:
    """There can be no second worker, so that nothing would come of the answer."""
    streams, device = ProcessStreams(), Device.find("0")
    streams.watch(device)
    assert not device.is_exclusive
    fake.attributes["cudaDevAttrComputeMode"] = 3
    assert device.is_exclusive
    assert streams.spent(device) is None


def test_without_the_driver_s_bindings(fake: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(CudaError, match="cuda-python has no cuModuleLoadData"):
        LaunchPace(Stream())
    assert not fake.memory
