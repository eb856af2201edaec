"""Which engines are the same: their digests, and engines that are serialised and loaded again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import models
import numpy as np
import onnxruntime
import psutil
import pytest

from pytest_gptune.engines.base import BuildRequest, RouteFailureError
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend
from pytest_gptune.engines.onnxruntime.session import SessionEngine
from pytest_gptune.engines.worker import WorkerBackend

Build = Callable[..., SessionEngine]
ONE_THREAD = {"-ort:intra_op_num_threads": "1"}


def request_for(path: Path, route: dict[str, str] | None = None) -> BuildRequest:
    model = inspect_model(path)
    return BuildRequest(model.path, model.sha256, tuple((route or {}).items()))


def test_equal_builds_have_equal_digests(build: Build, fused: Path) -> None:
    route = {"-ort:enable_mem_reuse": "off", "-ort:pass:MatMulAddFusion": "off"}
    assert build(fused).info.digest == build(fused).info.digest
    assert build(fused, route).info.digest == build(fused, route).info.digest
    assert build(fused, route).info.digest == build(fused, dict(reversed(route.items()))).info.digest
    assert build(fused).info.digest == build(fused, log_severity=4).info.digest


def test_a_digest_that_is_told_costs_no_session(fused: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An application makes one, and what another leaves behind would be in the latency."""
    made, session = [], onnxruntime.InferenceSession

    def counting(*given: object, **named: object) -> object:
        made.append(given)
        return session(*given, **named)

    monkeypatch.setattr(onnxruntime, "InferenceSession", counting)
    request = request_for(fused, ONE_THREAD)
    digest = OnnxRuntimeBackend().engine_digest(request)
    assert len(made) == 1
    engine = OnnxRuntimeBackend().build(replace(request, digest=digest))
    assert len(made) == 2
    assert engine.info.digest == digest == OnnxRuntimeBackend().build(request).info.digest
    assert len(made) == 4


def test_other_builds_have_other_digests(build: Build, fused: Path, tmp_path: Path) -> None:
    routes: list[dict[str, str]] = [
        {},
        {"-ort:enable_mem_reuse": "off"},
        {"-ort:enable_mem_pattern": "off"},
        {"-ort:graph_optimization_level": "disable"},
        {"-ort:session.disable_prepacking": "1"},
        ONE_THREAD,
    ]
    digests = [build(fused, route).info.digest for route in routes]
    digests.append(build(models.mlp(tmp_path / "other.onnx", layers=2, bias=True, seed=1)).info.digest)
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(
    ("route", "same_as"),
    [
        ({"-ort:pass:NchwcTransformer": "off"}, {}),  # a network without convolutions
        ({"-ort:optimization.enable_gelu_approximation": "1"}, {}),  # and without Gelu
        ({"-ort:graph_optimization_level": "extended"}, {}),
        ({"-ort:session.disable_quant_qdq": "1"}, {}),
        ({"-ort:inter_op_num_threads": "1"}, {"-ort:inter_op_num_threads": "2"}),
        ({"-ort:session.inter_op.allow_spinning": "0"}, {}),
        ({**ONE_THREAD, "-ort:session.intra_op.allow_spinning": "0"}, ONE_THREAD),
        ({**ONE_THREAD, "-ort:session.dynamic_block_base": "4"}, ONE_THREAD),
        ({"-ort:enable_mem_reuse": "on"}, {}),
    ],
    ids=lambda route: " ".join(f"{k.removeprefix('-ort:')}={v}" for k, v in route.items()) or "default",
)
def test_knobs_without_effect_give_the_same_engine(
    build: Build, fused: Path, route: dict[str, str], same_as: dict[str, str]
) -> None:
    assert build(fused, route).info.digest == build(fused, same_as).info.digest


