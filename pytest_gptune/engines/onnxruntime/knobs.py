"""ONNX Runtime's knobs, for the installed version and this machine.

ONNX Runtime accepts unknown keys and nonsense values in silence, so every name and value is checked here.
Which configuration keys a build knows is read off its library: a key it never compares with is not in it.
Names, defaults and values are those of ``onnxruntime_session_options_config_keys.h`` and of
``SessionOptions`` in the Python API of ONNX Runtime 1.32, and of the CUDA provider's options in 1.31.
"""

from __future__ import annotations

import functools
import json
import mmap
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

PREFIX = "-ort:"
PASS_PREFIX = f"{PREFIX}pass:"

CUDA = "CUDAExecutionProvider"

DENORMAL = f"{PREFIX}session.set_denormal_as_zero"

# Optimisation passes by the names that ONNX Runtime 1.32 gives them; it ignores names it does not know, so
# only those that occur in its library are offered. Left out are passes that results depend on, as those that
# mend casts or the signs of quantised weights. A pass without anything to do gives the same engine.
_PASSES = (
    "AttentionFusion",
    "BiasGeluFusion",
    "BiasSoftmaxFusion",
    "CastElimination",
    "CommonSubexpressionElimination",
    "ConstantFolding",
    "ConstantSharing",
    "ConvAddActivationFusion",
    "ConvAddFusion",
    "ConvBNFusion",
    "ConvMulFusion",
    "DivMulFusion",
    "DynamicQuantizeMatMulFusion",
    "EliminateDropout",
    "EliminateIdentity",
    "EliminateSlice",
    "EmbedLayerNormFusion",
    "ExpandElimination",
    "FastGeluFusion",
    "FuseReluClip",
    "GatherSliceToSplitFusion",
    "GatherToSliceFusion",
    "GeluFusionL2",
    "GemmActivationFusion",
    "GemmSumFusion",
    "GemmTransposeFusion",
    "LayerNormFusionL1",
    "MatMulActivationFusion",
    "MatMulAddFusion",
    "MatMulNBitsFusion",
    "MatMulScaleFusion",
    "MatMul_BatchNormalization_Fusion",
    "MatmulTransposeFusion",
    "NchwcTransformer",
    "NhwcTransformer",
    "NoopElimination",
    "NotWhereFusion",
    "PreShapeNodeElimination",
    "QuickGeluFusion",
    "ReshapeFusion",
    "SimplifiedLayerNormFusion",
    "SkipLayerNormFusion",
    "TransposeOptimizer",
    "UnsqueezeElimination",
)

_KEY = re.compile(rb"(?:session|optimization|mlas)\.[a-z0-9_.]{4,80}(?=\0)")

# What is tried when no expression lists values; every number up to the quota is allowed. Few graphs have more
# than a handful of branches that could run at the same time.
_INTRA_LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_INTER_LADDER = (1, 2, 4)

_LEVEL = f"{PREFIX}graph_optimization_level"

# What moves threads, memory and kernels of the CPU alone.
_HOST_ONLY = frozenset(
    {
        "execution_mode",
        "enable_cpu_mem_arena",
        "session.intra_op.allow_spinning",
        "session.inter_op.allow_spinning",
        "session.force_spinning_stop",
        "session.dynamic_block_base",
        "session.disable_prepacking",
        "session.set_denormal_as_zero",
        "session.x64quantprecision",
    }
)


@dataclass(frozen=True)
class OrtKnob:
    """One knob as ONNX Runtime takes it.

    Attributes:
        name: attribute of ``SessionOptions`` or configuration key.
        target: which of the two it is, or an option of the provider.
        values: allowed values, as they are written in a route.
        needs: ``qdq`` where only quantised models are affected, ``arm64`` where only that platform is.
        provider: the execution provider that has it, empty where all do.
    """

    name: str
    default: str
    values: tuple[str, ...]
    help: str
    target: Literal["attribute", "config", "provider"] = "config"
    needs: str = ""
    provider: str = ""


