"""ONNX Runtime's knob space, and that each of its values reaches the session."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnxruntime
import pytest

from pytest_gptune.engines.base import BuildRejectedError, BuildRequest
from pytest_gptune.engines.machine import usable_cores
from pytest_gptune.engines.onnx_model import inspect_model
from pytest_gptune.engines.onnxruntime import OnnxRuntimeBackend, cuda_provider, knobs
from pytest_gptune.engines.onnxruntime.backend import _library
from pytest_gptune.engines.onnxruntime.session import SessionEngine
from pytest_gptune.routes import Knob, KnobSpace

THREADS = ("-ort:intra_op_num_threads", "-ort:inter_op_num_threads")
LEVEL = "-ort:graph_optimization_level"
PASSES = "optimization.disable_specified_optimizers"
BACKEND = OnnxRuntimeBackend()
EVERYTHING = KnobSpace.from_json(BACKEND.knob_space(None, {}))
VALUES = [
    (knob.name, value) for knob in EVERYTHING for value in knob.values or () if knob.name not in THREADS
]

# What ONNX Runtime 1.32 has; earlier versions have less.
ATTRIBUTES = (
    "graph_optimization_level",
    "execution_mode",
    "execution_order",
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "enable_mem_reuse",
)
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_LAYOUT", "ORT_ENABLE_ALL")
KEYS = (
    "session.intra_op.allow_spinning",
    "session.inter_op.allow_spinning",
    "session.force_spinning_stop",
    "session.dynamic_block_base",
    "session.graph_optimizations_loop_level",
    "session.use_device_allocator_for_initializers",
    "session.disable_prepacking",
    "session.set_denormal_as_zero",
    "optimization.enable_gelu_approximation",
    "optimization.minimal_build_optimizations",
    "optimization.enable_cast_chain_elimination",
    "session.x64quantprecision",
    "session.disable_quant_qdq",
    "session.enable_quant_qdq_cleanup",
    "session.disable_double_qdq_remover",
    "session.disable_qdq_constant_folding",
    "mlas.enable_gemm_fastmath_arm64_bfloat16",
)
QDQ = (
    "session.x64quantprecision",
    "session.disable_quant_qdq",
    "session.enable_quant_qdq_cleanup",
    "session.disable_double_qdq_remover",
    "session.disable_qdq_constant_folding",
)


def space_of(**changes: Any) -> KnobSpace:
    given: dict[str, Any] = {
        "tuner_version": "1.32.0",
        "cores": 2,
        "machine": "x86_64",
        "attributes": ATTRIBUTES,
        "levels": LEVELS,
        "keys": KEYS,
        "passes": ("NchwcTransformer", "MatMulAddFusion"),
        "quantised": None,
    }
    return KnobSpace.from_json(knobs.knob_space(**{**given, **changes}))


def knob(space: KnobSpace, name: str) -> Knob:
    found = space.get(f"-ort:{name}")
    assert found is not None, name
    return found


def searched(space: KnobSpace) -> set[str]:
    """Knobs that a search without an expression tries."""
    return {term.knob.name.removeprefix("-ort:") for term in space.expression().terms}


def check_reached(engine: SessionEngine, name: str, value: str) -> None:
    """Read a knob's value back from the session."""
    options = engine._session.get_session_options()
    short = name.removeprefix("-ort:")
    if short.startswith("pass:"):
        if value == "off":
            assert options.get_session_config_entry(PASSES) == short.removeprefix("pass:")
        else:
            with pytest.raises(RuntimeError, match="does not have"):
                options.get_session_config_entry(PASSES)
    elif short == "graph_optimization_level":
        assert options.graph_optimization_level.name == knobs.level_member(value)
    elif short in ("execution_mode", "execution_order"):
        assert getattr(options, short).name.removeprefix("ORT_").lower() == value
    elif hasattr(options, short):
        assert getattr(options, short) == (value == "on")
    elif value == "full":
        with pytest.raises(RuntimeError, match="does not have"):
            options.get_session_config_entry(short)
    else:
        assert options.get_session_config_entry(short) == value


@pytest.mark.parametrize(("name", "value"), [pair for pair in VALUES if pair[0] != knobs.DENORMAL])
def test_every_value_builds_runs_and_reaches_the_session(
    build: Callable[..., SessionEngine], fused: Path, quantised: Path, name: str, value: str
) -> None:
    quant = "quant" in name or "qdq" in name
    engine = build(quantised if quant else fused, {name: value})
    x = np.ones((2, 8) if quant else (4, 64), np.float32)
    check_reached(engine, name, value)
    assert np.isfinite(engine.run({"x": x})["y"]).all()


