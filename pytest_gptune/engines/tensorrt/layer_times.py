"""What each layer of an engine takes, by TensorRT's profiler in a context of its own.

The profiler waits for every layer and cannot be taken off a context again for certain, so the context whose
runs are timed never has one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

# As many as trtexec's separate profile run has at least; the first ones load kernels.
_RUNS = 10
_WARM_UP = 3
# Every build of the finals is looked into: one whose runs are long has fewer of them, one each at least.
_SECONDS = 1.0


def profiled(trt: Any, context: Any, run: Callable[[], None]) -> dict[str, float]:
    """Seconds by layer, in the order in which they run: the median over some runs.

    Args:
        trt: the module.
        context: ``run`` executes it; it keeps the profiler.
        run: one inference, waited for.
    """
    deadline = time.perf_counter() + _SECONDS
    for number in range(_WARM_UP):
        if not number or time.perf_counter() < deadline:
            run()
    profiler = _make_profiler(trt)
    context.profiler = profiler
    runs: list[dict[str, float]] = []
    while len(runs) < _RUNS and (not runs or time.perf_counter() < deadline):
        profiler.layers = {}
        run()
        runs.append(profiler.layers)
    names = dict.fromkeys(name for layers in runs for name in layers)
    return {name: median(layers.get(name, 0.0) for layers in runs) for name in names}


def _make_profiler(trt: Any) -> Any:
    """A ``trt.IProfiler`` that sums up one run; ``layers``, in seconds by name, is ours."""

    class Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.layers: dict[str, float] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            # A layer in a loop is reported once for each turn.
            self.layers[layer_name] = self.layers.get(layer_name, 0.0) + ms * 1e-3

    return Profiler()