_KNOBS = (
    OrtKnob(
        "graph_optimization_level",
        "all",
        ("disable", "basic", "extended", "layout", "all"),
        "How far the graph is optimised before it runs. May change numbers.",
        "attribute",
    ),
    OrtKnob(
        "execution_mode",
        "sequential",
        ("sequential", "parallel"),
        "parallel: independent branches of the graph run at the same time.",
        "attribute",
    ),
    OrtKnob(
        "execution_order",
        "default",
        ("default", "priority_based"),
        "Order in which ready nodes run.",
        "attribute",
    ),
    OrtKnob("enable_cpu_mem_arena", "on", ("on", "off"), "Keep freed memory in an arena.", "attribute"),
    OrtKnob("enable_mem_pattern", "on", ("on", "off"), "Plan memory ahead for fixed shapes.", "attribute"),
    OrtKnob("enable_mem_reuse", "on", ("on", "off"), "Reuse buffers within one run.", "attribute"),
    OrtKnob(
        "session.intra_op.allow_spinning", "1", ("1", "0"), "Threads within an operator spin while they wait."
    ),
    OrtKnob(
        "session.inter_op.allow_spinning", "1", ("1", "0"), "Threads between operators spin while they wait."
    ),
    OrtKnob("session.force_spinning_stop", "0", ("0", "1"), "Stop spinning as soon as a run ends."),
    OrtKnob(
        "session.dynamic_block_base",
        "0",
        ("0", "1", "2", "4", "8"),
        "Split the work of an operator in shrinking blocks; 0 splits evenly.",
    ),
    OrtKnob(
        "session.graph_optimizations_loop_level",
        "1",
        ("0", "1", "2"),
        "Whether optimisation passes run again after the graph has changed.",
    ),
    OrtKnob(
        "session.use_device_allocator_for_initializers",
        "0",
        ("0", "1"),
        "Allocate weights outside of the arena.",
    ),
    OrtKnob(
        "session.disable_prepacking", "0", ("0", "1"), "1: weights are not repacked. May change numbers."
    ),
    OrtKnob(
        "session.set_denormal_as_zero",
        "0",
        ("0", "1"),
        "Flush denormal numbers to zero. Changes numbers; a setting of the whole process.",
    ),
    OrtKnob(
        "optimization.enable_gelu_approximation",
        "0",
        ("0", "1"),
        "Gelu by its tanh approximation. Changes numbers.",
    ),
    OrtKnob(
        "optimization.minimal_build_optimizations",
        "full",
        ("full", "apply"),
        "apply: only the optimisations of a minimal build. May change numbers.",
    ),
    OrtKnob(
        "optimization.enable_cast_chain_elimination",
        "0",
        ("0", "1"),
        "Drop chains of casts. May change numbers.",
    ),
    OrtKnob(
        "session.x64quantprecision",
        "0",
        ("0", "1"),
        "More precise int8 products on x86-64 without VNNI. Changes numbers of quantised models.",
        needs="qdq",
    ),
    OrtKnob(
        "session.disable_quant_qdq",
        "0",
        ("0", "1"),
        "1: QuantizeLinear and DequantizeLinear are not fused into quantised operators.",
        needs="qdq",
    ),
    OrtKnob(
        "session.enable_quant_qdq_cleanup", "0", ("0", "1"), "Remove pairs that are left over.", needs="qdq"
    ),
    OrtKnob("session.disable_double_qdq_remover", "0", ("0", "1"), "1: double pairs are kept.", needs="qdq"),
    OrtKnob(
        "session.disable_qdq_constant_folding",
        "0",
        ("0", "1"),
        "1: constants behind DequantizeLinear are not folded.",
        needs="qdq",
    ),
    OrtKnob(
        "mlas.enable_gemm_fastmath_arm64_bfloat16",
        "0",
        ("0", "1"),
        "Products in bfloat16 on Arm. Changes numbers.",
        needs="arm64",
    ),
)


# Never offered: do_copy_in_default_stream=0, which is documented to race.
_CUDA_KNOBS = tuple(
    OrtKnob(name, values[0], values, text, "provider", provider=CUDA)
    for name, values, text in (
        (
            "cudnn_conv_algo_search",
            ("exhaustive", "heuristic", "default"),
            "How cuDNN's algorithm is chosen for a convolution. May change numbers.",
        ),
        ("use_tf32", ("1", "0"), "float32 products in TF32, with 10 bits of mantissa. Changes numbers."),
        ("prefer_nhwc", ("0", "1"), "Convolutions with the channels last. May change numbers."),
        (
            "cudnn_conv_use_max_workspace",
            ("1", "0"),
            "Let cuDNN's convolutions take as much memory as they like. May change numbers.",
        ),
        (
            "cudnn_conv1d_pad_to_nc1d",
            ("0", "1"),
            "Pad convolutions of one dimension to [N, C, 1, D] instead of [N, C, D, 1]. May change numbers.",
        ),
        ("fuse_conv_bias", ("0", "1"), "Bias and activation within cuDNN's convolution. May change numbers."),
        (
            "enable_skip_layer_norm_strict_mode",
            ("0", "1"),
            "SkipLayerNormalization in higher precision. Changes numbers.",
        ),
        ("tunable_op_enable", ("0", "1"), "Operators with several kernels. May change numbers."),
        (
            "tunable_op_tuning_enable",
            ("0", "1"),
            "Tune these operators when they first run; needs tunable_op_enable=1. May change numbers.",
        ),
        (
            "arena_extend_strategy",
            ("kNextPowerOfTwo", "kSameAsRequested"),
            "How the arena of device memory grows. May change numbers, by the workspace that is left.",
        ),
        (
            "enable_cuda_graph",
            ("0", "1"),
            "Capture a CUDA graph and replay it. The outputs are equal; refused where nodes run on the CPU.",
        ),
        ("use_ep_level_unified_stream", ("0", "1"), "One stream for the whole provider."),
    )
)


def provider_options(effective: Mapping[str, str]) -> dict[str, str]:
    """The settings that are the provider's, as it takes them."""
    chosen = {}
    for name, value in effective.items():
        knob = knob_named(PREFIX + name)
        if knob is not None and knob.target == "provider":
            chosen[name] = value.upper() if name == "cudnn_conv_algo_search" else value
    return chosen


