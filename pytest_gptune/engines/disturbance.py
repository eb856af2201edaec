"""What disturbs samples on the host: other processes, a CPU quota, a hypervisor that takes the core away.

Read before and after a block, outside of the timed region, from what Linux tells every process; elsewhere
nothing is known. Needs nothing but the standard library: it runs in workers under other interpreters.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_gptune.engines.base import SampleBlock

_STAT = Path("/proc/stat")
_GROUP = Path("/sys/fs/cgroup/cpu.stat")

# Columns of a line of /proc/stat (proc_stat(5)); guest time is contained in user and nice.
_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ, _STEAL = 0, 1, 2, 5, 6, 7

# /proc/stat counts in ticks of 10 ms: over a shorter time it says nothing.
_SHORTEST_S = 0.03

_STOLEN = 0.05


@dataclass(frozen=True)
class HostClock:
    """Counters of the machine at one moment; seconds.

    Attributes:
        busy_s: time that the usable cores were busy, None where it is not known.
        stolen_s: time that the hypervisor gave to others.
        own_s: CPU time of this process, all threads.
        throttled: how often the control group's quota stopped its processes.
    """

    wall_s: float
    own_s: float
    busy_s: float | None
    stolen_s: float
    throttled: int
    cores: int

    @classmethod
    def now(cls, stat: Path = _STAT, group: Path = _GROUP) -> HostClock:
        """The counters as of now."""
        busy, stolen, cores = _cpu_times(stat)
        return cls(time.monotonic(), time.process_time(), busy, stolen, _throttled(group), cores)

    def describe(self, block: SampleBlock, end: HostClock) -> SampleBlock:
        """The block with what happened between this moment and ``end``."""
        wall = end.wall_s - self.wall_s
        conditions = block.conditions
        if end.throttled > self.throttled:
            conditions += ("throttled by the CPU quota",)
        if self.busy_s is None or end.busy_s is None or wall < _SHORTEST_S:
            return replace(block, conditions=conditions)
        total = wall * end.cores
        if end.stolen_s - self.stolen_s > _STOLEN * total:
            conditions += ("time stolen by the hypervisor",)
        others = (end.busy_s - self.busy_s) - (end.own_s - self.own_s)
        return replace(block, conditions=conditions, others_share=min(max(others / total, 0.0), 1.0))


def _cpu_times(stat: Path) -> tuple[float | None, float, int]:
    """Busy and stolen seconds of the cores this process may use, and their number."""
    try:
        usable = os.sched_getaffinity(0)
        tick = os.sysconf("SC_CLK_TCK")
        lines = stat.read_text().splitlines()
    except (AttributeError, OSError, ValueError):
        return None, 0.0, 1
    busy = stolen = cores = 0
    for line in lines:
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in usable:
            if len(fields) <= _STEAL or not all(field.isdecimal() for field in fields):
                return None, 0.0, 1
            times = [int(field) for field in fields]
            busy += sum(times[i] for i in (_USER, _NICE, _SYSTEM, _IRQ, _SOFTIRQ))
            stolen += times[_STEAL]
            cores += 1
    return (busy / tick, stolen / tick, cores) if cores else (None, 0.0, 1)


def _throttled(group: Path) -> int:
    try:
        for line in group.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == "nr_throttled":
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
