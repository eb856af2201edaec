"""TensorRT and TensorRT RTX on a real device; skipped with the reason where one of them is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from projects import MODEL, Project

from pytest_gptune.engines.base import BackendMissingError, BuildRequest, ShapeRange
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.tensorrt import TensorRtBackend, TensorRtRtxBackend
from pytest_gptune.engines.tensorrt.engine import TensorRtEngine
from pytest_gptune.routes import KnobSpace

Build = Callable[..., TensorRtEngine]

EXACT = ("-builder:TF32", "off")
X = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)


@pytest.fixture(params=[TensorRtBackend, TensorRtRtxBackend], ids=lambda cls: cls.name)
def backend(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> TensorRtBackend:
    made: TensorRtBackend = request.param()
    try:
        made.check_available({})
    except BackendMissingError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made


@pytest.fixture
def build(backend: TensorRtBackend) -> Iterator[Build]:
    engines: list[TensorRtEngine] = []

    def build(path: Path, *route: tuple[str, str], **fields: Any) -> TensorRtEngine:
        engines.append(backend.build(request_for(path, *route, **fields)))
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()


def request_for(path: Path, *route: tuple[str, str], **fields: Any) -> BuildRequest:
    return BuildRequest(str(path), inspect_model(path).sha256, route, **fields)


def assert_right(engine: TensorRtEngine, path: Path, inputs: Mapping[str, np.ndarray]) -> None:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    outputs = engine.run(inputs)
    assert set(outputs) == set(names)
    for name, reference in zip(names, session.run(names, dict(inputs)), strict=True):
        assert outputs[name].shape == reference.shape
        assert outputs[name].dtype == reference.dtype
        np.testing.assert_allclose(outputs[name], reference, rtol=1e-3, atol=1e-4)


def test_it_computes_and_is_replayed_from_a_graph(build: Build, tmp_path: Path) -> None:
    path = models.mlp(tmp_path / "mlp.onnx")
    engine = build(path, EXACT)
    assert engine.info.graph, engine.info.warnings
    assert engine.info.engine_bytes
    for x in (X, -X):
        assert_right(engine, path, {"x": x})


def test_a_larger_model_takes_longer(build: Build, tmp_path: Path) -> None:
    medians = []
    for layers in (4, 64):
        engine = build(models.mlp(tmp_path / f"{layers}.onnx", layers=layers), EXACT)
        engine.load({"x": X})
        engine.sample(0.1, 100_000)
        block = engine.sample(0.2, 100_000)
        assert len(block.latencies_s) > 1
        assert block.enqueue_share is not None
        medians.append(float(np.median(block.latencies_s)))
    assert 0 < 1.5 * medians[0] < medians[1]


def test_every_shape_of_a_dynamic_model(build: Build, tmp_path: Path) -> None:
    path = models.dynamic(tmp_path / "dynamic.onnx", width=8)
    engine = build(path, EXACT, shapes={"tokens": ShapeRange((1, 2, 8), (2, 4, 8), (4, 16, 8))})
    rng = np.random.default_rng(1)
    for shape in ((2, 4, 8), (4, 16, 8), (1, 2, 8), (4, 16, 8)):
        assert_right(engine, path, {"tokens": rng.standard_normal(shape).astype(np.float32)})


def test_an_output_whose_shape_depends_on_data(build: Build, tmp_path: Path) -> None:
    values = {"x": (TensorProto.FLOAT, [8])}
    node = helper.make_node("NonZero", ["x"], ["where"])
    model = models.build([node], values, {"where": (TensorProto.INT64, [1, "n"])})
    path = models.write(model, tmp_path / "nonzero.onnx")
    engine = build(path)
    for x in ([0, 1, 0, 2, 0, 0, 0, 3], [1] * 8, [0, 0, 0, 0, 0, 0, 0, 5]):
        assert_right(engine, path, {"x": np.array(x, np.float32)})


def test_an_input_that_holds_a_shape(build: Build, tmp_path: Path) -> None:
    inputs = {"x": (TensorProto.FLOAT, [1, 4]), "size": (TensorProto.INT64, [2])}
    node = helper.make_node("Expand", ["x", "size"], ["y"])
    model = models.build([node], inputs, {"y": (TensorProto.FLOAT, ["a", 4])})
    path = models.write(model, tmp_path / "expand.onnx")
    sizes = {"min": [1, 4], "opt": [3, 4], "max": [8, 4]}
    engine = build(path, options={"shape_values": {"size": sizes}})
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    for rows in (3, 1, 8):
        assert_right(engine, path, {"x": x, "size": np.array([rows, 4], np.int64)})


def test_layers_are_timed_beside_the_samples_and_memory_is_told(build: Build, tmp_path: Path) -> None:
    engine = build(models.mlp(tmp_path / "mlp.onnx", layers=16), EXACT)
    engine.load({"x": X})
    engine.sample(0.1, 100_000)
    before = float(np.median(engine.sample(0.2, 100_000).latencies_s))
    times = engine.layer_times()
    assert times
    assert all(seconds >= 0 for seconds in times.values())
    assert sum(times.values()) > 0
    after = float(np.median(engine.sample(0.2, 100_000).latencies_s))
    assert after == pytest.approx(before, rel=0.05)
    assert set(engine.info.device_memory_bytes) == {"context", "weights"}
    assert engine.info.device_memory_bytes["weights"] > 0
    assert_right(engine, tmp_path / "mlp.onnx", {"x": X})


def test_transfers_add_to_the_latency_and_change_no_output(build: Build, tmp_path: Path) -> None:
    """Of the shape that is loaded, after a larger one was run in the same buffers."""
    path = models.dynamic(tmp_path / "dynamic.onnx", width=8)
    shapes = {"tokens": ShapeRange((1, 2, 8), (64, 512, 8), (64, 4096, 8))}
    small, large = (np.ones(shape, np.float32) for shape in ((64, 512, 8), (64, 4096, 8)))
    medians = []
    for transfers in (False, True):
        engine = build(path, EXACT, shapes=shapes, options={"transfers": transfers})
        assert_right(engine, path, {"tokens": large})
        engine.load({"tokens": small})
        engine.sample(0.1, 100_000)
        medians.append(float(np.median(engine.sample(0.2, 100_000).latencies_s)))
        assert_right(engine, path, {"tokens": small})
    assert medians[1] > medians[0]


def test_equal_builds_have_equal_digests_and_tell_their_layers(build: Build, tmp_path: Path) -> None:
    path = models.mlp(tmp_path / "mlp.onnx")
    first, again, other = (build(path, *route).info for route in ((), (), (EXACT,)))
    assert first.digest == again.digest
    assert first.digest_proves or first.layers
    assert other.digest != first.digest or not first.digest_proves


def test_a_kept_engine_is_loaded(build: Build, backend: TensorRtBackend, tmp_path: Path) -> None:
    path = models.mlp(tmp_path / "mlp.onnx")
    engine = build(path, EXACT)
    data = engine.serialize()
    assert data is not None
    loaded = backend.load(request_for(path, EXACT, kept=engine.info.facts), data)
    try:
        assert_right(loaded, path, {"x": X})
    finally:
        loaded.close()


def test_routes_share_a_timing_cache(build: Build, backend: TensorRtBackend, tmp_path: Path) -> None:
    if backend.process_family(()) is None:
        pytest.skip(f"{backend.name} measures when an engine is loaded, and has no timing cache")
    path = models.mlp(tmp_path / "mlp.onnx")
    assert build(path).info.warnings == ()
    assert len(list((tmp_path / "cache").rglob("*.timing"))) == 1
    assert build(path).info.warnings == ()


def test_a_build_route_is_taken(build: Build, backend: TensorRtBackend, tmp_path: Path) -> None:
    space = KnobSpace.from_json(backend.knob_space(None, {}))
    knobs = [knob for knob in space if not knob.name.startswith("-builder:") and knob.bounded]
    if not knobs:
        pytest.skip(" ".join(space.notes))
    path = models.mlp(tmp_path / "mlp.onnx")
    knob = knobs[0]
    value = next(value for value in knob.values or () if value != knob.default)
    assert_right(build(path, (knob.name, value), EXACT), path, {"x": X})


def test_the_whole_plugin(backend: TensorRtBackend, project: Project) -> None:
    project.ini(gptune_isolation="process", gptune_final_builds=2)
    routes = "-builder:TF32=off -builder:optimization_level=[3|1]"
    project.tests(
        f"""
        @pytest.mark.gptune(model="{MODEL}", epsilon=1e-4, routes="{routes}")
        def test_model(gptune):
            gptune.check()
        """
    )

    result = project.run_apart(f"--gptune-backend={backend.name}", "--gptune-search=fast")

    result.assert_outcomes(passed=2, skipped=1)  # the verdict is new: there is no baseline yet
    result.stdout.fnmatch_lines(["*device_queued median*"])