def test_the_space_has_what_is_installed() -> None:
    names = {knob.name for knob in EVERYTHING}
    for attribute in ATTRIBUTES:
        assert (f"-ort:{attribute}" in names) == hasattr(onnxruntime.SessionOptions, attribute)
    content = _library().read_bytes()
    for key in KEYS:
        if not key.startswith("mlas"):
            assert (f"-ort:{key}" in names) == (key.encode() + b"\0" in content)
    assert EVERYTHING.tuner_version == onnxruntime.__version__


def test_no_engine_on_a_cpu_slows_its_process_down(backend: OnnxRuntimeBackend) -> None:
    assert backend.process_spent({}) is None


def test_flushing_denormals_is_a_process_of_its_own(backend: OnnxRuntimeBackend, fused: Path) -> None:
    """The first session of a process decides for all of it, so none is made here."""
    from pytest_gptune.engines.onnxruntime.backend import _session_options

    assert backend.process_family(()) == ""
    assert backend.process_family(((knobs.DENORMAL, "0"),)) == ""
    assert backend.process_family((("-ort:enable_mem_reuse", "off"), (knobs.DENORMAL, "1"))) != ""
    options, _effective = _session_options(BuildRequest(str(fused), "", ((knobs.DENORMAL, "1"),)))
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"


@pytest.mark.parametrize("name", THREADS)
@pytest.mark.parametrize("count", sorted({1, usable_cores()}))
def test_threads_reach_the_session(
    build: Callable[..., SessionEngine], fused: Path, name: str, count: int
) -> None:
    options = build(fused, {name: str(count)})._session.get_session_options()
    assert getattr(options, name.removeprefix("-ort:")) == count


def test_threads_are_explicit_without_a_route(build: Callable[..., SessionEngine], fused: Path) -> None:
    """0, ONNX Runtime's own default, takes the host's cores, not those this process may use."""
    options = build(fused)._session.get_session_options()
    assert options.intra_op_num_threads == options.inter_op_num_threads == usable_cores()


def test_a_route_of_several_knobs(build: Callable[..., SessionEngine], fused: Path) -> None:
    route = {LEVEL: "basic", "-ort:enable_mem_reuse": "off", "-ort:session.disable_prepacking": "1"}
    engine = build(fused, {**route, THREADS[0]: "1"})
    for name, value in route.items():
        check_reached(engine, name, value)
    assert engine._session.get_session_options().intra_op_num_threads == 1


@pytest.mark.parametrize(
    "off", [("MatMulAddFusion",), ("MatMulAddFusion", "NchwcTransformer"), ("QuickGeluFusion",)]
)
def test_a_pass_that_is_off_does_not_run(
    build: Callable[..., SessionEngine], fused: Path, off: tuple[str, ...]
) -> None:
    engine = build(fused, {f"-ort:pass:{name}": "off" for name in off})
    session = engine._session
    if not hasattr(session, "get_provider_graph_assignment_info"):
        pytest.skip("this version of ONNX Runtime does not tell its graph")
    assigned = session.get_provider_graph_assignment_info()
    operators = {node.op_type for subgraph in assigned for node in subgraph.get_nodes()}
    assert ("Gemm" in operators) == ("MatMulAddFusion" not in off)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (LEVEL, "banana"),
        (LEVEL, "ALL"),
        (LEVEL, ""),
        ("-ort:enable_mem_reuse", "1"),
        ("-ort:execution_mode", "serial"),
        ("-ort:session.dynamic_block_base", "3"),
        ("-ort:session.intra_op.allow_spinning", "banana"),
        ("-ort:optimization.minimal_build_optimizations", "save"),
        ("-ort:session.unheard_of", "1"),
        ("-ort:log_severity_level", "0"),
        ("-copy_ppg", "on"),
        (THREADS[0], "0"),
        (THREADS[0], "-1"),
        (THREADS[0], "banana"),
        (THREADS[0], "01"),
        (THREADS[0], "1.5"),
        (THREADS[0], "9" * 5000),
        (THREADS[1], ""),
        (THREADS[1], str(usable_cores() + 1)),
        ("-ort:pass:NchwcTransformer", "banana"),
        ("-ort:pass:Unheard", "off"),
        ("-ort:pass:", "off"),
    ],
)
def test_other_values_are_refused(
    build: Callable[..., SessionEngine], fused: Path, name: str, value: str
) -> None:
    """ONNX Runtime takes most of them in silence, and starts as many threads as it is told."""
    with pytest.raises(BuildRejectedError) as caught:
        build(fused, {name: value})
    assert name in str(caught.value)


