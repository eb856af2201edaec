"""Networks from ONNX files, and what the parser says of files it cannot take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_gptune.engines.base import EngineFailedError
from pytest_gptune.engines.onnx_model import external_data_files, parse_model
from pytest_gptune.engines.tensorrt.build_log import given
from pytest_gptune.engines.tensorrt.library import Features
from pytest_gptune.engines.tensorrt.options import Options
from pytest_gptune.errors import ModelError, SettingsError

_SHOWN = 5
_PLUGINS = "options={'plugins': [...]} of the marker"


def load_plugins(trt: Any, registry: Any, log: Any, paths: tuple[str, ...]) -> None:
    """Register TensorRT's own plugins and load the libraries of a user's.

    Raises:
        SettingsError: a library is missing or is not one of plugins.
        EngineFailedError: TensorRT does not register its own.
    """
    if not trt.init_libnvinfer_plugins(log, ""):
        raise EngineFailedError("TensorRT's own plugins cannot be registered", log=tuple(log.tail()))
    for path in paths:
        if not Path(path).is_file():
            raise SettingsError(
                f"plugin library '{path}' does not exist",
                where=_PLUGINS,
                mend=f"correct the path; a relative one is looked up from {Path.cwd()}",
            )
        said = len(log.errors())
        try:
            handle = registry.load_library(path)
        except Exception as error:  # the library's own code runs while it is loaded
            raise _not_loaded(path, " ".join(str(error).split()) or type(error).__name__) from error
        if handle is None:
            # What comes after the first is what that led to, and without a GPU that there is none.
            raise _not_loaded(path, next(iter(log.errors()[said:]), "TensorRT does not say why"))


def _not_loaded(path: str, reason: str) -> SettingsError:
    return SettingsError(
        f"plugin library '{path}' cannot be loaded: {reason}",
        where=_PLUGINS,
        mend="give a shared library of plugins that is built for this version of TensorRT; "
        "it exports getCreators or getPluginCreators",
    )


def parse_network(trt: Any, builder: Any, log: Any, path: str, features: Features, options: Options) -> Any:
    """The network of the ONNX file at ``path``; its external data is read from beside it.

    Returns:
        The network, and the parser that owns its weights and has to outlive the build.

    Raises:
        ModelError: the file cannot be taken; the node, its operator and domain and the reason are named.
    """
    model = read_model(path)
    _check_opset(model, path)
    typed = not features.weak_types if options.strongly_typed is None else options.strongly_typed
    flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED) if typed else 0
    network = given(builder.create_network(flags), "network", log)
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(path):
        faults = [parser.get_error(index) for index in range(parser.num_errors)]
        raise _model_error(faults, model, path, features.version, tuple(log.tail()))
    return network, parser


def read_model(path: str) -> Any:
    """The model as ``onnx.ModelProto``, its files looked for.

    Raises:
        ModelError: it is not a model, or external data is missing.
    """
    model = parse_model(Path(path).read_bytes(), path)
    for name in external_data_files(model, path):
        if not (Path(path).parent / name).is_file():
            raise ModelError(
                f"external data file '{name}' of the model is missing",
                where=path,
                mend=f"put {name} beside {Path(path).name} (with Git LFS: git lfs pull)",
            )
    return model


def _check_opset(model: Any, path: str) -> None:
    """Refuse operators that nobody here knows the meaning of: the parser takes any number for an opset."""
    import onnx

    latest = onnx.defs.onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version > latest:
            raise ModelError(
                f"the model needs opset {opset.version} of ai.onnx; "
                f"onnx {onnx.__version__} has up to {latest}",
                where=path,
                mend=f"export with opset {latest} or older, or upgrade onnx and TensorRT",
            )


def _model_error(faults: list[Any], model: Any, path: str, version: str, log: tuple[str, ...]) -> ModelError:
    texts = [_fault_text(parser_error, model) for parser_error in faults] or ["no reason is given"]
    more = f"; and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    unknown = any("Plugin not found" in text for text in texts)
    return ModelError(
        f"TensorRT {version} cannot parse the model: {'; '.join(texts[:_SHOWN])}{more}",
        where=path,
        mend="load the library that has the operator: options={'plugins': ['libmine.so']}, "
        "or export without custom operators"
        if unknown
        else "export the model again, with operators and types that TensorRT has",
        log=log,
    )


def _fault_text(parser_error: Any, model: Any) -> str:
    node = _find_node(model, parser_error.node(), parser_error.node_name(), parser_error.node_operator())
    reason = " ".join(parser_error.desc().split())
    code = getattr(parser_error.code(), "name", str(parser_error.code()))
    if node is None:
        return f"{code}: {reason}"
    return f"node {node['place']} ({node['operator']} of {node['domain']}): {code}: {reason}"


def _find_node(model: Any, index: int, name: str, operator: str) -> Mapping[str, str] | None:
    """Name or number, operator and domain of the node that the parser points at."""
    nodes = model.graph.node
    near = nodes[index] if 0 <= index < len(nodes) else None
    if near is None or (operator and near.op_type != operator):
        near = next((node for node in nodes if name and node.name == name), None)
    if near is None:
        return {"place": name or str(index), "operator": operator, "domain": "?"} if operator else None
    return {
        "place": f"'{near.name}'" if near.name else str(index),
        "operator": near.op_type,
        "domain": near.domain or "ai.onnx",
    }
