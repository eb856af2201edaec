"""The queue of ``sample_queued`` on a device of virtual time: what is measured is known exactly."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from fake_cuda import Error, FakeRuntime
from hypothesis import given
from hypothesis import strategies as st

from pytest_gptune.engines.cuda import CudaError, DeviceSamples, Stream, launches_for, sample_queued
from pytest_gptune.engines.cuda.sampling import SHORTEST_SAMPLE_S

MODULE = "cuda.bindings.runtime"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    runtime = FakeRuntime()
    runtime.call_s = 1e-6
    monkeypatch.setitem(sys.modules, MODULE, runtime)
    clock = SimpleNamespace(perf_counter=runtime.perf_counter)
    monkeypatch.setattr("pytest_gptune.engines.cuda.sampling.time", clock)
    return runtime


def kernel(fake: FakeRuntime, seconds: float, host_s: float) -> Callable[[], None]:
    return lambda: fake.kernel(seconds, host_s)


def test_a_host_that_is_ahead_leaves_no_gap(fake: FakeRuntime) -> None:
    got = sample_queued(Stream(), kernel(fake, 1e-3, 3e-4), seconds=0.05, at_most=1000)
    assert got.ahead
    assert got.latencies_s == pytest.approx([1e-3] * len(got.latencies_s), rel=1e-9)
    assert 45 <= len(got.latencies_s) <= 55
    assert got.enqueue_share == pytest.approx(0.3)


def test_a_host_that_is_behind_is_told_of(fake: FakeRuntime) -> None:
    got = sample_queued(Stream(), kernel(fake, 1e-4, 3e-4), seconds=0.05, at_most=1000, batch=10)
    assert not got.ahead
    # The device waits for each launch: the period is the host's.
    assert got.latencies_s[-1] == pytest.approx(3e-4, rel=0.3)
    assert got.enqueue_share > 0.8


def test_the_sample_behind_a_hiccup_of_the_host_is_left_out(fake: FakeRuntime) -> None:
    launches = 0

    def enqueue() -> None:
        nonlocal launches
        launches += 1
        fake.kernel(1e-3, 0.5 if launches == 20 else 1e-5)

    got = sample_queued(Stream(), enqueue, seconds=10.0, at_most=40)
    assert launches == 40
    assert got.ahead
    assert (
        len(got.latencies_s) == 38
    )  # without the first, which finds an idle device, and without the slow one
    assert max(got.latencies_s) == pytest.approx(1e-3)


def test_launches_share_a_pair_of_events(fake: FakeRuntime) -> None:
    """What an event costs the device is divided by the batch."""
    fake.event_s = 2e-6
    one = sample_queued(Stream(), kernel(fake, 2e-5, 5e-6), seconds=0.02, at_most=10**6)
    batch = launches_for(2e-5)
    many = sample_queued(Stream(), kernel(fake, 2e-5, 5e-6), seconds=0.02, at_most=10**6, batch=batch)
    assert one.latencies_s[0] == pytest.approx(2.2e-5)
    assert many.latencies_s[0] == pytest.approx(2e-5 + 2e-6 / batch)
    assert abs(many.latencies_s[0] / 2e-5 - 1) < 0.01


def test_the_device_is_still_busy_when_it_is_observed(fake: FakeRuntime) -> None:
    seen: list[bool] = []
    sample_queued(
        Stream(),
        kernel(fake, 1e-3, 1e-5),
        seconds=0.02,
        at_most=1000,
        observe=lambda: seen.append(fake.free_at > fake.now),
    )
    assert seen == [True]


def test_a_flush_is_outside_of_the_events(fake: FakeRuntime) -> None:
    got = sample_queued(Stream(), kernel(fake, 1e-3, 1e-5), 0.05, 1000, flush=kernel(fake, 5e-3, 1e-6))
    assert got.latencies_s == pytest.approx([1e-3] * len(got.latencies_s))


@pytest.mark.parametrize("at_most", [1, 2, 7])
def test_no_more_samples_than_asked_for(fake: FakeRuntime, at_most: int) -> None:
    got = sample_queued(Stream(), kernel(fake, 1e-3, 1e-5), seconds=60.0, at_most=at_most)
    assert 1 <= len(got.latencies_s) <= at_most
    assert fake.now < 60


def test_one_sample_at_least(fake: FakeRuntime) -> None:
    got = sample_queued(Stream(), kernel(fake, 1.0, 1e-5), seconds=0.0, at_most=100)
    assert got.latencies_s == pytest.approx([1.0], rel=1e-4)


def test_room_in_the_queue_is_not_enqueue_time(fake: FakeRuntime) -> None:
    """CUDA makes the host wait when some 1,000 launches are queued."""
    launched: list[float] = []

    def enqueue() -> None:
        if len(launched) >= 1000:
            fake.now = max(fake.now, launched[-1000])
        fake.kernel(1e-5, 1e-6)
        launched.append(fake.free_at)

    got = sample_queued(Stream(), enqueue, seconds=0.5, at_most=1000, batch=600)
    assert got.ahead
    assert got.enqueue_share == pytest.approx(0.1, rel=0.01)


def test_a_failure_of_the_device(fake: FakeRuntime) -> None:
    fake.failing["cudaEventSynchronize"] = Error.cudaErrorIllegalAddress
    was = gc.isenabled()
    with pytest.raises(CudaError, match="cudaEventSynchronize failed: cudaErrorIllegalAddress"):
        sample_queued(Stream(), kernel(fake, 1e-3, 1e-5), seconds=1.0, at_most=100)
    assert gc.isenabled() is was
    assert fake.living_events == 0
    assert fake.called.count("cudaProfilerStop") == 1


def test_a_failure_of_the_engine(fake: FakeRuntime) -> None:
    def enqueue() -> None:
        raise RuntimeError("no such input")

    with pytest.raises(RuntimeError, match="no such input"):
        sample_queued(Stream(), enqueue, seconds=1.0, at_most=100)
    assert fake.living_events == 0
    assert fake.called.count("cudaProfilerStop") == 1


def test_nothing_is_left_after_a_block(fake: FakeRuntime) -> None:
    sample_queued(Stream(), kernel(fake, 1e-3, 1e-5), seconds=0.05, at_most=100)
    assert fake.living_events == 0
    assert fake.free_at <= fake.now
    assert [name for name in fake.called if "Profiler" in name] == ["cudaProfilerStart", "cudaProfilerStop"]


@given(st.floats(1e-7, 10.0))
def test_a_sample_is_long_or_has_many_launches(latency_s: float) -> None:
    batch = launches_for(latency_s)
    assert 1 <= batch <= 256
    assert batch == 256 or batch * latency_s >= SHORTEST_SAMPLE_S * 0.999
    assert batch == 1 or (batch - 1) * latency_s < SHORTEST_SAMPLE_S


def test_the_share_is_of_the_median() -> None:
    assert DeviceSamples((1.0, 2.0, 9.0), 1.0).enqueue_share == pytest.approx(0.5)
