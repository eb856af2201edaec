"""A double of TensorRT 11.1: names of the recorded interface, numbers of ONNX Runtime, a clock of its own.

It has a tuner with the knobs of ``knobs-11.1-sample.json``. What a route does:

``-copy_ppg=off``: a fifth faster.
``-slice_fusion=off``: half the time, and outputs that are off by 0.01.
``-reshape_ppg=off``: the builder aborts.
``-transpose_ppg=off``: the builder hangs.
``-match_ragged_mha=off``: the route is ignored, and reads back empty.
``-conv_use_long_w=off``: the route is altered: it reads back ``on``.
``-kgen:codegen:cuda_tile``: 0 is a tenth slower, 2 is the same engine as 1, 3 is not enqueued.
``-builder:max_aux_streams=0``: the builder builds no engine.
``-builder:tiling_optimization_level=full``: there is memory for one execution context and no more.
``-builder:optimization_level=5``: the engine cannot be captured in a graph.
``-builder:optimization_level=0``: the captured graph computes something else.

``TRT_DOUBLE_LOG`` names a file that each build adds a line of JSON to.
"""

from __future__ import annotations

import enum
import json
import os
import time
from pathlib import Path

import onnx
from cuda.bindings import runtime as _cuda

from . import _numbers

__version__ = "11.1.0.106"

_KNOBS = Path(__file__).parents[3] / "data" / "tensorrt" / "knobs-11.1-sample.json"


def _enumeration(name, members):
    return enum.IntEnum(name, {member: number for number, member in enumerate(members.split())})


DataType = _enumeration("DataType", "FLOAT HALF INT8 INT32 BOOL UINT8 FP8 BF16 INT64 INT4 FP4 E8M0")
BuilderFlag = _enumeration("BuilderFlag", "TF32 SPARSE_WEIGHTS STRICT_NANS DISTRIBUTIVE_INDEPENDENCE")
NetworkDefinitionCreationFlag = _enumeration("NetworkDefinitionCreationFlag", "STRONGLY_TYPED")
TacticSource = _enumeration("TacticSource", "EDGE_MASK_CONVOLUTIONS JIT_CONVOLUTIONS")
TilingOptimizationLevel = _enumeration("TilingOptimizationLevel", "NONE FAST MODERATE FULL")
ProfilingVerbosity = _enumeration("ProfilingVerbosity", "LAYER_NAMES_ONLY NONE DETAILED")
MemoryPoolType = _enumeration("MemoryPoolType", "WORKSPACE")
TensorIOMode = _enumeration("TensorIOMode", "NONE INPUT OUTPUT")
TensorLocation = _enumeration("TensorLocation", "DEVICE HOST")
LayerInformationFormat = _enumeration("LayerInformationFormat", "ONELINE JSON")
EngineStat = _enumeration("EngineStat", "TOTAL_WEIGHTS_SIZE STRIPPED_WEIGHTS_SIZE")
ErrorCode = _enumeration("ErrorCode", "SUCCESS INVALID_NODE")


class ILogger:
    Severity = _enumeration("Severity", "INTERNAL_ERROR ERROR WARNING INFO VERBOSE")


class IProgressMonitor:
    pass


class IOutputAllocator:
    pass


class IProfiler:
    pass


class IHostMemory:
    def __init__(self, data):
        self._data = data

    def __bytes__(self):
        return self._data


class IPluginRegistry:
    def __init__(self, owner):
        self._owner = owner

    def load_library(self, plugin_path):
        if not Path(plugin_path).read_bytes().startswith(b"double"):
            return None
        _log_build({"plugin": Path(plugin_path).name, "of": self._owner})
        return object()


class ITensor:
    name, shape, is_shape_tensor = "", (), False

    def __init__(self, name, shape, is_shape_tensor):
        self.name, self.shape, self.is_shape_tensor = name, shape, is_shape_tensor


class INetworkDefinition:
    def __init__(self):
        self._inputs = []
        self._path = ""

    @property
    def num_inputs(self):
        return len(self._inputs)

    def get_input(self, index):
        return self._inputs[index]


class ParserError:
    def __init__(self, index, node):
        self._index, self._node = index, node

    def code(self):
        return ErrorCode.INVALID_NODE

    def desc(self):
        return "the operator is unknown"

    def node(self):
        return self._index

    def node_name(self):
        return self._node.name

    def node_operator(self):
        return self._node.op_type


class OnnxParser:
    def __init__(self, network, logger):
        self._network, self._errors = network, []

    @property
    def num_errors(self):
        return len(self._errors)

    def get_error(self, index):
        return self._errors[index]

    def parse_from_file(self, model):
        graph = onnx.load(model).graph
        self._errors = [ParserError(n, node) for n, node in enumerate(graph.node) if node.domain]
        weights = {tensor.name for tensor in graph.initializer}
        self._network._path = model
        self._network._inputs = [
            ITensor(value.name, _numbers.declared_shape(value), value.name in _numbers.shape_inputs(graph))
            for value in graph.input
            if value.name not in weights
        ]
        return not self._errors


