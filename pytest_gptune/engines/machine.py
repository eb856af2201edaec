"""Facts about the machine: cores that may be used, CPU model, load, environment that steers compilers."""

from __future__ import annotations

import math
import os
import platform
import sys
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

# Set for workers, by the process that starts them.
CORES_VARIABLE = "GPTUNE_WORKER_CORES"


def usable_cores() -> int:
    """Cores this process may use, by affinity and by the control group's quota, never the host's count.

    A worker is told by the process that started it, and needs no library to find out.

    loky reads affinity and the quota of the root group, which is a container's own. A service without a
    namespace of its own has its quota further down the tree.
    """
    if (told := os.environ.get(CORES_VARIABLE, "")).isdigit():
        return max(1, int(told))
    from loky import cpu_count

    quota = _nested_quota(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))
    return max(1, min(int(cpu_count()), quota or sys.maxsize))


def _nested_quota(tree: Path, membership: Path) -> int | None:
    """The smallest quota of the process's version 2 control groups, in whole cores, rounded up."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    found: list[int] = []
    for line in lines:
        if line.startswith("0::/"):
            group = tree / line[len("0::/") :]
            while group != tree and group.is_relative_to(tree):
                found += _cores_of(group / "cpu.max")
                group = group.parent
    return min(found, default=None)


def _cores_of(file: Path) -> list[int]:
    """The cores that a ``cpu.max`` file grants; empty where it grants all, or cannot be read."""
    try:
        quota, period = file.read_text().split()
        return [] if quota == "max" else [max(1, math.ceil(int(quota) / int(period)))]
    except (OSError, ValueError, ZeroDivisionError):
        return []


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