def knob_named(name: str) -> OrtKnob | None:
    """The knob called ``-ort:NAME`` in routes, None where there is no such (threads and passes included)."""
    for knob in _KNOBS + _CUDA_KNOBS:
        if PREFIX + knob.name == name:
            return knob
    return None


def is_pass(name: str) -> bool:
    """Whether ``name`` is an optimisation pass that is offered as a knob."""
    return name in _PASSES


def level_member(value: str) -> str:
    """The member of ``GraphOptimizationLevel`` for a value of ``-ort:graph_optimization_level``."""
    return "ORT_DISABLE_ALL" if value == "disable" else f"ORT_ENABLE_{value.upper()}"


@functools.cache
def known_keys(library: Path) -> frozenset[str]:
    """Configuration keys that occur in ONNX Runtime's library."""
    with library.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
        return frozenset(key.decode() for key in _KEY.findall(view))


@functools.cache
def known_cuda_options(library: Path) -> frozenset[str]:
    """Options of the CUDA provider that are knobs and occur in its library."""
    with library.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
        names = [knob.name for knob in _CUDA_KNOBS]
        return frozenset(name for name in names if view.find(name.encode() + b"\0") >= 0)


@functools.cache
def known_passes(library: Path) -> tuple[str, ...]:
    """Optimisation passes offered as knobs that occur in ONNX Runtime's library."""
    with library.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
        return tuple(name for name in _PASSES if view.find(name.encode() + b"\0") >= 0)


def knob_space(
    *,
    tuner_version: str,
    cores: int,
    machine: str,
    attributes: Iterable[str],
    levels: Iterable[str],
    keys: Iterable[str],
    passes: Sequence[str],
    quantised: bool | None,
    provider: str = "",
    provider_options: Iterable[str] = (),
    of_model: Sequence[dict[str, Any]] = (),
) -> str:
    """The knob space as JSON in the form of ``IBuilderConfig.getAllBuildRoutes()``.

    Args:
        tuner_version: ONNX Runtime's version.
        cores: cores this process may use: thread counts beyond are pruned.
        machine: the processor's architecture, as ``platform.machine()`` names it.
        attributes: what ``SessionOptions`` of the installed version has.
        levels: members of its ``GraphOptimizationLevel``; before 1.21 there is no ``ORT_ENABLE_LAYOUT``.
        keys: configuration keys the installed version knows.
        passes: optimisation passes it has; they are knobs on request.
        quantised: whether the model has QuantizeLinear or DequantizeLinear; None without a model.
        provider: the execution provider; what only moves the host is a knob on request where it is another's.
        provider_options: its options that the installed version knows.
        of_model: knobs of the model, in the same form.
    """
    have, members = set(attributes) | set(keys), set(levels)
    on_arm = machine.lower() in ("arm64", "aarch64")
    on_host = provider != CUDA
    inter_help = "Threads between operators, with parallel execution."
    options = [
        _thread_option("intra_op_num_threads", cores, _INTRA_LADDER, "Threads within an operator."),
        _thread_option("inter_op_num_threads", cores, _INTER_LADDER, inter_help),
    ]
    if not on_host:
        for option in options:
            option["on_request"] = True
    for knob in _KNOBS:
        if knob.name not in have or (knob.needs == "arm64" and not on_arm):
            continue
        values = knob.values
        if PREFIX + knob.name == _LEVEL:
            values = tuple(value for value in values if level_member(value) in members)
        option = _option(PREFIX + knob.name, values, knob.default, knob.help)
        if (knob.needs == "qdq" and not quantised) or (knob.name in _HOST_ONLY and not on_host):
            option["on_request"] = True
        options.append(option)
    known = set(provider_options)
    options += [
        _option(PREFIX + knob.name, knob.values, knob.default, knob.help)
        for knob in _CUDA_KNOBS
        if knob.provider == provider and knob.name in known
    ]
    for name in passes:
        option = _option(PASS_PREFIX + name, ("on", "off"), "on", f"Optimisation pass {name}.")
        option["on_request"] = True
        options.append(option)
    return json.dumps({"tuner_version": tuner_version, "tuner_options": [*options, *of_model]})


def _option(name: str, values: Sequence[str], default: str, text: str) -> dict[str, Any]:
    return {
        "option": name,
        "allowed_values": f"{name}=[{'|'.join(values)}]",
        "default_value": default,
        "help": text,
    }


def _thread_option(name: str, cores: int, ladder: Sequence[int], text: str) -> dict[str, Any]:
    full = PREFIX + name
    option = _option(full, [str(n) for n in range(1, cores + 1)], str(cores), text)
    searched = sorted({n for n in ladder if n < cores} | {cores})
    option["searched_values"] = f"{full}=[{'|'.join(map(str, searched))}]"
    option["pruned_values"] = f"{full}=int32_t"
    option["pruned_reason"] = f"this process may use {cores} core{'s' if cores > 1 else ''}"
    return option
