"""Builds ONNX Runtime sessions from routes."""

from __future__ import annotations

import difflib
import importlib.util
import json
import platform
import re
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_gptune.engines.base import (
    BackendMissingError,
    BuildRejectedError,
    BuildRequest,
    EngineInfo,
    Environment,
    ModelInfo,
    RoutePairs,
)
from pytest_gptune.engines.cuda import ProcessStreams, Stream
from pytest_gptune.engines.machine import cpu_model, load_average, steering_environment, usable_cores
from pytest_gptune.engines.onnxruntime import cuda_provider, identity, knobs, quantise
from pytest_gptune.engines.onnxruntime.build_errors import build_error
from pytest_gptune.engines.onnxruntime.cuda_engine import CudaSessionEngine
from pytest_gptune.engines.onnxruntime.graph_digest import graph_digest
from pytest_gptune.engines.onnxruntime.quantised_model import quantised_request
from pytest_gptune.engines.onnxruntime.session import SessionEngine
from pytest_gptune.errors import ModelError, SettingsError

_PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "azure": "AzureExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "cuda": knobs.CUDA,
    "dml": "DmlExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
}

_OPTIONS = {
    "provider": "execution provider that must run every node: cpu (default), or another by name",
    "allow_cpu_nodes": "True: nodes the provider leaves to the CPU are accepted",
    "device": "provider cuda: an index (default 0), or a UUID from GPU- or MIG- on",
    "l2_flush": "provider cuda: True empties the device's L2 cache before each sample",
    "transfers": "provider cuda: True times copying inputs to the device and outputs back as well",
    "log_severity": "0 (verbose) to 4 (fatal); default 3 (errors)",
    quantise.OPTION: "nodes, groups, or patterns of node names: search these knobs without an expression",
}

_ASSIGNMENT_KEY = "session.record_ep_graph_assignment_info"

# Protobuf's limit: what ONNX Runtime says where the optimised model does not fit into one message.
_TOO_LARGE = re.compile(r"2GiB|2GB|exceed|Protobuf serialization failed|too large", re.IGNORECASE)