class IOptimizationProfile:
    def __init__(self):
        self._shapes = {}

    def set_shape(self, input, min, opt, max):
        self._shapes[input] = [list(min), list(opt), list(max)]

    def set_shape_input(self, input, min, opt, max):
        self._shapes[input] = [list(min), list(opt), list(max)]


class ITimingCache:
    def __init__(self, routes):
        self._routes = routes

    def serialize(self):
        return IHostMemory(json.dumps(self._routes).encode())


class IBuilderConfig:
    progress_monitor = None
    profiling_verbosity = ProfilingVerbosity.LAYER_NAMES_ONLY
    tiling_optimization_level = TilingOptimizationLevel.NONE
    max_aux_streams = -1
    avg_timing_iterations = 1
    max_num_tactics = -1

    def __init__(self):
        self._level = 3
        self._route = ""
        self._flags = {BuilderFlag.TF32}
        self._sources = 3
        self._profile = None
        self._timing_cache = None

    @property
    def all_build_routes(self):
        return _KNOBS.read_text()

    @property
    def build_route(self):
        return self._route

    @build_route.setter
    def build_route(self, text):
        tokens = dict(token.split("=", 1) for token in text.split())
        if tokens.get("-match_ragged_mha") == "off":
            return
        if tokens.get("-conv_use_long_w") == "off":
            tokens["-conv_use_long_w"] = "on"
        self._route = " ".join(f"{knob}={value}" for knob, value in tokens.items())

    @property
    def builder_optimization_level(self):
        return self._level

    @builder_optimization_level.setter
    def builder_optimization_level(self, level):
        self._level = min(max(level, 0), 5)

    def get_flag(self, flag):
        return flag in self._flags

    def set_flag(self, flag):
        self._flags.add(flag)

    def clear_flag(self, flag):
        self._flags.discard(flag)

    def get_tactic_sources(self):
        return self._sources

    def set_tactic_sources(self, tactic_sources):
        self._sources = tactic_sources
        return True

    def set_memory_pool_limit(self, pool, pool_size):
        pass

    def add_optimization_profile(self, profile):
        self._profile = profile._shapes
        return 0

    def create_timing_cache(self, serialized_timing_cache):
        return ITimingCache(json.loads(serialized_timing_cache) if serialized_timing_cache else [])

    def set_timing_cache(self, cache, ignore_mismatch):
        self._timing_cache = cache
        return True

    def get_timing_cache(self):
        return self._timing_cache


class Builder:
    def __init__(self, logger):
        self._logger = logger

    def get_plugin_registry(self):
        return IPluginRegistry("builder")

    def create_builder_config(self):
        return IBuilderConfig()

    def create_network(self, flags):
        return INetworkDefinition()

    def create_optimization_profile(self):
        return IOptimizationProfile()

    def build_serialized_network(self, network, config):
        route = dict(token.split("=", 1) for token in config._route.split())
        cache = config._timing_cache
        _log_build({"route": config._route, "cached": None if cache is None else list(cache._routes)})
        config.progress_monitor.phase_start("Timing tactics", None, 2)
        if route.get("-transpose_ppg") == "off":
            time.sleep(600)
        if route.get("-reshape_ppg") == "off":
            self._logger.log(ILogger.Severity.INTERNAL_ERROR, "Assertion failed: reshape")
            os.abort()
        config.progress_monitor.step_complete("Timing tactics", 0)
        config.progress_monitor.phase_finish("Timing tactics")
        if config.max_aux_streams == 0:
            self._logger.log(ILogger.Severity.ERROR, "no implementation without auxiliary streams")
            return None
        if cache is not None:
            cache._routes.append(config._route)
        plan = {
            "model": network._path,
            "route": route,
            "level": config.builder_optimization_level,
            "contexts": 1 if config.tiling_optimization_level == TilingOptimizationLevel.FULL else 9,
            "profile": config._profile or {},
            # No two builds of TensorRT give the same bytes.
            "built": time.time_ns(),
        }
        return IHostMemory(json.dumps(plan).encode())


class EngineInspector:
    def __init__(self, plan):
        self._plan = plan

    def get_engine_information(self, format):
        route = {**self._plan["route"]}
        if route.get("-kgen:codegen:cuda_tile") == "2":
            del route["-kgen:codegen:cuda_tile"]
        nodes = onnx.load(self._plan["model"]).graph.node
        tactic = f"double {json.dumps(route, sort_keys=True)} {self._plan['level']}"
        layers = [
            {
                "Name": node.output[0],
                "LayerType": node.op_type,
                "TacticName": tactic,
                "Outputs": [{"Name": node.output[0], "Format/Datatype": "Float"}],
            }
            for node in nodes
        ]
        return json.dumps({"Layers": layers, "Address": hex(0x7F0000000000 + self._plan["built"] % 10**9)})


