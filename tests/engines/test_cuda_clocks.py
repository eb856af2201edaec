"""Clocks through NVML, over a fake of its bindings: units, words, and what a device does not tell."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gptune.engines.cuda import ClockReading, Clocks, Device

GPU = Device(0, "NVIDIA H200", "GPU-00", "9.0", 132, 1, 1, "0000:1B:00.0")
MIG = Device(0, "NVIDIA H200 MIG 1g.18gb", "MIG-00", "9.0", 16, 1, 1, "0000:1B:00.0")


class NVMLError(Exception):
    """As NVML raises it."""


class Nvml(SimpleNamespace):
    """The functions that are asked; ``silent`` ones are not supported by the device."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0
    nvmlClocksThrottleReasonGpuIdle = 0x1  # noqa: N815
    nvmlClocksThrottleReasonSwPowerCap = 0x4  # noqa: N815
    nvmlClocksThrottleReasonHwThermalSlowdown = 0x40  # noqa: N815

    def __init__(self, bits: int = 0, silent: tuple[str, ...] = ()) -> None:
        super().__init__(asked=[], running=0)
        answers = {
            "nvmlInit": lambda: setattr(self, "running", self.running + 1),
            "nvmlShutdown": lambda: setattr(self, "running", self.running - 1),
            "nvmlDeviceGetHandleByUUID": lambda uuid: f"by {uuid}",
            "nvmlDeviceGetHandleByPciBusId": lambda pci: f"at {pci}",
            "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": lambda handle: f"parent of {handle}",
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: bits,
            "nvmlDeviceGetClockInfo": lambda handle, kind: 1980,
            "nvmlDeviceGetMaxClockInfo": lambda handle, kind: 1985,
            "nvmlDeviceGetApplicationsClock": lambda handle, kind: 1500,
            "nvmlDeviceGetPowerUsage": lambda handle: 612_500,
            "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
            "nvmlDeviceGetTemperature": lambda handle, kind: 61,
            "nvmlSystemGetDriverVersion": lambda: "580.159.03",
        }
        for name, answer in answers.items():
            setattr(self, name, self._function(name, answer, name in silent))

    def _function(self, name: str, answer: Any, silent: bool) -> Any:
        def function(*args: Any) -> Any:
            self.asked.append((name, *args))
            if silent:
                raise NVMLError("Not Supported")
            return answer(*args)

        return function


def clocks(nvml: Nvml | None, monkeypatch: pytest.MonkeyPatch, device: Device = GPU) -> Clocks:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return Clocks(device)


def test_a_reading_has_units(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    read = clocks(nvml, monkeypatch)
    assert read.read() == ClockReading(1.98e9, 612.5, 700.0, 61.0, ())
    assert read.max_sm_hz() == 1.985e9
    assert read.application_sm_hz() == 1.5e9
    assert read.driver_version() == "580.159.03"
    assert not read.unavailable
    read.close()
    read.close()
    assert nvml.running == 0
    assert not [name for name, *_ in nvml.asked if "Set" in name]


@pytest.mark.parametrize(
    ("bits", "throttle", "conditions"),
    [
        (0x0, (), ()),
        (0x1, (), ()),
        (0x4, ("sw_power_cap",), ("power capped",)),
        (0x40, ("hw_thermal_slowdown",), ("throttled: hw_thermal_slowdown",)),
        (
            0x45,
            ("sw_power_cap", "hw_thermal_slowdown"),
            ("power capped", "throttled: hw_thermal_slowdown"),
        ),
    ],
)
def test_what_holds_the_clocks_down(
    monkeypatch: pytest.MonkeyPatch, bits: int, throttle: tuple[str, ...], conditions: tuple[str, ...]
) -> None:
    reading = clocks(Nvml(bits), monkeypatch).read()
    assert reading.throttle == throttle
    assert reading.conditions == conditions


def test_set_clocks_are_no_slowdown() -> None:
    assert ClockReading(throttle=("applications_clocks_setting",)).conditions == ()


def test_what_a_device_does_not_tell_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(0x4, ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlShutdown"))
    read = clocks(nvml, monkeypatch)
    assert read.read() == ClockReading(1.98e9, None, 700.0, 61.0, ())
    read.close()


def test_clocks_of_an_instance_are_those_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    clocks(nvml, monkeypatch, MIG).read()
    assert ("nvmlDeviceGetPowerUsage", "parent of by MIG-00") in nvml.asked


def test_a_uuid_that_nvml_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(silent=("nvmlDeviceGetHandleByUUID",))
    clocks(nvml, monkeypatch).read()
    assert ("nvmlDeviceGetPowerUsage", "at 0000:1B:00.0") in nvml.asked


@pytest.mark.parametrize(
    ("nvml", "reason"),
    [
        (None, "nvidia-ml-py is not installed"),
        (Nvml(silent=("nvmlInit",)), "NVML does not start: Not Supported"),
        (
            Nvml(silent=("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId")),
            "NVML does not know GPU-00",
        ),
    ],
)
def test_without_nvml_nothing_is_known_and_why(
    monkeypatch: pytest.MonkeyPatch, nvml: Nvml | None, reason: str
) -> None:
    read = clocks(nvml, monkeypatch)
    assert reason in read.unavailable
    assert read.read() == ClockReading()
    assert read.max_sm_hz() is None
    assert read.application_sm_hz() is None
    read.close()
