"""Facts about the machine: cores that may be used, CPU model, load, environment that steers compilers."""

from __future__ import annotations

import os
import platform
from pathlib import Path

# Each changes what is compiled or how it runs; a figure measured under another value is another figure.
_STEERING = (
    "TRT_INTERNAL_OPTIONS",
    "TRT_BYPASS_BUILD_ROUTE_WHITELIST",
    "__LUNOWUD",
    "NVIDIA_TF32_OVERRIDE",
    "CUDA_MODULE_LOADING",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "OMP_NUM_THREADS",
)


def usable_cores() -> int:
    """Cores this process may use, by affinity and by the control group's quota, never the host's count."""
    from loky import cpu_count

    return int(cpu_count())


def cpu_model() -> str:
    """The CPU's marketing name, or the architecture where the system does not tell."""
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "cpu model") and value.strip():
                return " ".join(value.split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def steering_environment() -> dict[str, str]:
    """Variables of the environment that steer a compiler or runtime and are set."""
    names = {name for name in os.environ if name in _STEERING or name.startswith("ORT_")}
    return {name: os.environ[name] for name in sorted(names)}


def load_average() -> float | None:
    """The system's load over the last minute, None where the platform does not tell."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