@pytest.mark.parametrize(
    "route",
    [
        {"-ort:execution_mode": "parallel", "-ort:inter_op_num_threads": "1"},
        {"-ort:execution_mode": "parallel", "-ort:session.inter_op.allow_spinning": "0"},
        {"-ort:session.intra_op.allow_spinning": "0", "-ort:intra_op_num_threads": "2"},
        {"-ort:session.dynamic_block_base": "4", "-ort:intra_op_num_threads": "2"},
    ],
    ids=lambda route: " ".join(f"{k.removeprefix('-ort:')}={v}" for k, v in route.items()),
)
def test_the_same_knobs_count_where_there_are_threads(
    build: Build, fused: Path, route: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPTUNE_WORKER_CORES", "2")
    last = list(route)[-1] if "-ort:intra_op_num_threads" not in list(route)[-1] else next(iter(route))
    without = {name: value for name, value in route.items() if name != last}
    assert build(fused, route).info.digest != build(fused, without).info.digest


@pytest.mark.parametrize(
    ("route", "threads"),
    [
        (ONE_THREAD, 0),
        ({"-ort:intra_op_num_threads": "2"}, 1),
        ({**ONE_THREAD, "-ort:inter_op_num_threads": "2"}, 0),
        ({**ONE_THREAD, "-ort:inter_op_num_threads": "2", "-ort:execution_mode": "parallel"}, 1),
    ],
    ids=["one", "two", "sequential", "parallel"],
)
def test_pools_of_threads_are_where_the_digest_takes_them_to_be(
    build: Build, fused: Path, route: dict[str, str], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPTUNE_WORKER_CORES", "2")
    build(fused, ONE_THREAD).close()  # what the library starts by itself is there now
    before = psutil.Process().num_threads()
    engine = build(fused, route)
    assert psutil.Process().num_threads() - before == threads
    engine.close()


def test_routes_with_one_digest_compute_the_same_bits(build: Build, tmp_path: Path) -> None:
    """Over every pair of graph knobs of a model that has something to fuse."""
    path = models.conv(tmp_path / "m.onnx")
    names = [item.name for item in inspect_model(path).inputs]
    shape = [dim if isinstance(dim, int) else 2 for dim in inspect_model(path).inputs[0].shape]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    levels = ("disable", "basic", "extended", "all")
    passes = ("MatMulAddFusion", "ConvBNFusion")
    outputs: dict[str, list[bytes]] = {}
    for level, *states in itertools.product(levels, *[("on", "off")] * len(passes)):
        route = {"-ort:graph_optimization_level": level}
        route |= {f"-ort:pass:{name}": state for name, state in zip(passes, states, strict=True)}
        engine = build(path, route)
        (value, *_) = engine.run({names[0]: x}).values()
        outputs.setdefault(engine.info.digest, []).append(value.tobytes())
    assert len(outputs) < len(levels) * 4
    for same in outputs.values():
        assert len(set(same)) == 1


def test_the_digest_is_known_before_the_build(fused: Path) -> None:
    backend = OnnxRuntimeBackend()
    for route in ({}, ONE_THREAD, {"-ort:graph_optimization_level": "disable"}):
        request = request_for(fused, route)
        assert backend.engine_digest(request) == backend.build(request).info.digest


def test_external_data_is_part_of_the_digest(build: Build, tmp_path: Path) -> None:
    first = build(models.external_data(tmp_path / "a" / "m.onnx", seed=1)).info.digest
    second = build(models.external_data(tmp_path / "b" / "m.onnx", seed=2)).info.digest
    again = build(models.external_data(tmp_path / "c" / "m.onnx", seed=1)).info.digest
    assert first == again
    assert first != second


class TestKept:
    def test_an_engine_is_loaded_again_as_the_same(self, fused: Path) -> None:
        x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
        backend = WorkerBackend("onnxruntime", route_timeout_s=60)
        try:
            for route in ({}, {**ONE_THREAD, "-ort:enable_mem_pattern": "off"}):
                request = request_for(fused, route)
                engine = backend.build(request)
                data = engine.serialize()
                assert data
                kept = backend.load(request, data)
                assert kept.info.digest == engine.info.digest
                assert kept.info.engine_bytes == len(data)
                assert kept.serialize() == data
                first, second = engine.run({"x": x}), kept.run({"x": x})
                assert all(np.array_equal(first[name], second[name]) for name in first)
        finally:
            backend.close()

    def test_another_engine_has_another_digest(self, fused: Path, tmp_path: Path) -> None:
        backend = OnnxRuntimeBackend()
        request = request_for(fused)
        other = request_for(models.mlp(tmp_path / "other.onnx", layers=2, bias=True, seed=1))
        data = backend.build(other).serialize()
        assert data
        assert backend.load(request, data).info.digest != backend.build(request).info.digest

    def test_what_is_no_engine_is_refused(self, fused: Path) -> None:
        with pytest.raises(RouteFailureError):
            OnnxRuntimeBackend().load(request_for(fused), b"not an engine")

    def test_weights_in_other_files_cannot_be_shipped_in_one(self, build: Build, tmp_path: Path) -> None:
        assert build(models.external_data(tmp_path / "a" / "m.onnx", seed=1)).serialize() is None
