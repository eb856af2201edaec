"""Builds and loads TensorRT engines from routes, for either of TensorRT's modules."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import platform
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_gptune.engines.base import (
    BackendMissingError,
    BuildRequest,
    EngineInfo,
    Environment,
    ModelInfo,
    RouteFailureError,
    RoutePairs,
)
from pytest_gptune.engines.cuda import ProcessStreams
from pytest_gptune.engines.machine import load_average, steering_environment
from pytest_gptune.engines.tensorrt import digests, knobs
from pytest_gptune.engines.tensorrt.build_log import build_log
from pytest_gptune.engines.tensorrt.builder import Plan, Target, build_plan, make_builder
from pytest_gptune.engines.tensorrt.engine import LoadedEngine, TensorRtEngine
from pytest_gptune.engines.tensorrt.kept import check_kept, facts_of
from pytest_gptune.engines.tensorrt.library import Features, features_of, import_library, install_command
from pytest_gptune.engines.tensorrt.options import WHERE, Options, parse_options
from pytest_gptune.engines.tensorrt.timing_cache import TimingCacheFile
from pytest_gptune.errors import SettingsError
from pytest_gptune.storage import cache_folder

if TYPE_CHECKING:
    from pytest_gptune.engines.cuda import Device

_WARM_S = 0.3
_WARM_BYTES = 64 << 20


class TensorRtBackend:
    """NVIDIA TensorRT through its Python module."""

    name: ClassVar[str] = "tensorrt"

    def __init__(self) -> None:
        self._streams = ProcessStreams()

    @cached_property
    def _trt(self) -> Any:
        return import_library(self.name)

    @cached_property
    def _features(self) -> Features:
        return features_of(self._trt)

    @cached_property
    def _log(self) -> Any:
        return build_log(self._trt)

    def check_buildable(self, options: Mapping[str, Any]) -> None:
        """Raise BackendMissingError unless engines can be built here, if not run."""
        parsed = self._parse(options)
        self._check_builder()
        if not self._features.targets:
            self._device(parsed)

    def check_available(self, options: Mapping[str, Any]) -> None:
        """Raise BackendMissingError unless engines can be built and run here."""
        parsed = self._parse(options)
        self._check_builder()
        device = self._device(parsed)
        targets = self._features.targets
        if targets and device.compute_capability not in targets:
            raise BackendMissingError(
                f"{self._library} does not run on {device.name}, of compute capability "
                f"{device.compute_capability}; it runs on {', '.join(targets)}",
                mend="use backend tensorrt on this GPU",
            )

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise SettingsError for an unknown option or a value of the wrong kind."""
        parse_options(self.name, options)

    def environment(self, options: Mapping[str, Any]) -> Environment:
        """The GPU, its driver and TensorRT's version; without a GPU what is built for."""
        parsed = self._parse(options)
        software: dict[str, Any] = {
            "backend": self._library,
            "options": json.dumps(dict(options), sort_keys=True, default=str),
            "plugins": {Path(path).name: _digest_of(path) for path in parsed.plugins},
            "environment": steering_environment(),
        }
        noted = {"host": platform.node(), "load": load_average(), "python": platform.python_version()}
        device = self._find_device(parsed)
        if device is None:
            targets = ",".join(parsed.compute_capabilities or self._features.targets)
            return Environment(
                f"cuda:none:{targets}", self._tuner_version(), software, {"targets": targets}, noted
            )
        from pytest_gptune.engines.cuda import Clocks

        clocks = Clocks(device)
        try:
            reading, driver = clocks.read(), clocks.driver_version()
            highest, chosen = clocks.max_sm_hz(), clocks.application_sm_hz()
        finally:
            clocks.close()
        return Environment(
            device_class=f"cuda:{device.name}:{device.sm_count}",
            tuner_version=self._tuner_version(),
            software={**software, "driver": driver},
            device={
                "name": device.name,
                "compute_capability": device.compute_capability,
                "sm_count": device.sm_count,
                "memory_bytes": device.memory_bytes,
                "mig": device.is_mig,
                "power_limit_w": reading.power_limit_w,
                "max_sm_hz": highest,
                "application_sm_hz": chosen,
            },
            noted={**noted, "uuid": device.uuid, "temperature_c": reading.temperature_c},
        )

    def knob_space(self, model: ModelInfo | None, options: Mapping[str, Any]) -> str:
        """The tuner's build routes, where this version has them, and the builder's own knobs."""
        target = self._target(self._parse(options))
        builder = make_builder(self._trt, self._log)
        config = builder.create_builder_config()
        quantised = None if model is None else bool({"QuantizeLinear", "DequantizeLinear"} & model.operators)
        return knobs.knob_space(self._trt, config, self._features, typed=target.typed, quantised=quantised)

    def process_family(self, route: RoutePairs) -> str | None:
        """A process for each build where the plan is the engine's digest.

        A second plan of one process was seen to differ from the first in a byte.
        """
        return None if self._features.just_in_time else ""

    def process_spent(self, options: Mapping[str, Any]) -> str | None:
        """Why engines built from now on would be slower than earlier ones; None where none can run."""
        device = self._find_device(self._parse(options))
        return None if device is None else self._streams.spent(device)

    def engine_digest(self, request: BuildRequest) -> str | None:
        """None: what the compiler makes of a route is known once it is built."""
        return None

    def build(self, request: BuildRequest) -> TensorRtEngine:
        """Build the plan, and load it where there is a device for it.

        Raises:
            ModelError, SettingsError, RouteFailureError: as ``build_plan`` and ``LoadedEngine``.
        """
        options = self._parse(request.options)
        self._log.start()
        device = None if options.compute_capabilities else self._find_device(options)
        target = self._target(options, device, fresh=request.fresh)
        self._watch(request, device)
        plan = build_plan(target, request)
        return self._engine(target, request, plan, device)

    def load(self, request: BuildRequest, data: bytes) -> TensorRtEngine:
        """Load a plan that was kept, after everything recorded of it was compared with what is here.

        Raises:
            EngineFailedError: ``request.kept`` does not fit the bytes, the request or this machine, or
                TensorRT does not load it.
            BackendMissingError: there is no device.
        """
        options = self._parse(request.options)
        self._log.start()
        device = self._device(options)
        check_kept(request.kept, facts_of(data, request, self._library, device.compute_capability))
        start = time.perf_counter()
        target = self._target(options, device, fresh=True)
        self._watch(request, device)
        plan = Plan(data, time.perf_counter() - start, ())
        return self._engine(target, request, plan, device)

    @property
    def _library(self) -> str:
        return f"{self.name} {self._features.version}"

    def _engine(
        self, target: Target, request: BuildRequest, plan: Plan, device: Device | None
    ) -> TensorRtEngine:
        loaded, graph, text, warnings = None, False, "", list(plan.warnings)
        memory: dict[str, int] = {}
        if device is not None:
            loaded = LoadedEngine(target, plan.data, device, self._streams)
            try:
                text, memory = loaded.describe(), loaded.memory()
                graph = loaded.try_graph(loaded.zeros())
            except BaseException:
                with contextlib.suppress(RouteFailureError):  # what failed first is what is told
                    loaded.close()
                raise
            if not graph:
                warnings.append(f"no CUDA graph: {loaded.no_graph}")
        proves = self._features.just_in_time or not text
        built_for = target.options.compute_capabilities or self._features.targets
        info = EngineInfo(
            digest=digests.plan_digest(plan.data)
            if proves
            else digests.inspector_digest(text, request.model_sha256),
            latency_kind="device_queued",
            build_seconds=plan.build_seconds,
            engine_bytes=len(plan.data),
            graph=graph,
            graph_missing=loaded is not None and not graph,
            warnings=tuple(warnings),
            digest_proves=proves,
            layers=digests.layer_lines(text),
            device_memory_bytes=memory,
            facts=facts_of(
                plan.data,
                request,
                self._library,
                device.compute_capability if device is not None else ",".join(built_for),
            ),
        )
        return TensorRtEngine(info, plan.data, loaded)

    def _target(self, options: Options, device: Device | None = None, *, fresh: bool = True) -> Target:
        timings = None
        shares = options.timing_cache and not fresh and not self._features.just_in_time
        if shares and device is not None:
            gpu = f"{device.name} {device.compute_capability}"
            timings = TimingCacheFile.within(cache_folder() / "timing", self._library, gpu)
        warm = None if device is None else lambda: _warm(device, self._streams)
        return Target(self._trt, self._log, self._features, options, timings, warm)

    def _watch(self, request: BuildRequest, device: Device | None) -> None:
        """Engines that come later in this process may be slowed down by this one."""
        if device is not None and not request.fresh:
            self._streams.watch(device)

    def _tuner_version(self) -> str:
        """Of what owns the knobs: the tuner, where there is one."""
        if self._features.build_routes:
            builder = make_builder(self._trt, self._log)
            config = builder.create_builder_config()
            if config.all_build_routes:
                return str(json.loads(config.all_build_routes).get("tuner_version", self._features.version))
        return self._features.version

    def _parse(self, options: Mapping[str, Any]) -> Options:
        parsed = parse_options(self.name, options)
        unknown = [name for name in parsed.compute_capabilities if name not in self._features.targets]
        if unknown:
            targets = self._features.targets
            raise SettingsError(
                f"{self._library} does not build for compute capability {', '.join(unknown)}",
                where=WHERE,
                mend=f"use some of {', '.join(targets)}"
                if targets
                else "leave compute_capabilities out: this version builds for the GPU that is there",
            )
        if parsed.strongly_typed is False and not self._features.weak_types:
            raise SettingsError(
                f"{self._library} has strongly typed networks only",
                where=WHERE,
                mend="leave strongly_typed out",
            )
        return parsed

    @cached_property
    def _starts(self) -> str:
        """Why TensorRT does not start here, empty where it does: found out once, since it takes a while."""
        try:
            make_builder(self._trt, self._log)
        except RouteFailureError as error:
            return error.what
        return ""

    def _check_builder(self) -> None:
        if self._starts:
            raise BackendMissingError(self._starts, mend="run on a machine with an NVIDIA GPU and driver")

    def _device(self, options: Options) -> Device:
        if importlib.util.find_spec("cuda") is None:
            raise BackendMissingError(
                f"backend '{self.name}' needs cuda-python to run engines, which is not installed",
                mend=install_command(self.name),
            )
        from pytest_gptune.engines.cuda import Device

        return Device.find(options.device)

    def _find_device(self, options: Options) -> Device | None:
        """The device, None where there is none and engines can be built without."""
        if not self._features.targets:
            return self._device(options)
        if importlib.util.find_spec("cuda") is None:
            return None
        try:
            device = self._device(options)
        except BackendMissingError:
            return None
        return device if device.compute_capability in self._features.targets else None


class TensorRtRtxBackend(TensorRtBackend):
    """NVIDIA TensorRT for RTX, whose module has another name."""

    name: ClassVar[str] = "tensorrt_rtx"


def _warm(device: Device, streams: ProcessStreams) -> None:
    """Keep the device busy for a moment, so that its clocks are up when tactics are timed."""
    from pytest_gptune.engines.cuda import DeviceBuffer

    device.make_current()
    stream, buffer = streams.of(device), DeviceBuffer(_WARM_BYTES)
    try:
        deadline = time.perf_counter() + _WARM_S
        while time.perf_counter() < deadline:
            for _ in range(16):
                buffer.poison(stream)
            stream.synchronize()
    finally:
        buffer.close()


def _digest_of(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return "missing"  # said where it is loaded
