"""ONNX Runtime's CUDA provider on a real device: knobs, graphs, accuracy, latency, the whole plugin."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from projects import MODEL, Project

from pytest_gptune.engines.base import BuildRejectedError, BuildRequest
from pytest_gptune.engines.cuda import Device
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend, knobs
from pytest_gptune.engines.onnxruntime.cuda_engine import CudaSessionEngine
from pytest_gptune.engines.worker import WorkerBackend
from pytest_gptune.routes import KnobSpace

CUDA = {"provider": "cuda"}
GRAPH = {"-ort:enable_cuda_graph": "1"}

# ONNX Runtime 1.31.1 is right in a session's first run and wrong in all others, by itself as well.
INACCURATE = {("fuse_conv_bias", "1")}

Build = Callable[..., CudaSessionEngine]


@pytest.fixture(scope="module")
def backend(device: Device) -> OnnxRuntimeBackend:
    if knobs.CUDA not in onnxruntime.get_available_providers():
        pytest.skip("this build of ONNX Runtime has no CUDA provider")
    return OnnxRuntimeBackend()


@pytest.fixture
def build(backend: OnnxRuntimeBackend) -> Build:
    def build(path: Path, route: Mapping[str, str] | None = None, **options: Any) -> CudaSessionEngine:
        request = BuildRequest(
            str(path), inspect_model(path).sha256, tuple((route or {}).items()), options={**CUDA, **options}
        )
        engine = backend.build(request)
        assert isinstance(engine, CudaSessionEngine)
        return engine

    return build


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.conv(tmp_path_factory.mktemp("net") / "net.onnx", channels=64, size=64, batch=8)


def image(seed: int = 0) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(seed).standard_normal((8, 3, 64, 64)).astype(np.float32)}


def reference(path: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, inputs)[0]
    return result


@pytest.mark.parametrize("route", [{}, GRAPH], ids=["eager", "graph"])
def test_outputs_are_those_of_the_cpu(build: Build, net: Path, route: Mapping[str, str]) -> None:
    exact = build(net, {**route, "-ort:use_tf32": "0"})
    assert exact.info.latency_kind == "device_queued"
    assert exact.info.graph is bool(route)
    for seed in range(3):
        inputs = image(seed)
        np.testing.assert_allclose(exact.run(inputs)["logits"], reference(net, inputs), rtol=1e-4, atol=1e-5)
    exact.close()


def test_dynamic_shapes_have_graphs_of_their_own(build: Build, tmp_path: Path) -> None:
    path = models.dynamic(tmp_path / "m.onnx", width=64)
    engine = build(path, {**GRAPH, "-ort:use_tf32": "0"})
    for shape in ((2, 5, 64), (1, 9, 64), (2, 5, 64)):
        tokens = np.random.default_rng(shape[1]).standard_normal(shape).astype(np.float32)
        got = engine.run({"tokens": tokens})["hidden"]
        np.testing.assert_allclose(got, reference(path, {"tokens": tokens}), atol=1e-5)
    engine.close()


def test_a_graph_saves_the_hosts_time(build: Build, net: Path) -> None:
    shares, latencies = [], []
    for route in ({}, GRAPH):
        engine = build(net, route)
        engine.load(image())
        engine.sample(0.1, 1_000_000)
        block = engine.sample(0.3, 1_000_000)
        assert block.sm_clock_hz is None or 1e8 < block.sm_clock_hz < 1e10
        assert block.enqueue_share is not None
        shares.append(block.enqueue_share)
        latencies.append(float(np.median(block.latencies_s)))
        engine.close()
    assert latencies[1] < latencies[0]
    assert shares[1] * latencies[1] < shares[0] * latencies[0]


def test_blocks_of_one_engine_agree(build: Build, net: Path) -> None:
    engine = build(net, GRAPH)
    engine.load(image())
    engine.sample(0.3, 1_000_000)
    blocks = [float(np.median(engine.sample(0.1, 1_000_000).latencies_s)) for _ in range(10)]
    engine.close()
    assert np.std(blocks) / np.mean(blocks) < 0.02


def test_every_value_of_every_knob_reaches_the_provider(
    backend: OnnxRuntimeBackend, build: Build, net: Path
) -> None:
    space = KnobSpace.from_json(backend.knob_space(inspect_model(net), CUDA))
    seen = echoed = 0
    for knob in space:
        short = knob.name.removeprefix(knobs.PREFIX)
        known = knobs.knob_named(knob.name)
        if known is None or known.target != "provider":
            continue
        for value in knob.values or ():
            engine = build(net, {knob.name: value})
            given = engine._session.get_provider_options()[knobs.CUDA]
            # ONNX Runtime 1.31 takes one of them, and does not say so.
            assert given.get(short, "-") in (knobs.provider_options({short: value})[short], "-")
            echoed += short in given
            logits = engine.run(image())["logits"]
            if (short, value) not in INACCURATE:
                np.testing.assert_allclose(logits, reference(net, image()), atol=3e-2)
            engine.close()
            seen += 1
    assert echoed >= 20
    assert seen - echoed <= 2


def det(path: Path, *, before: bool, after: bool) -> Path:
    """Determinants, which the CPU alone has, and work for the device: ``x``, ``w`` [2, 3, 3] -> ``y`` [2]."""
    cube, pair = (TensorProto.FLOAT, [2, 3, 3]), (TensorProto.FLOAT, [2])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]) if before else helper.make_node("Relu", ["w"], ["z"]),
        helper.make_node("Det", ["p" if before else "x"], ["d" if after else "y"]),
    ]
    if after:
        nodes.append(helper.make_node("Exp", ["d"], ["y"]))
    outputs = {"y": pair} if before else {"y": pair, "z": cube}
    return models.write(models.build(nodes, {"x": cube, "w": cube}, outputs), path)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_nodes_left_to_the_cpu(build: Build, tmp_path: Path, before: bool, after: bool) -> None:
    path = det(tmp_path / "m.onnx", before=before, after=after)
    with pytest.raises(BuildRejectedError, match=r"1 nodes fell back from CUDAExecutionProvider.*Det"):
        build(path)
    engine = build(path, allow_cpu_nodes=True)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for seed in range(5):
        values = np.random.default_rng(seed).standard_normal((2, 2, 3, 3)).astype(np.float32)
        inputs = {"x": values[0], "w": values[1]}
        for got, expected in zip(engine.run(inputs).values(), session.run(None, inputs), strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-2, atol=2e-2)  # MatMul in TF32
    engine.load(inputs)
    assert engine.sample(0.05, 1000).latencies_s
    engine.close()
    # ONNX Runtime refuses copies between the two within the model; what lies on the host is ours to refuse.
    with pytest.raises(BuildRejectedError, match="graph"):
        build(path, GRAPH, allow_cpu_nodes=True)


def test_a_model_that_runs_on_the_cpu_alone_is_rejected(build: Build, tmp_path: Path) -> None:
    node = helper.make_node("Det", ["x"], ["y"])
    model = models.build([node], {"x": (TensorProto.FLOAT, [2, 3, 3])}, {"y": (TensorProto.FLOAT, [2])})
    with pytest.raises(BuildRejectedError, match="no node of the model runs on CUDAExecutionProvider"):
        build(models.write(model, tmp_path / "m.onnx"), allow_cpu_nodes=True)


def test_equal_routes_have_equal_digests(build: Build, net: Path) -> None:
    routes: list[dict[str, str]] = [{}, {}, GRAPH, {"-ort:use_tf32": "0"}]
    digests = []
    for route in routes:
        engine = build(net, route)
        digests.append(engine.info.digest)
        engine.close()
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_a_kept_engine_is_loaded(backend: OnnxRuntimeBackend, build: Build, net: Path) -> None:
    engine = build(net, GRAPH)
    data, expected, digest = engine.serialize(), engine.run(image())["logits"], engine.info.digest
    engine.close()
    assert data is not None
    request = BuildRequest(str(net), inspect_model(net).sha256, tuple(GRAPH.items()), options=CUDA)
    loaded = backend.load(request, data)
    assert loaded.info.digest == digest
    assert loaded.info.graph
    np.testing.assert_allclose(loaded.run(image())["logits"], expected, atol=1e-2)
    loaded.close()


def test_engines_on_two_devices(build: Build, net: Path) -> None:
    devices = Device.visible()
    if len(devices) < 2:
        pytest.skip("there is one device")
    engines = [build(net, GRAPH, device=text) for text in ("0", devices[1].uuid)]
    assert [engine._device.index for engine in engines] == [0, 1]
    for engine in engines:
        engine.load(image())
    for seed in range(3):
        for engine in engines:
            np.testing.assert_allclose(
                engine.run(image(seed))["logits"], reference(net, image(seed)), atol=3e-2
            )
            assert engine.sample(0.02, 1000).latencies_s
    for engine in engines:
        engine.close()


def test_the_environment_names_device_and_stack(backend: OnnxRuntimeBackend, device: Device) -> None:
    environment = backend.environment({**CUDA, "device": device.uuid})
    assert environment.device_class == f"cuda:{device.name}:{device.sm_count}"
    for name in ("driver", "driver_cuda", "cuda_runtime", "cublas", "cudnn"):
        assert environment.software[name], name
    assert environment.noted["uuid"] == device.uuid
    json.dumps([environment.software, environment.device, environment.noted])


def test_the_plugin_searches_and_gates(backend: OnnxRuntimeBackend, project: Project, net: Path) -> None:
    project.ini(gptune_isolation="process", gptune_final_builds=2)
    project.write(MODEL, net.read_bytes())
    project.tests(
        f"""
        @pytest.mark.gptune(
            model="{MODEL}", epsilon=1e-2, options={{"provider": "cuda"}},
            routes="-ort:enable_cuda_graph=[0|1] -ort:use_tf32=[1|0]",
        )
        def test_model(gptune):
            gptune.check()
        """,
        golden=None,
    )
    project.run_apart("--gptune-update-goldens")
    report = project.path / "report.json"
    project.run_apart("--gptune-search=fast", "--gptune-update-baseline", f"--gptune-report={report}")
    (test,) = json.loads(report.read_text())["tests"]
    assert test["latency_kind"] == "device_queued"
    assert test["statistic"] == "median"
    assert {route["status"] for route in test["routes"]} <= {"passed", "inert"}
    graphs = {route["id"]: route["graph"] for route in test["routes"]}
    assert graphs["default"] is False
    assert graphs["ort:enable_cuda_graph=1"] is True
    assert test["winner"] == "ort:enable_cuda_graph=1"
    again = project.run_apart("-ra")
    again.assert_outcomes(passed=3)


def test_the_first_engine_of_a_process_is_as_fast_as_later_ones(
    backend: OnnxRuntimeBackend, tmp_path: Path
) -> None:
    """With a stream for each engine, each kernel of a graph starts later from the second engine on."""
    nodes = [helper.make_node("Tanh", [f"x{n}"], [f"x{n + 1}"]) for n in range(200)]
    inputs: Any = {"x0": (TensorProto.FLOAT, [64])}
    outputs: Any = {"x200": (TensorProto.FLOAT, [64])}
    path = models.write(models.build(nodes, inputs, outputs), tmp_path / "chain.onnx")
    request = BuildRequest(str(path), inspect_model(path).sha256, tuple(GRAPH.items()), options=CUDA)
    worker = WorkerBackend("onnxruntime", route_timeout_s=120)
    latencies = []
    try:
        for _ in range(3):
            engine = worker.build(request)
            engine.load({"x0": np.ones(64, np.float32)})
            engine.sample(0.1, 1_000_000)
            latencies.append(float(np.median(engine.sample(0.1, 1_000_000).latencies_s)))
            engine.close()
    finally:
        worker.close()
    assert max(latencies) / min(latencies) < 1.03, latencies


def test_an_engine_is_as_fast_after_routes_that_slow_their_process_down(
    backend: OnnxRuntimeBackend, device: Device
) -> None:
    """On an H200 cuDNN's default algorithm does so."""
    onnx = pytest.importorskip("onnx")
    path = Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx"
    given = {"data_0": np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)}
    worker, pids = WorkerBackend("onnxruntime", route_timeout_s=120), []
    sha256 = inspect_model(path).sha256

    def latency(route: Mapping[str, str], *, fresh: bool = False) -> float:
        request = BuildRequest(str(path), sha256, tuple(route.items()), options=CUDA, fresh=fresh)
        engine = worker.build(request)
        pids.append(engine._worker.pid)
        engine.load(given)
        result = min(float(np.median(engine.sample(0.2, 10**6).latencies_s)) for _ in range(3))
        engine.close()
        return result

    try:
        spoiling = {"-ort:cudnn_conv_algo_search": "default"}
        alone = latency(GRAPH, fresh=True)
        for _ in range(2):  # the first engine of a process, then a later one
            latency(spoiling)
            assert latency(GRAPH) == pytest.approx(alone, rel=0.02)
            assert latency(GRAPH) == pytest.approx(alone, rel=0.02)
    finally:
        worker.close()
    if device.name == "NVIDIA H200":
        assert pids[1] != pids[2] == pids[3] == pids[4] != pids[5] == pids[6]


