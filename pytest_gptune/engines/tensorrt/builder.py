"""Plans: serialised engines, built from an ONNX file at a route."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_gptune.engines.base import BuildRejectedError, BuildRequest
from pytest_gptune.engines.tensorrt.build_log import given, make_progress
from pytest_gptune.engines.tensorrt.knobs import set_route
from pytest_gptune.engines.tensorrt.library import Features
from pytest_gptune.engines.tensorrt.network import load_plugins, parse_network
from pytest_gptune.engines.tensorrt.options import Options
from pytest_gptune.engines.tensorrt.profiles import add_profile, make_profile, network_inputs
from pytest_gptune.engines.tensorrt.timing_cache import (
    TimingCacheFile,
    give_timing_cache,
    taken_timing_cache,
)
from pytest_gptune.errors import ModelError, StorageError

_MIB = 1 << 20


@dataclass(frozen=True)
class Plan:
    """A serialised engine.

    Attributes:
        data: its bytes.
        build_seconds: of the build alone, without parsing.
    """

    data: bytes
    build_seconds: float
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Target:
    """What a plan is built with and for.

    Attributes:
        trt: the module.
        log: its logger.
        timings: the timing cache of the search; None: the build measures everything itself.
        warm: brings the GPU to its working clocks; the tactics that are timed first would look slow.
    """

    trt: Any
    log: Any
    features: Features
    options: Options
    timings: TimingCacheFile | None = None
    warm: Callable[[], None] | None = None

    @property
    def typed(self) -> bool:
        """Whether the network's own types hold, so that the builder chooses no precision."""
        chosen = self.options.strongly_typed
        return not self.features.weak_types or bool(chosen)


def make_builder(trt: Any, log: Any) -> Any:
    """A builder.

    Raises:
        BuildRejectedError: TensorRT does not start, as without a driver; its log says why.
    """
    try:
        return trt.Builder(log)
    except Exception as error:  # the bindings raise TypeError for a null pointer, whatever the reason
        reason = "; ".join(log.errors()) or " ".join(str(error).split())
        raise BuildRejectedError(f"TensorRT {trt.__version__} does not start: {reason}") from error


def build_plan(target: Target, request: BuildRequest) -> Plan:
    """Build the plan of a request.

    Raises:
        ModelError: the model cannot be parsed, whatever the route.
        SettingsError: shapes or plugins do not fit.
        BuildRejectedError: the route was not taken, or TensorRT builds no engine; its errors are in the text.
    """
    trt, log, options = target.trt, target.log, target.options
    builder = make_builder(trt, log)
    load_plugins(trt, builder.get_plugin_registry(), log, options.plugins)
    network, parser = parse_network(trt, builder, log, request.model, target.features, options)
    config = given(builder.create_builder_config(), "configuration", log)
    set_route(trt, config, request.route, target.features, typed=target.typed)
    add_profile(builder, config, make_profile(network_inputs(network), request.shapes, options.shape_values))
    _configure(target, config)
    warnings = []
    keeps, discarded = False, ""
    if target.timings is not None:
        data, discarded = target.timings.read()
        warnings += [discarded] if discarded else []
        keeps, discarded = give_timing_cache(config, data)
        warnings += [discarded] if discarded else []
    if target.warm is not None:
        target.warm()
    start = time.perf_counter()
    serialized = builder.build_serialized_network(network, config)
    build_seconds = time.perf_counter() - start
    del parser  # it owns the weights that the network refers to, so it had to live until here
    if serialized is None:
        raise _build_error(log, request, target.features)
    if keeps and target.timings is not None:
        with contextlib.suppress(StorageError):  # the next build measures again
            target.timings.write(taken_timing_cache(config))
    return Plan(bytes(serialized), build_seconds, tuple(warnings))


def _configure(target: Target, config: Any) -> None:
    trt, options = target.trt, target.options
    config.progress_monitor = make_progress(trt)
    # The inspector tells layers and tactics only of an engine that was built with them.
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if options.workspace_mib is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_mib * _MIB)
    if options.compute_capabilities:
        config.num_compute_capabilities = len(options.compute_capabilities)
        for index, capability in enumerate(options.compute_capabilities):
            member = trt.ComputeCapability.__members__[f"SM{capability.replace('.', '')}"]
            if not config.set_compute_capability(member, index):
                raise BuildRejectedError(
                    f"TensorRT {target.features.version} refuses compute capability {capability}"
                )


def _build_error(log: Any, request: BuildRequest, features: Features) -> BuildRejectedError | ModelError:
    errors = log.errors()
    what = f"TensorRT {features.version} builds no engine: {errors[0] if errors else 'it does not say why'}"
    return BuildRejectedError(what, where=request.model, log=tuple(log.tail()))