def test_thread_values_are_pruned_beyond_the_quota() -> None:
    space = space_of(cores=6)
    for name in THREADS:
        threads = knob(space, name.removeprefix("-ort:"))
        assert threads.values == tuple("123456")
        assert threads.default == "6"
        assert threads.allows("5")
        assert not threads.allows("7")
        assert threads.prunes("7")
        assert threads.prunes("1024")
        assert not threads.prunes("0")
        assert not threads.prunes("banana")
        assert "6 cores" in threads.pruned_reason
    assert knob(space, "intra_op_num_threads").searched == ("1", "2", "4", "6")
    assert "1 core" in knob(space_of(cores=1), "intra_op_num_threads").pruned_reason


@pytest.mark.parametrize("cores", [1, 2, 8, 64, 192])
@pytest.mark.parametrize("machine", ["x86_64", "arm64", "aarch64", "AMD64"])
def test_the_default_search_is_small(cores: int, machine: str) -> None:
    space = space_of(cores=cores, machine=machine)
    assert space.expression().fast().count < 40
    for name in ("intra_op_num_threads", "inter_op_num_threads"):
        values = knob(space, name).searched
        assert values
        assert values[-1] == str(cores)
        assert max(map(int, values)) == cores
        assert len(values) == len(set(values))


def test_a_single_core_has_no_choice_of_threads() -> None:
    assert not {"intra_op_num_threads", "inter_op_num_threads"} & searched(space_of(cores=1))


def test_the_default_search_of_this_machine_is_small() -> None:
    assert EVERYTHING.expression().fast().count < 40


@pytest.mark.parametrize("absent", ATTRIBUTES)
def test_a_knob_without_its_attribute_is_absent(absent: str) -> None:
    space = space_of(attributes=[name for name in ATTRIBUTES if name != absent])
    assert space.get(f"-ort:{absent}") is None
    assert len(space) == len(space_of()) - 1


@pytest.mark.parametrize("absent", KEYS)
def test_a_knob_without_its_key_is_absent(absent: str) -> None:
    space = space_of(machine="arm64", keys=[key for key in KEYS if key != absent])
    assert space.get(f"-ort:{absent}") is None
    assert len(space) == len(space_of(machine="arm64")) - 1


def test_without_anything_only_the_threads_are_left() -> None:
    space = space_of(attributes=(), keys=(), passes=(), levels=())
    assert [knob.name for knob in space] == list(THREADS)


def test_a_level_that_the_version_lacks_is_left_out() -> None:
    """ONNX Runtime 1.20 has no ORT_ENABLE_LAYOUT."""
    space = space_of(levels=[level for level in LEVELS if level != "ORT_ENABLE_LAYOUT"])
    assert knob(space, "graph_optimization_level").values == ("disable", "basic", "extended", "all")
    assert knob(space_of(), "graph_optimization_level").values == (
        "disable",
        "basic",
        "extended",
        "layout",
        "all",
    )


