"""Clocks, power, temperature and what holds the clocks down, through NVML. Nothing is ever set."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gptune.engines.cuda.device import Device

# Our words for NVML's nvmlClocksThrottleReason...; an idle device is not held down.
_REASONS = {
    "applications_clocks_setting": "ApplicationsClocksSetting",
    "sw_power_cap": "SwPowerCap",
    "hw_slowdown": "HwSlowdown",
    "sync_boost": "SyncBoost",
    "sw_thermal_slowdown": "SwThermalSlowdown",
    "hw_thermal_slowdown": "HwThermalSlowdown",
    "hw_power_brake_slowdown": "HwPowerBrakeSlowdown",
    "display_clock_setting": "DisplayClockSetting",
}

_SLOWDOWNS = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


@dataclass(frozen=True)
class ClockReading:
    """What NVML says at one moment; None where it does not tell.

    Attributes:
        sm_hz: clock of the multiprocessors.
        power_w: power drawn, averaged by the device over up to a second.
        power_limit_w: the limit that is enforced.
        temperature_c: of the GPU, in degrees Celsius.
        throttle: what holds the clocks down, as ``hw_thermal_slowdown``.
    """

    sm_hz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()

    @property
    def conditions(self) -> tuple[str, ...]:
        """Words for samples taken meanwhile: ``power capped``, ``throttled: hw_thermal_slowdown``."""
        capped = ("power capped",) if "sw_power_cap" in self.throttle else ()
        return capped + tuple(f"throttled: {name}" for name in self.throttle if name in _SLOWDOWNS)


class Clocks:
    """Reads the clocks of a device; a device or machine without NVML gives readings of None.

    Attributes:
        unavailable: why nothing can be read; empty where it can.
    """

    def __init__(self, device: Device) -> None:
        self.unavailable = ""
        self._nvml: Any = None
        self._handle: Any = None
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError as error:
            self.unavailable = f"nvidia-ml-py is not installed: {error}"
            return
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            self.unavailable = f"NVML does not start: {error}"
            return
        self._nvml = nvml
        try:
            self._handle = _handle(nvml, device)
        except nvml.NVMLError as error:
            self.unavailable = f"NVML does not know {device.uuid}: {error}"

    def read(self) -> ClockReading:
        """One reading, in some 0.1 ms."""
        nvml, handle = self._nvml, self._handle
        if handle is None:
            return ClockReading()

        def ask(name: str, *args: Any) -> Any:
            return self._ask(lambda: getattr(nvml, name)(handle, *args))

        bits = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return ClockReading(
            sm_hz=_scaled(ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM), 1e6),
            power_w=_scaled(ask("nvmlDeviceGetPowerUsage"), 1e-3),
            power_limit_w=_scaled(ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
            temperature_c=_scaled(ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU), 1.0),
            throttle=tuple(
                word
                for word, name in _REASONS.items()
                if bits and bits & getattr(nvml, f"nvmlClocksThrottleReason{name}", 0)
            ),
        )

    def max_sm_hz(self) -> float | None:
        """The highest clock of the multiprocessors; None where NVML does not tell."""
        nvml, handle = self._nvml, self._handle
        if handle is None:
            return None
        return _scaled(self._ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)), 1e6)

    def application_sm_hz(self) -> float | None:
        """The clock that is set for applications, which an administrator may lower; None where not told."""
        nvml, handle = self._nvml, self._handle
        if handle is None:
            return None
        return _scaled(
            self._ask(lambda: nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_SM)), 1e6
        )

    def driver_version(self) -> str | None:
        """The version of NVIDIA's driver, as ``580.159.03``; None where NVML does not tell."""
        nvml = self._nvml
        if nvml is None:
            return None
        version = self._ask(lambda: nvml.nvmlSystemGetDriverVersion())
        return version.decode() if isinstance(version, bytes) else version

    def close(self) -> None:
        """Let NVML go."""
        if self._nvml is not None:
            nvml, self._nvml, self._handle = self._nvml, None, None
            self._ask_of(nvml, nvml.nvmlShutdown)

    def _ask(self, question: Callable[[], Any]) -> Any:
        return self._ask_of(self._nvml, question)

    @staticmethod
    def _ask_of(nvml: Any, question: Callable[[], Any]) -> Any:
        """The answer, None where this device or driver has none."""
        try:
            return question()
        except nvml.NVMLError:
            return None


def _handle(nvml: Any, device: Device) -> Any:
    """NVML's handle of the device; of the whole device for a MIG instance, which has no clocks of its own."""
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(device.uuid)
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if device.is_mig else handle
    except nvml.NVMLError:
        return nvml.nvmlDeviceGetHandleByPciBusId(device.pci)


def _scaled(value: Any, factor: float) -> float | None:
    return None if value is None else float(value) * factor