class OnnxRuntimeBackend:
    """ONNX Runtime through its Python package."""

    name = "onnxruntime"

    def __init__(self) -> None:
        # Routes that differ in settings of the run alone share their optimised graph.
        self._graphs: dict[tuple[str, ...], str | None] = {}
        self._streams = ProcessStreams()

    def check_available(self, options: Mapping[str, Any]) -> None:
        """Raise BackendMissingError unless onnxruntime and the provider asked for are installed."""
        if importlib.util.find_spec("onnxruntime") is None:
            raise BackendMissingError(
                "backend 'onnxruntime' is not installed",
                mend='python -m pip install "pytest-gptune[cpu]" (or [cuda] for its CUDA provider)',
            )
        provider = _provider(options)
        import onnxruntime as ort

        available = ort.get_available_providers()
        if provider not in available:
            cuda = provider == _PROVIDERS["cuda"]
            raise BackendMissingError(
                f"ONNX Runtime {ort.__version__} has no {provider}; it has {', '.join(available)}",
                mend='python -m pip install "pytest-gptune[cuda]" in an environment without onnxruntime'
                if cuda
                else "install the build of ONNX Runtime that has it, or correct options={'provider': ...}",
            )
        if provider == knobs.CUDA:
            cuda_provider.device_of(options)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise SettingsError for an unknown option or a value of the wrong kind."""
        for key in options:
            if key not in _OPTIONS:
                near = difflib.get_close_matches(key, _OPTIONS, n=1)
                raise SettingsError(
                    f"backend 'onnxruntime' has no option '{key}'",
                    where="options={...} of the marker",
                    mend=f"write '{near[0]}'" if near else f"use one of: {', '.join(_OPTIONS)}",
                )
        cuda_provider.check_options(options, _provider(options))
        severity = options.get("log_severity", 3)
        if isinstance(severity, bool) or not isinstance(severity, int) or not 0 <= severity <= 4:
            raise SettingsError(
                f"option 'log_severity' is {severity!r}",
                where="options={...} of the marker",
                mend="use a number from 0 to 4",
            )
        allow = options.get("allow_cpu_nodes", False)
        if not isinstance(allow, bool):
            raise SettingsError(
                f"option 'allow_cpu_nodes' is {allow!r}",
                where="options={...} of the marker",
                mend="use True or False",
            )
        if quantise.OPTION in options:
            quantise.check_option(options[quantise.OPTION])

    def environment(self, options: Mapping[str, Any]) -> Environment:
        """The machine and ONNX Runtime's version and provider."""
        import onnxruntime as ort

        software = {
            "backend": f"onnxruntime {ort.__version__}",
            "provider": _provider(options),
            "options": json.dumps(dict(options), sort_keys=True, default=str),
            "environment": steering_environment(),
        }
        if software["provider"] == knobs.CUDA:
            return cuda_provider.environment(options, software, ort.__version__)
        cores, cpu = usable_cores(), cpu_model()
        return Environment(
            device_class=f"cpu:{cpu}:{cores}",
            tuner_version=ort.__version__,
            software=software,
            device={
                "cpu_model": cpu,
                "cores": cores,
                "machine": platform.machine(),
                "system": platform.system(),
            },
            noted={"host": platform.node(), "load": load_average(), "python": platform.python_version()},
        )

    def knob_space(self, model: Any, options: Mapping[str, Any]) -> str:
        """Knobs of the installed version on this machine."""
        import onnxruntime as ort

        library, provider = _library(), _provider(options)
        return knobs.knob_space(
            tuner_version=ort.__version__,
            cores=usable_cores(),
            machine=platform.machine(),
            attributes=[name for name in dir(ort.SessionOptions) if not name.startswith("_")],
            levels=list(ort.GraphOptimizationLevel.__members__),
            keys=knobs.known_keys(library),
            passes=knobs.known_passes(library),
            quantised=None
            if model is None
            else bool({"QuantizeLinear", "DequantizeLinear"} & model.operators),
            provider=provider,
            provider_options=cuda_provider.known_options(library) if provider == knobs.CUDA else (),
            of_model=_quantise_knobs(model, options),
        )

    def process_family(self, route: RoutePairs) -> str:
        """Flushing denormals is decided by the first session of a process, for all of it."""
        return "denormal_as_zero" if (knobs.DENORMAL, "1") in route else ""

    def process_spent(self, options: Mapping[str, Any]) -> str | None:
        """Why engines built from now on would be slower than earlier ones; None where none can do that."""
        if _provider(options) != knobs.CUDA:
            return None
        return self._streams.spent(cuda_provider.device_of(options))

    def get_ready(self, request: BuildRequest) -> None:
        """Load ONNX Runtime, the libraries of its provider for CUDA, and the device's context.

        Without a session, however small: an application's is the first one of its process.
        """
        import onnxruntime  # noqa: F401

        if _provider(request.options) == knobs.CUDA:
            cuda_provider.get_ready(request.options)
            self._streams.of(cuda_provider.device_of(request.options))

    def build(self, request: BuildRequest) -> SessionEngine | CudaSessionEngine:
        """Create the session; the build time is that of ``InferenceSession``."""
        request = quantised_request(request)
        digest = request.digest or self._engine_digest(request)
        options, effective = _session_options(request)
        return self._engine(
            request, request.model, options, effective, digest, lambda: self._shippable(request), None
        )

    def engine_digest(self, request: BuildRequest) -> str:
        """The digest of the engine of ``request``: of its optimised graph and the options that apply.

        Where ONNX Runtime cannot write the optimised model (beyond 2 GB), of the model and all options.
        """
        return self._engine_digest(quantised_request(request))

    def _engine_digest(self, request: BuildRequest) -> str:
        _, effective = _session_options(request)
        of_graph = identity.graph_settings(effective)
        key = (request.model_sha256, _provider(request.options), json.dumps(of_graph, sort_keys=True))
        if key not in self._graphs:
            data = self._optimised(request)
            self._graphs[key] = None if data is None else graph_digest(data)
        graph = self._graphs[key] or json.dumps(effective, sort_keys=True)
        return _digest(request, graph, effective)

    def load(self, request: BuildRequest, data: bytes) -> SessionEngine | CudaSessionEngine:
        """A session over an optimised model, which is not optimised again, with the options of the route."""
        import onnxruntime as ort

        request = quantised_request(request)
        options, effective = _session_options(request)
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            digest = _digest(request, graph_digest(data), effective)
            return self._engine(request, data, options, effective, digest, lambda: data, len(data))
        except ModelError as error:
            raise BuildRejectedError(f"the kept engine cannot be loaded: {error.what}") from error

    def _engine(
        self,
        request: BuildRequest,
        model: str | bytes,
        options: Any,
        effective: Mapping[str, str],
        digest: str,
        serialise: Callable[[], bytes | None],
        engine_bytes: int | None,
    ) -> SessionEngine | CudaSessionEngine:
        """The engine over a model by path or by its bytes; its build time is that of ``InferenceSession``."""
        stream: Stream | None = None
        given: dict[str, str] = {}
        if _provider(request.options) == knobs.CUDA:
            given = {**cuda_provider.prepare(request.options), **knobs.provider_options(effective)}
            device = cuda_provider.device_of(request.options)
            if not request.fresh:
                self._streams.watch(device)
            stream = self._streams.of(device)
            given["user_compute_stream"] = str(stream.handle)
        start = time.perf_counter()
        session = _make_session(request, model, options, given)
        info = EngineInfo(
            digest=digest,
            latency_kind="host_wall" if stream is None else "device_queued",
            build_seconds=time.perf_counter() - start,
            engine_bytes=engine_bytes,
            graph=given.get(cuda_provider.GRAPH) == "1",
        )
        if stream is None:
            return SessionEngine(session, info, serialise)
        return CudaSessionEngine(
            session,
            info,
            serialise,
            cuda_provider.device_of(request.options),
            stream,
            l2_flush=bool(request.options.get("l2_flush")),
            transfers=bool(request.options.get("transfers")),
        )

    def _shippable(self, request: BuildRequest) -> bytes | None:
        """The optimised model, complete in itself; None where there is no such form."""
        data = self._optimised(request)
        return data if data is not None and not identity.has_external_data(data) else None

    def _optimised(self, request: BuildRequest) -> bytes | None:
        """The optimised model, None where ONNX Runtime cannot write it."""
        options, _ = _session_options(request)
        # Repacked weights are not part of the graph, and cost most of the time.
        options.add_session_config_entry("session.disable_prepacking", "1")

        given: dict[str, str] = {}
        if _provider(request.options) == knobs.CUDA:
            given = cuda_provider.prepare(request.options)

        def make(path: str) -> object:
            options.optimized_model_filepath = path
            return _make_session(request, request.model, options, given)

        try:
            return identity.optimised_model(make) or None
        except BuildRejectedError as error:
            if _TOO_LARGE.search(error.what):
                return None
            raise