def test_a_level_that_the_version_lacks_is_refused(
    build: Callable[..., SessionEngine], fused: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Levels:
        ORT_DISABLE_ALL = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL

    monkeypatch.setattr(onnxruntime, "GraphOptimizationLevel", Levels)
    with pytest.raises(BuildRejectedError, match="graph_optimization_level with value 'layout'"):
        build(fused, {LEVEL: "layout"})


@pytest.mark.parametrize("machine", ["x86_64", "AMD64", "riscv64"])
def test_arm_knobs_are_absent_elsewhere(machine: str) -> None:
    assert space_of(machine=machine).get("-ort:mlas.enable_gemm_fastmath_arm64_bfloat16") is None


def test_passes_are_knobs_on_request_only() -> None:
    space = space_of()
    for name in ("NchwcTransformer", "MatMulAddFusion"):
        assert knob(space, f"pass:{name}").on_request
        assert f"pass:{name}" not in searched(space)
    assert space_of(passes=()).get("-ort:pass:MatMulAddFusion") is None


@pytest.mark.parametrize("quantised", [None, False, True])
def test_qdq_knobs_are_searched_for_quantised_models_only(quantised: bool | None) -> None:
    space = space_of(quantised=quantised)
    assert set(QDQ) & searched(space) == (set(QDQ) if quantised else set())
    for name in QDQ:
        assert knob(space, name).on_request == (not quantised)


def test_a_models_own_operators_decide_about_qdq(
    backend: OnnxRuntimeBackend, fused: Path, quantised: Path
) -> None:
    plain = KnobSpace.from_json(backend.knob_space(inspect_model(fused), {}))
    quant = KnobSpace.from_json(backend.knob_space(inspect_model(quantised), {}))
    assert not set(QDQ) & searched(plain)
    assert set(QDQ) & searched(quant) == {name for name in QDQ if quant.get(f"-ort:{name}")}
    assert set(QDQ) & searched(quant)


def test_qdq_inside_a_branch_counts(backend: OnnxRuntimeBackend, tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    values = (TensorProto.FLOAT, [2, 3])
    info = helper.make_tensor_value_info
    inner = [
        helper.make_node("QuantizeLinear", ["x", "scale"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["a"]),
    ]
    branches = {
        "then_branch": helper.make_graph(inner, "then", [], [info("a", *values)]),
        "else_branch": helper.make_graph(
            [helper.make_node("Identity", ["x"], ["b"])], "else", [], [info("b", *values)]
        ),
    }
    node = helper.make_node("If", ["c"], ["y"], **branches)
    weights = {"scale": np.array(0.1, np.float32)}
    model = models.build([node], {"x": values, "c": (TensorProto.BOOL, [])}, {"y": values}, weights)
    path = models.write(model, tmp_path / "m.onnx")
    assert set(QDQ) & searched(KnobSpace.from_json(backend.knob_space(inspect_model(path), {})))


def test_the_space_is_in_the_tuners_form() -> None:
    document = json.loads(knobs.knob_space(
        tuner_version="1", cores=2, machine="x86_64", attributes=ATTRIBUTES, levels=LEVELS, keys=KEYS,
        passes=(), quantised=None,
    ))  # fmt: skip
    assert set(document) == {"tuner_version", "tuner_options"}
    for option in document["tuner_options"]:
        assert {"option", "allowed_values", "default_value", "help"} <= set(option)
        assert option["help"].endswith(".")


def test_every_knob_is_found_by_its_name() -> None:
    assert knobs.knob_named(LEVEL) is not None
    assert knobs.knob_named("graph_optimization_level") is None
    assert knobs.knob_named("-ort:pass:MatMulAddFusion") is None
    assert knobs.knob_named("") is None


CUDA_OPTIONS = (
    "cudnn_conv_algo_search",
    "use_tf32",
    "prefer_nhwc",
    "cudnn_conv_use_max_workspace",
    "cudnn_conv1d_pad_to_nc1d",
    "fuse_conv_bias",
    "enable_skip_layer_norm_strict_mode",
    "tunable_op_enable",
    "tunable_op_tuning_enable",
    "arena_extend_strategy",
    "enable_cuda_graph",
    "use_ep_level_unified_stream",
)


def test_the_cuda_provider_has_knobs_of_its_own() -> None:
    assert not set(CUDA_OPTIONS) & searched(space_of(provider_options=CUDA_OPTIONS))
    cuda = space_of(provider=knobs.CUDA, provider_options=CUDA_OPTIONS)
    assert set(CUDA_OPTIONS) <= searched(cuda)
    assert knob(cuda, "use_tf32").default == "1"
    assert knob(cuda, "cudnn_conv_algo_search").values == ("exhaustive", "heuristic", "default")
    assert "use_tf32" not in searched(space_of(provider=knobs.CUDA, provider_options=CUDA_OPTIONS[2:]))


def test_what_moves_the_host_alone_is_asked_for_on_a_device() -> None:
    """A marker may fix the number of threads for both, so these stay known."""
    cuda = space_of(provider=knobs.CUDA, provider_options=CUDA_OPTIONS)
    for name in ("intra_op_num_threads", "session.intra_op.allow_spinning", "session.disable_prepacking"):
        assert knob(cuda, name).allows("1")
        assert name in searched(space_of())
        assert name not in searched(cuda)
    assert {"graph_optimization_level", "optimization.enable_gelu_approximation"} <= searched(cuda)


def test_options_of_the_cuda_provider_as_it_takes_them() -> None:
    effective = {"use_tf32": "0", "cudnn_conv_algo_search": "heuristic", "intra_op_num_threads": "2"}
    assert knobs.provider_options(effective) == {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}


def test_options_are_read_off_the_providers_library(tmp_path: Path) -> None:
    library = tmp_path / "libonnxruntime_providers_cuda.so"
    library.write_bytes(b"\x7fELF\0use_tf32\0not_prefer_nhwc_\0enable_cuda_graph\0")
    core = tmp_path / "onnxruntime_pybind11_state.so"
    assert cuda_provider.known_options(core) == {"use_tf32", "enable_cuda_graph"}
    assert cuda_provider.known_options(tmp_path / "elsewhere" / core.name) == frozenset()


def test_knobs_of_another_provider_are_refused(build: Callable[..., SessionEngine], fused: Path) -> None:
    with pytest.raises(BuildRejectedError, match="no knob -ort:use_tf32 with value '0'"):
        build(fused, {"-ort:use_tf32": "0"})
