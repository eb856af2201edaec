"""The real builder of TensorRT RTX, which needs no GPU: models, routes, shapes, digests and mistakes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pytest_gptune.engines.base import (
    BackendMissingError,
    BuildRejectedError,
    BuildRequest,
    EngineFailedError,
    EngineInfo,
    ShapeRange,
)
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.tensorrt import TensorRtRtxBackend
from pytest_gptune.engines.tensorrt.builder import make_builder
from pytest_gptune.engines.tensorrt.knobs import set_route
from pytest_gptune.engines.tensorrt.library import features_of, import_library
from pytest_gptune.engines.worker import WorkerBackend
from pytest_gptune.errors import ModelError, SettingsError
from pytest_gptune.routes import KnobSpace

EXAMPLES = Path(__file__).parents[2] / "example_project" / "models"
TOKENS = {"tokens": ShapeRange((1, 7, 128), (2, 64, 128), (4, 64, 128))}
BUILT_FOR: Mapping[str, Mapping[str, ShapeRange]] = {"mlp": {}, "convnet": {}, "encoder": TOKENS}

Build = Callable[..., EngineInfo]

pytest.importorskip("tensorrt_rtx", reason="TensorRT RTX is not installed", exc_type=ImportError)


def nvidia_gpu() -> bool:
    return Path("/dev/nvidiactl").exists()


@pytest.fixture(scope="module")
def backend() -> TensorRtRtxBackend:
    return TensorRtRtxBackend()


@pytest.fixture
def build(backend: TensorRtRtxBackend) -> Build:
    """Builds the model at a path in this process; always for named devices, so that none is looked for."""

    def build(
        path: Path, *route: tuple[str, str], shapes: Mapping[str, ShapeRange] | None = None, **options: Any
    ) -> EngineInfo:
        options = {"compute_capabilities": ["8.9", "12.0"], **options}
        request = BuildRequest(str(path), "0" * 64, route, shapes or {}, options)
        engine = backend.build(request)
        data = engine.serialize()
        engine.close()
        assert data is not None
        assert len(data) == engine.info.engine_bytes
        return engine.info

    return build


@pytest.fixture
def worker() -> Iterator[WorkerBackend]:
    backend = WorkerBackend("tensorrt_rtx", route_timeout_s=120)
    yield backend
    backend.close()


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    return models.mlp(tmp_path / "mlp.onnx", layers=2, width=32)


@pytest.mark.parametrize("name", BUILT_FOR)
def test_the_examples_build(build: Build, name: str) -> None:
    info = build(EXAMPLES / f"{name}.onnx", shapes=BUILT_FOR[name])
    assert info.engine_bytes is not None
    assert info.engine_bytes > 10_000
    assert info.build_seconds > 0
    assert info.latency_kind == "device_queued"
    assert info.facts["compute_capability"] == "8.9,12.0"


@pytest.mark.long
@pytest.mark.parametrize("name", BUILT_FOR)
def test_the_examples_build_at_every_route_of_a_fast_search(
    build: Build, backend: TensorRtRtxBackend, name: str
) -> None:
    space = KnobSpace.from_json(backend.knob_space(None, {}))
    digests = {}
    for route in space.expression().fast():
        pairs = route.minimal(space).values
        digests[pairs] = build(EXAMPLES / f"{name}.onnx", *pairs, shapes=BUILT_FOR[name]).digest
    assert len(digests) == space.expression().fast().count
    assert len(set(digests.values())) > 1


def test_an_equal_build_has_an_equal_digest_in_processes_of_their_own(
    worker: WorkerBackend, mlp: Path
) -> None:
    """And an inert knob as well; one that matters has not."""
    assert worker.process_family(()) is None
    routes = [(), (), (("-builder:STRICT_NANS", "on"),), (("-builder:TF32", "off"),)]
    infos = []
    for route in routes:
        engine = worker.build(BuildRequest(str(mlp), inspect_model(mlp).sha256, route))
        infos.append(engine.info)
        engine.close()
    first, again, inert, other = (info.digest for info in infos)
    assert first == again == inert
    assert other != first
    assert all(info.digest_proves for info in infos)


def test_each_build_has_a_process_that_ends_with_its_engine(worker: WorkerBackend, mlp: Path) -> None:
    import psutil

    def children() -> set[int]:
        return {child.pid for child in psutil.Process().children(recursive=True)}

    worker.process_family(())
    asking = children()
    first, second = (worker.build(BuildRequest(str(mlp), "0" * 64)) for _ in range(2))
    assert len(children() - asking) == 2
    first.close()
    assert len(children() - asking) == 1
    second.close()
    assert children() <= asking


def test_a_build_route_is_rejected_since_it_reads_back_empty(build: Build, mlp: Path) -> None:
    with pytest.raises(BuildRejectedError) as caught:
        build(mlp, ("-copy_ppg", "off"))
    assert "asked for '-copy_ppg=off', read back ''" in caught.value.what


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("nope", "1"),
        ("optimization_level", "6"),
        ("optimization_level", "-1"),
        ("max_aux_streams", "many"),
        ("TF32", "yes"),
        ("FP16", "on"),
        ("tactic_source:CUDNN", "on"),
    ],
)
def test_a_builder_knob_that_is_not_there_is_rejected(build: Build, mlp: Path, knob: str, value: str) -> None:
    with pytest.raises(BuildRejectedError, match=f"has no knob -builder:{knob} with value '{value}'"):
        build(mlp, (f"-builder:{knob}", value))


def test_every_value_of_every_builder_knob_is_taken(
    build: Build, backend: TensorRtRtxBackend, mlp: Path
) -> None:
    space = KnobSpace.from_json(backend.knob_space(None, {}))
    assert len(space) >= 9
    trt = import_library("tensorrt_rtx")
    builder = make_builder(trt, backend._log)
    for knob in space:
        for value in knob.values or ():
            # One that did not read back would be refused.
            set_route(
                trt, builder.create_builder_config(), ((knob.name, value),), features_of(trt), typed=True
            )


def test_dynamic_shapes(build: Build) -> None:
    encoder = EXAMPLES / "encoder.onnx"
    wide = build(encoder, shapes=TOKENS)
    fixed = build(encoder, shapes={"tokens": ShapeRange.fixed((2, 64, 128))})
    assert wide.digest != fixed.digest
    with pytest.raises(SettingsError, match=r"input 'tokens' .* is dynamic and has no shape"):
        build(encoder)
    with pytest.raises(SettingsError, match="min 3, opt 2, max 4 at position 0 are not in order"):
        build(encoder, shapes={"tokens": ShapeRange((3, 7, 128), (2, 64, 128), (4, 64, 128))})


def test_an_input_that_holds_a_shape(build: Build, tmp_path: Path) -> None:
    nodes = [helper.make_node("Expand", ["x", "size"], ["y"])]
    values = {"x": (TensorProto.FLOAT, [1, 4]), "size": (TensorProto.INT64, [2])}
    model = models.build(nodes, values, {"y": (TensorProto.FLOAT, ["a", 4])})
    path = models.write(model, tmp_path / "expand.onnx")
    with pytest.raises(SettingsError, match="input 'size' holds a shape, and its values are not declared"):
        build(path)
    assert build(path, shape_values={"size": {"min": [1, 4], "opt": [8, 4], "max": [64, 4]}}).engine_bytes


def truncated(folder: Path) -> Path:
    whole = models.mlp(folder / "mlp.onnx")
    whole.write_bytes(whole.read_bytes()[:-1000])
    return whole


def unknown_operator(folder: Path) -> Path:
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("Fuse", ["h"], ["y"], name="fuse_1", domain="acme"),
    ]
    values = (TensorProto.FLOAT, [2, 8])
    return models.write(
        models.build(nodes, {"x": values}, {"y": values}, domains=["acme"]), folder / "model.onnx"
    )


def missing_data(folder: Path) -> Path:
    path = external_data(folder)
    (folder / "weights.bin").unlink()
    return path


def external_data(folder: Path) -> Path:
    model = onnx.load(models.mlp(folder / "mlp.onnx", layers=2, width=32))
    path = folder / "external.onnx"
    onnx.save_model(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def future_opset(folder: Path) -> Path:
    values = (TensorProto.FLOAT, [2, 8])
    model = models.build([helper.make_node("Relu", ["x"], ["y"])], {"x": values}, {"y": values}, opset=999)
    return models.write(model, folder / "model.onnx")


def wrong_types(folder: Path) -> Path:
    values = {"x": (TensorProto.FLOAT, [2, 8]), "z": (TensorProto.INT64, [2, 8])}
    model = models.build([helper.make_node("Add", ["x", "z"], ["y"], name="sum")], values, {"y": values["x"]})
    return models.write(model, folder / "model.onnx")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (truncated, "not an ONNX model, or a truncated one"),
        (unknown_operator, "node 'fuse_1' (Fuse of acme): INVALID_NODE: "),
        (missing_data, "external data file 'weights.bin' of the model is missing"),
        (future_opset, "the model needs opset 999 of ai.onnx; onnx "),
        (wrong_types, "node 'sum' (Add of ai.onnx): "),
    ],
)
def test_a_model_that_cannot_be_built_is_one_clear_message(
    build: Build, tmp_path: Path, make: Callable[[Path], Path], said: str
) -> None:
    path = make(tmp_path)
    with pytest.raises(ModelError) as caught:
        build(path)
    assert said in caught.value.what
    assert "\n" not in caught.value.what
    assert caught.value.where == str(path)
    assert caught.value.mend


def test_external_data_is_built_in(build: Build, tmp_path: Path) -> None:
    path = external_data(tmp_path)
    inside = build(tmp_path / "mlp.onnx")
    assert build(path).engine_bytes == inside.engine_bytes
    weights = tmp_path / "weights.bin"
    weights.write_bytes(np.zeros(weights.stat().st_size, np.uint8).tobytes())
    assert build(path).digest != inside.digest


def test_mistakes_of_options(build: Build, backend: TensorRtRtxBackend, mlp: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"does not build for compute capability 9\.0") as caught:
        build(mlp, compute_capabilities=["9.0"])
    assert "8.9" in caught.value.mend
    with pytest.raises(SettingsError, match="has strongly typed networks only"):
        build(mlp, strongly_typed=False)
    with pytest.raises(SettingsError, match=r"plugin library .* does not exist"):
        build(mlp, plugins=[str(tmp_path / "none.so")])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "file too short"),
        ("int nothing(void) { return 0; }", "SymbolAddress for getCreators could not be loaded"),
        (
            "#include <stdint.h>\n"
            "void *const *getCreators(int32_t *n) { *n = 0; return 0; }\n"
            "void *const *getPluginCreators(int32_t *n) { *n = 0; return 0; }\n"
            "void setLoggerFinder(void *finder) {}\n",
            "No creator returned by getPluginCreators",
        ),
        ("extern int absent(void); int (*keep)(void) = absent;", "undefined symbol: absent"),
    ],
    ids=["no library", "no entry point", "no creators", "missing symbol"],
)
def test_a_library_without_plugins_is_one_clear_message(
    build: Build, mlp: Path, tmp_path: Path, source: str | None, said: str
) -> None:
    library = tmp_path / "libmine.so"
    if source is None:
        library.write_text("no library")
    else:
        compiler = shutil.which("cc") or pytest.skip("needs a C compiler")
        library.with_suffix(".c").write_text(source)
        command = [compiler, "-shared", "-fPIC", "-o", str(library), str(library.with_suffix(".c"))]
        subprocess.run(command, check=True)
    with pytest.raises(SettingsError) as caught:
        build(mlp, plugins=[str(library)])
    assert caught.value.what.startswith(f"plugin library '{library}' cannot be loaded: ")
    assert said in caught.value.what
    assert "\n" not in caught.value.what
    assert "driver" not in str(caught.value)  # that is missing too here, and nobody asked
    assert "plugins" in caught.value.where
    assert "getCreators" in caught.value.mend


def test_what_was_built_for_other_devices_does_not_run_and_says_so(
    backend: TensorRtRtxBackend, mlp: Path
) -> None:
    engine = backend.build(BuildRequest(str(mlp), "0" * 64, options={"compute_capabilities": ["12.0"]}))
    with pytest.raises(EngineFailedError, match="was built for compute capabilities that are not here"):
        engine.run({})


def test_building_needs_no_device_and_running_does(backend: TensorRtRtxBackend) -> None:
    backend.check_buildable({})
    if not nvidia_gpu():
        with pytest.raises(BackendMissingError) as caught:
            backend.check_available({})
        assert caught.value.mend
        assert backend.process_spent({}) is None


def test_without_build_routes_the_knob_space_says_why(backend: TensorRtRtxBackend) -> None:
    space = KnobSpace.from_json(backend.knob_space(None, {}))
    assert all(knob.name.startswith("-builder:") for knob in space)
    assert space.notes == (
        "No build routes: TensorRT RTX has no tuner: it chooses kernels when an engine is loaded. "
        "The builder's own knobs remain.",
    )