def test_engines_measured_in_turns_get_ready_side_by_side(
    net: Path, caplog: pytest.LogCaptureFixture, backend: OnnxRuntimeBackend
) -> None:
    caplog.set_level("INFO")
    routes: list[tuple[tuple[str, str], ...]] = [(), tuple(GRAPH.items())]
    sha256 = inspect_model(net).sha256
    requests = [BuildRequest(str(net), sha256, route, options=CUDA, fresh=True) for route in routes]
    worker = WorkerBackend("onnxruntime", route_timeout_s=120)
    try:
        with worker.expecting(requests):
            assert worker._ahead is not None
            ready = {process.pid for _, process in worker._ahead._waiting}
            engines = [worker.build(request) for request in requests]
            assert {engine._worker.pid for engine in engines} == ready
            assert len(ready) == 2
            for engine, request in zip(engines, requests, strict=True):
                assert engine.info.digest == backend.engine_digest(request)
                assert engine.run(image()).keys() == {"logits"}
                engine.close()
    finally:
        worker.close()
    assert not [message for message in caplog.messages if "did not get ready" in message]


def test_getting_ready_makes_no_session(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """An application's session is the first one of its process, and so are those of the finals."""
    monkeypatch.setattr(onnxruntime, "InferenceSession", None)
    OnnxRuntimeBackend().get_ready(BuildRequest("", "", options=CUDA))


def test_sessions_with_an_lstm_are_released_one_after_another(build: Build, tmp_path: Path) -> None:
    """A callback that outlives its session ends the process."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((1, 256, 64)).astype(np.float32) * 0.1 for name in ("w", "r")}
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=64)
    shapes: Any = {"x": (TensorProto.FLOAT, [100, 1, 64])}, {"y": (TensorProto.FLOAT, [100, 1, 1, 64])}
    path = models.write(models.build([node], *shapes, weights), tmp_path / "lstm.onnx")
    x = rng.standard_normal((100, 1, 64)).astype(np.float32)
    for _ in range(10):
        engine = build(path)
        engine.load({"x": x})
        engine.sample(0.05, 1_000_000)
        engine.close()
    np.testing.assert_allclose(build(path).run({"x": x})["y"], reference(path, {"x": x}), atol=1e-2)


def test_transfers_add_to_the_latency(build: Build, tmp_path: Path) -> None:
    """64 MiB each way, which no bus brings in the time of one addition on the device."""
    path = models.write(
        models.build(
            [helper.make_node("Add", ["x", "x"], ["y"])],
            {"x": (TensorProto.FLOAT, [1 << 24])},
            {"y": (TensorProto.FLOAT, [1 << 24])},
        ),
        tmp_path / "add.onnx",
    )
    x = np.ones(1 << 24, np.float32)
    latencies = []
    for transfers in (False, True):
        engine = build(path, transfers=transfers)
        engine.load({"x": x})
        latencies.append(float(np.median(engine.sample(0.2, 1_000_000).latencies_s)))
        np.testing.assert_array_equal(engine.run({"x": x})["y"], 2 * x)
        engine.close()
    assert latencies[1] > 3 * latencies[0], latencies


def test_an_output_of_another_rank_than_declared_runs_and_is_timed(build: Build, tmp_path: Path) -> None:
    nodes = [helper.make_node("Tanh", ["x"], ["t"]), helper.make_node("Reshape", ["t", "shape"], ["y"])]
    inputs: Any = {"x": (TensorProto.FLOAT, ["n", 4]), "shape": (TensorProto.INT64, ["r"])}
    path = models.write(
        models.build(nodes, inputs, {"y": (TensorProto.FLOAT, [1, "n"])}), tmp_path / "rank.onnx"
    )
    engine = build(path, allow_cpu_nodes=True)
    for scale in (1.0, 2.0):
        x = np.full((2, 4), scale, np.float32)
        given = {"x": x, "shape": np.array([2, 2, 2])}
        engine.load(given)
        assert engine.sample(0.05, 100).latencies_s
        for _ in range(3):
            np.testing.assert_allclose(engine.run(given)["y"], np.tanh(x).reshape(2, 2, 2), rtol=1e-5)


def test_nodes_in_fp16_are_right_within_its_rounding_and_run_as_such(
    build: Build, net: Path, tmp_path: Path
) -> None:
    exact = reference(net, image())
    knobs_of = OnnxRuntimeBackend().knob_space(inspect_model(net), {**CUDA, "quantise": ["*"]})
    (option,) = [o for o in json.loads(knobs_of)["tuner_options"] if o["option"].startswith("-quant:")]
    assert option["allowed_values"].endswith("=[off|fp16]")
    engine = build(net, {option["option"]: "fp16", "-ort:use_tf32": "0"}, quantise=["*"])
    loss = float(np.abs(next(iter(engine.run(image()).values())) - exact).max())
    assert 0 < loss < 0.05 * float(np.abs(exact).max())