def _digest(request: BuildRequest, graph: str, effective: Mapping[str, str]) -> str:
    import onnxruntime as ort

    provider = _provider(request.options)
    # The written graph only names weights that lie in external files: the model's digest contains them.
    return identity.engine_digest([request.model_sha256, graph], ort.__version__, provider, effective)


def _make_session(request: BuildRequest, model: str | bytes, options: Any, given: Mapping[str, str]) -> Any:
    """The session over a model by its path or its bytes, on the provider that was asked for and no other.

    Args:
        request: what it is built from.
        model: as ``InferenceSession`` takes it.
        options: of the session.
        given: options of the provider.
    """
    import onnxruntime as ort

    provider = _provider(request.options)
    cpu = _PROVIDERS["cpu"]
    if provider == knobs.CUDA:
        # What the provider logs on a session's way goes to the process's logger.
        ort.set_default_logger_severity(request.options.get("log_severity", 3))
    providers = [cpu] if provider == cpu else [(provider, dict(given)), cpu]
    try:
        with warnings.catch_warnings():
            # A provider that is missing is only warned of; it is checked below.
            warnings.simplefilter("ignore")
            # With the fallback on, a session that its provider refuses is made again without its options.
            session = ort.InferenceSession(model, options, providers=providers, enable_fallback=False)
    except Exception as error:  # ONNX Runtime's errors derive from Exception alone
        raise build_error(error, request, ort.__version__) from error
    session.disable_fallback()
    _check_placement(session, provider, bool(request.options.get("allow_cpu_nodes")))
    return session


