"""What makes two ONNX Runtime engines the same: the optimised graph, and the session options that apply.

The graph is had from ONNX Runtime itself: a session that writes its optimised model, without repacking
weights, costs a few milliseconds for small models and the time of loading for large ones. Names in it differ
from one session to the next, so that it is not compared byte for byte: see ``graph_digest``.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pytest_gptune.engines.onnxruntime import knobs

# Settings that act on the optimised graph and on nothing after it: the graph holds their effect.
_GRAPH_PREFIXES = ("optimization.", "graph_optimization_level", "disabled_optimizers")
_GRAPH_KEYS = frozenset(
    {
        "session.graph_optimizations_loop_level",
        "session.disable_quant_qdq",
        "session.enable_quant_qdq_cleanup",
        "session.disable_double_qdq_remover",
        "session.disable_qdq_constant_folding",
        "mlas.enable_gemm_fastmath_arm64_bfloat16",
    }
)

# Without a pool of threads within operators (one thread is no pool) these have nothing to act on; without
# parallel execution there is no pool between operators. See the tests, which count threads.
_OF_INTRA_POOL = frozenset({"session.intra_op.allow_spinning", "session.dynamic_block_base"})
_OF_INTER_POOL = frozenset({"inter_op_num_threads", "session.inter_op.allow_spinning"})


def graph_settings(effective: Mapping[str, str]) -> dict[str, str]:
    """The settings the optimised graph depends on."""
    return {name: value for name, value in effective.items() if _is_of_graph(name)}


def applying_settings(effective: Mapping[str, str]) -> dict[str, str]:
    """The settings that act on a session beside its graph; those at their defaults are left out."""
    idle: frozenset[str] = frozenset()
    if effective.get("intra_op_num_threads") == "1":
        idle |= _OF_INTRA_POOL
    if effective.get("execution_mode", "sequential") == "sequential":
        idle |= _OF_INTER_POOL
    return {
        name: value
        for name, value in effective.items()
        if not _is_of_graph(name) and name not in idle and not _is_default(name, value)
    }


def engine_digest(graph: Sequence[str], version: str, provider: str, effective: Mapping[str, str]) -> str:
    """The digest of an engine: equal for engines that cannot differ.

    Args:
        graph: digests of the model and of its optimised graph.
        version: ONNX Runtime's.
        provider: the execution provider.
        effective: all settings of the session.
    """
    parts = [list(graph), version, provider, applying_settings(effective)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def optimised_model(make_session: Callable[[str], object]) -> bytes:
    """The optimised model as ONNX Runtime writes it.

    Args:
        make_session: makes a session that writes its optimised model to the path it is given.
    """
    if hasattr(os, "memfd_create"):
        # A file in memory: it goes with the process, however that ends.
        descriptor = os.memfd_create("optimised")
        try:
            make_session(f"/proc/self/fd/{descriptor}")
            return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        finally:
            os.close(descriptor)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        make_session(str(path))
        return path.read_bytes()


def has_external_data(model: bytes) -> bool:
    """Whether weights of a serialised model lie in other files."""
    import onnx
    from onnx.external_data_helper import uses_external_data

    graph = onnx.load_model_from_string(model).graph
    return any(uses_external_data(tensor) for tensor in graph.initializer)


def _is_of_graph(name: str) -> bool:
    return name.startswith(_GRAPH_PREFIXES) or name in _GRAPH_KEYS


def _is_default(name: str, value: str) -> bool:
    knob = knobs.knob_named(knobs.PREFIX + name)
    return knob is not None and knob.default == value
