"""Layers that are timed, and the memory an engine takes, over the double."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
from double_engines import Build, X

from pytest_gptune.engines.base import (
    EngineFailedError,
)
from pytest_gptune.engines.tensorrt import TensorRtBackend


def test_layers_are_timed_in_a_context_of_their_own(build: Build, mlp: Path) -> None:
    """The double's profiler doubles the time, of which half is the last layer's."""
    engine = build(mlp)
    with pytest.raises(EngineFailedError, match=r"layer_times\(\) before load\(\)"):
        engine.layer_times()
    engine.load({"x": X})
    before = engine.sample(0.01, 100).latencies_s
    times = engine.layer_times()
    assert list(times) == [node.output[0] for node in onnx.load(mlp).graph.node]
    assert sum(times.values()) == pytest.approx(200e-6, rel=0.01)
    assert times["y"] == pytest.approx(100e-6, rel=0.01)
    assert min(engine.sample(0.01, 100).latencies_s) == pytest.approx(min(before), rel=0.01)
    engine.close()


def test_a_layer_in_a_loop_counts_as_often_as_it_runs(
    double: TensorRtBackend, build: Build, mlp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_gptune.engines.tensorrt.layer_times import profiled

    context = SimpleNamespace(profiler=None)

    def run() -> None:
        if context.profiler is not None:
            for name, ms in (("loop", 1.0), ("end", 0.5), ("loop", 1.0)):
                context.profiler.report_layer_time(name, ms)

    assert profiled(double._trt, context, run) == {"loop": 2e-3, "end": 0.5e-3}


def test_the_memory_of_weights_and_context_is_told(build: Build, mlp: Path) -> None:
    weights = sum(onnx.numpy_helper.to_array(item).nbytes for item in onnx.load(mlp).graph.initializer)
    assert build(mlp).info.device_memory_bytes == {"context": 1 << 20, "weights": weights}


def test_layers_of_slow_runs_are_timed_less_often(
    double: TensorRtBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_gptune.engines.tensorrt import layer_times

    now = 0.0
    monkeypatch.setattr(layer_times.time, "perf_counter", lambda: now)
    for seconds, runs in ((0.01, 3 + 10), (0.09, 3 + 9), (0.4, 3 + 1), (2.0, 1 + 1)):
        context, taken = SimpleNamespace(profiler=None), 0

        def run(seconds: float = seconds, context: SimpleNamespace = context) -> None:
            nonlocal now, taken
            now, taken = now + seconds, taken + 1
            if context.profiler is not None:
                context.profiler.report_layer_time("layer", seconds * 1e3)

        assert layer_times.profiled(double._trt, context, run) == {"layer": pytest.approx(seconds)}
        assert taken == runs