def _quantise_knobs(model: ModelInfo | None, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Knobs of the model's nodes: searched where the option asks for them, else where routes name them."""
    if model is None or not quantise.OPERATORS & model.operators:
        return []
    try:
        import onnx
    except ImportError:  # another interpreter, to which the routes of this one are given
        return []
    nodes = quantise.quantisable_nodes(onnx.load(model.path, load_external_data=False))
    wanted = options.get(quantise.OPTION)
    value = quantise.FP16 if _provider(options) == knobs.CUDA else quantise.INT8
    groups = quantise.node_groups(nodes, wanted)
    return quantise.knob_options(groups, on_request=wanted is None, value=value)


def _library() -> Path:
    spec = importlib.util.find_spec("onnxruntime.capi.onnxruntime_pybind11_state")
    if spec is None or spec.origin is None:
        raise BackendMissingError(
            "ONNX Runtime's library is not where its package says",
            mend="python -m pip install --force-reinstall onnxruntime",
        )
    return Path(spec.origin)


def _provider(options: Mapping[str, Any]) -> str:
    given = options.get("provider", "cpu")
    if isinstance(given, str):
        if given.lower() in _PROVIDERS:
            return _PROVIDERS[given.lower()]
        if given.endswith("ExecutionProvider"):
            return given
    raise SettingsError(
        f"option 'provider' is {given!r}",
        where="options={...} of the marker",
        mend=f"use one of {', '.join(_PROVIDERS)}, or a full name as CPUExecutionProvider",
    )


def _session_options(request: BuildRequest) -> tuple[Any, dict[str, str]]:
    """The session's options, and what was set as plain data.

    Threads are always set to a number: 0 would let ONNX Runtime take the host's cores, not the quota's.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = request.options.get("log_severity", 3)
    if hasattr(ort.InferenceSession, "get_provider_graph_assignment_info"):
        options.add_session_config_entry(_ASSIGNMENT_KEY, "1")
    cores = usable_cores()
    effective = {"intra_op_num_threads": str(cores), "inter_op_num_threads": str(cores)}
    disabled: list[str] = []
    for name, value in request.route:
        short = name.removeprefix(knobs.PASS_PREFIX)
        if short == name:
            effective[name.removeprefix(knobs.PREFIX)] = value
        elif not knobs.is_pass(short) or value not in ("on", "off"):
            raise _no_such_knob(name, value)
        elif value == "off":
            disabled.append(short)
    for name in ("intra_op_num_threads", "inter_op_num_threads"):
        _check_threads(name, effective[name], cores)
    options.intra_op_num_threads = int(effective["intra_op_num_threads"])
    options.inter_op_num_threads = int(effective["inter_op_num_threads"])
    for name, value in effective.items():
        if not name.endswith("_op_num_threads"):
            _set_knob(options, name, value, _provider(request.options))
    if disabled:
        effective["disabled_optimizers"] = ",".join(sorted(disabled))
        options.add_session_config_entry("optimization.disable_specified_optimizers", ";".join(disabled))
    return options, effective


def _check_threads(name: str, value: str, cores: int) -> None:
    # ONNX Runtime would start any number of threads, and takes 0 for the host's cores.
    if not re.fullmatch("[1-9][0-9]{0,8}", value):
        raise _no_such_knob(knobs.PREFIX + name, value)
    if int(value) > cores:
        raise BuildRejectedError(
            f"{knobs.PREFIX}{name}={value} is beyond the {cores} cores that this process may use"
        )


def _no_such_knob(name: str, value: str) -> BuildRejectedError:
    return BuildRejectedError(f"ONNX Runtime has no knob {name} with value '{value}'")


def _set_knob(options: Any, name: str, value: str, provider: str) -> None:
    import onnxruntime as ort

    knob = knobs.knob_named(knobs.PREFIX + name)
    if knob is None or value not in knob.values or knob.provider not in ("", provider):
        raise _no_such_knob(knobs.PREFIX + name, value)
    if knob.target == "provider":
        return
    if knob.target == "config":
        if value != "full":
            options.add_session_config_entry(name, value)
        return
    enums = {
        "graph_optimization_level": lambda: getattr(ort.GraphOptimizationLevel, knobs.level_member(value)),
        "execution_mode": lambda: getattr(ort.ExecutionMode, f"ORT_{value.upper()}"),
        "execution_order": lambda: getattr(ort.ExecutionOrder, value.upper()),
    }
    try:
        setattr(options, name, enums[name]() if name in enums else value == "on")
    except AttributeError:  # a value, or the whole attribute, that another version has
        raise _no_such_knob(knobs.PREFIX + name, value) from None


def _check_placement(session: Any, provider: str, allow_cpu_nodes: bool) -> None:
    """Find the fallback that ONNX Runtime is silent about: of the session, and of single nodes."""
    got = session.get_providers()
    if provider not in got:
        raise BuildRejectedError(
            f"the session fell back from {provider} to {', '.join(got)}",
            mend="mend the provider's installation (its log says what is missing); a fallback is never timed",
        )
    if provider == _PROVIDERS["cpu"]:
        return
    try:
        assignment = session.get_provider_graph_assignment_info()
    except (AttributeError, RuntimeError):
        return  # before ONNX Runtime 1.24 placement cannot be read
    if provider == knobs.CUDA and assignment and provider not in {part.ep_name for part in assignment}:
        raise BuildRejectedError(
            f"no node of the model runs on {provider}", mend="use provider cpu for this model"
        )
    if allow_cpu_nodes:
        return
    elsewhere = [
        f"{node.op_type} '{node.name}'"
        for subgraph in assignment
        if subgraph.ep_name != provider
        for node in subgraph.get_nodes()
    ]
    if elsewhere:
        shown = ", ".join(elsewhere[:5]) + (f" and {len(elsewhere) - 5} more" if len(elsewhere) > 5 else "")
        raise BuildRejectedError(
            f"{len(elsewhere)} nodes fell back from {provider} to another provider: {shown}",
            mend="use a provider that has these operators, or accept it: options={'allow_cpu_nodes': True}",
        )
