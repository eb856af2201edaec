"""ONNX Runtime's knobs, for the installed version and this machine.

ONNX Runtime accepts unknown keys and nonsense values in silence, so every name and value is checked here.
Which configuration keys a build knows is read off its library: a key it never compares with is not in it.
Names, defaults and values are those of ``onnxruntime_session_options_config_keys.h`` and of
``SessionOptions`` in the Python API of ONNX Runtime 1.32.
"""

from __future__ import annotations

import functools
import json
import mmap
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

PREFIX = "-ort:"
PASS_PREFIX = f"{PREFIX}pass:"

DENORMAL = f"{PREFIX}session.set_denormal_as_zero"

# Passes seen to change the optimised graph of fp32 models. ONNX Runtime ignores names it does not know.
_PASSES = (
    "NchwcTransformer",
    "ConvBNFusion",
    "GeluFusionL2",
    "LayerNormFusionL1",
    "SkipLayerNormFusion",
    "MatMulAddFusion",
    "MatMulScaleFusion",
    "MatmulTransposeFusion",
    "QuickGeluFusion",
)

_KEY = re.compile(rb"(?:session|optimization|mlas)\.[a-z0-9_.]{4,80}(?=\0)")

# What is tried when no expression lists values; every number up to the quota is allowed. Few graphs have more
# than a handful of branches that could run at the same time.
_INTRA_LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_INTER_LADDER = (1, 2, 4)

_LEVEL = f"{PREFIX}graph_optimization_level"


@dataclass(frozen=True)
class OrtKnob:
    """One knob as ONNX Runtime takes it.

    Attributes:
        name: attribute of ``SessionOptions`` or configuration key.
        target: which of the two it is.
        values: allowed values, as they are written in a route.
        needs: ``qdq`` where only quantised models are affected, ``arm64`` where only that platform is.
    """

    name: str
    default: str
    values: tuple[str, ...]
    help: str
    target: Literal["attribute", "config"] = "config"
    needs: str = ""


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


def knob_named(name: str) -> OrtKnob | None:
    """The knob called ``-ort:NAME`` in routes, None where there is no such (threads and passes included)."""
    for knob in _KNOBS:
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
        of_model: knobs of the model, in the same form.
    """
    have, members = set(attributes) | set(keys), set(levels)
    on_arm = machine.lower() in ("arm64", "aarch64")
    inter_help = "Threads between operators, with parallel execution."
    options = [
        _thread_option("intra_op_num_threads", cores, _INTRA_LADDER, "Threads within an operator."),
        _thread_option("inter_op_num_threads", cores, _INTER_LADDER, inter_help),
    ]
    for knob in _KNOBS:
        if knob.name not in have or (knob.needs == "arm64" and not on_arm):
            continue
        values = knob.values
        if PREFIX + knob.name == _LEVEL:
            values = tuple(value for value in values if level_member(value) in members)
        option = _option(PREFIX + knob.name, values, knob.default, knob.help)
        if knob.needs == "qdq" and not quantised:
            option["on_request"] = True
        options.append(option)
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