class ICudaEngine:
    device_memory_size_v2 = 1 << 20

    def __init__(self, plan):
        self._plan, self._contexts = plan, 0
        self._model = _numbers.Model(plan["model"])
        # An odd width wants more.
        if any(dim == 65 for shape in self._model.shapes.values() for dim in shape):
            self.device_memory_size_v2 = 64 << 20
        self.num_aux_streams = 1
        self.num_io_tensors = len(self._model.tensors)

    def get_tensor_name(self, index):
        return list(self._model.tensors)[index]

    def get_tensor_mode(self, name):
        return TensorIOMode.INPUT if name in self._model.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name):
        return DataType.__members__[self._model.tensors[name]]

    def get_tensor_location(self, name):
        return TensorLocation.HOST if name in self._model.on_host else TensorLocation.DEVICE

    def get_tensor_shape(self, name):
        return self._model.shapes[name]

    def get_tensor_profile_shape(self, name, profile_index):
        return self._plan["profile"][name]

    def get_tensor_profile_values(self, name, profile_index):
        # The real one has the names of its arguments the wrong way round.
        assert name == 0
        return self._plan["profile"][profile_index]

    def create_engine_inspector(self):
        return EngineInspector(self._plan)

    def get_engine_stat(self, stat):
        assert stat is EngineStat.TOTAL_WEIGHTS_SIZE
        return self._model.weights_bytes

    def create_execution_context(self):
        self._contexts += 1
        return IExecutionContext(self) if self._contexts <= self._plan["contexts"] else None


class IExecutionContext:
    def __init__(self, engine):
        self.nvtx_verbosity = ProfilingVerbosity.LAYER_NAMES_ONLY
        self.profiler = None
        self._plan, self._model = engine._plan, engine._model
        self._shapes, self._addresses, self._allocators = {}, {}, {}
        self._output_shapes = {}
        self._runs, self._done = 0, True

    def set_aux_streams(self, aux_streams):
        assert len(aux_streams) == 1

    def set_input_shape(self, name, shape):
        profile = None if name in self._model.on_host else self._plan["profile"].get(name)
        dims = self._model.shapes[name]
        ranges = zip(profile[0], profile[2], strict=True) if profile else ((dim, dim) for dim in dims)
        if len(shape) != len(dims) or not all(
            least <= dim <= most for dim, (least, most) in zip(shape, ranges, strict=True)
        ):
            return False
        self._shapes[name] = tuple(shape)
        return True

    def infer_shapes(self):
        missing = [name for name in self._model.inputs if name not in self._shapes]
        if not missing:
            self._output_shapes = self._model.output_shapes(self._shapes, self._addresses)
        return missing

    def get_tensor_shape(self, name):
        return self._output_shapes[name]

    def set_tensor_address(self, name, memory):
        self._addresses[name] = memory
        return True

    def set_output_allocator(self, name, output_allocator):
        self._allocators[name] = output_allocator
        return True

    def execute_async_v3(self, stream_handle):
        route, level = self._plan["route"], self._plan["level"]
        if route.get("-kgen:codegen:cuda_tile") == "3":
            return False
        captured = stream_handle in _cuda._device.captures
        if captured and level == 5:
            return False
        offset = 0.01 if route.get("-slice_fusion") == "off" else 0.0
        if captured and level == 0:
            offset = 1.0

        # A graph keeps what was bound when it was captured.
        shapes, addresses = dict(self._shapes), dict(self._addresses)
        values = self._model.values_on_host(shapes, addresses)

        def work():
            self._runs += 1
            self._done = self._model.run(shapes, addresses, self._allocators, values, offset)

        # Samples of one engine differ by up to 0.2 %, and a profiler takes as long again.
        seconds = self._seconds() * (1 + 0.0005 * (self._runs % 5)) * (2 if self.profiler else 1)
        _cuda._device.enqueue(stream_handle, work, seconds)
        if self.profiler is not None:
            # The last layer takes as long as all before it.
            layers = [node.output[0] for node in onnx.load(self._plan["model"]).graph.node]
            for number, layer in enumerate(layers):
                last = number == len(layers) - 1
                share = 0.5 if last and number else 0.5 / max(len(layers) - 1, 1)
                self.profiler.report_layer_time(layer, seconds * 1e3 * share)
        return self._done

    def _seconds(self):
        route = self._plan["route"]
        seconds = 100e-6
        seconds *= 0.8 if route.get("-copy_ppg") == "off" else 1.0
        seconds *= 0.5 if route.get("-slice_fusion") == "off" else 1.0
        seconds *= 1.1 if route.get("-kgen:codegen:cuda_tile") == "0" else 1.0
        # Two builds of one route are two engines.
        return seconds * (1 + 0.002 * (self._plan["built"] % 7 - 3) / 3)


class Runtime:
    def __init__(self, logger):
        self._logger = logger

    def get_plugin_registry(self):
        return IPluginRegistry("runtime")

    def deserialize_cuda_engine(self, serialized_engine):
        data = serialized_engine
        try:
            return ICudaEngine(json.loads(data))
        except ValueError:
            self._logger.log(ILogger.Severity.ERROR, "the plan is damaged")
            return None


def init_libnvinfer_plugins(logger, namespace):
    return True


def _log_build(row):
    if path := os.environ.get("TRT_DOUBLE_LOG"):
        with Path(path).open("a") as stream:
            stream.write(json.dumps(row) + "\n")
