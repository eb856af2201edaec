"""Everything of TensorRT that the backend touches, read off its source.

The backend names what it holds of TensorRT by one word for each class, ``config`` for an ``IBuilderConfig``;
what follows the dot after such a word is touched. That every word is in the table is checked too, so that
nothing escapes by its name.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest_gptune.engines.tensorrt

FOLDER = Path(pytest_gptune.engines.tensorrt.__file__).parent

CLASS_OF = {
    "builder": "Builder",
    "config": "IBuilderConfig",
    "context": "IExecutionContext",
    "cuda_engine": "ICudaEngine",
    "inspector": "EngineInspector",
    "network": "INetworkDefinition",
    "network_input": "ITensor",
    "parser": "OnnxParser",
    "parser_error": "ParserError",
    "profile": "IOptimizationProfile",
    "registry": "IPluginRegistry",
    "runtime": "Runtime",
    "timing_cache": "ITimingCache",
}
MODULE = "trt"

# Of the module itself: the recorded interfaces list classes alone.
FUNCTIONS = {"__version__", "init_libnvinfer_plugins"}

# Words for what is not one of TensorRT's objects although its type is not written down.
PLAIN = {
    "created": "anything, which is asked only whether it is None",
    "log": "our own subclass of ILogger",
    "faults": "a list of ParserError, each taken out as parser_error",
    "model": "an ONNX model",
    "document": "JSON",
    "layer": "JSON",
    "allocator": "our own subclass of IOutputAllocator",
    "value": "an option",
    "shape": "a Dims, which is a sequence",
    "severity": "an enumerator, of which the name is taken",
    "opset": "of an ONNX model",
}


def word_of(node: ast.expr) -> str:
    """The last word of what an attribute is taken of: ``config`` of ``self._config.flags``."""
    if isinstance(node, ast.Name):
        return node.id.lstrip("_")
    if isinstance(node, ast.Attribute):
        return node.attr.lstrip("_")
    return ""


def touched() -> set[str]:
    """``IBuilderConfig.build_route`` and the like, and enumerators and classes of the module."""
    found: set[str] = set()
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute):
                found |= _touched_by(node)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found |= _asked_by(node)
    return found


def _touched_by(node: ast.Attribute) -> set[str]:
    word = word_of(node.value)
    if node.attr == "__init__":
        return set()
    if word == MODULE:
        return set() if node.attr in FUNCTIONS else {node.attr}
    if word in CLASS_OF:
        return {f"{CLASS_OF[word]}.{node.attr}"}
    if isinstance(node.value, ast.Attribute) and word_of(node.value.value) == MODULE:
        return set() if node.attr == "__members__" else {f"{node.value.attr}.{node.attr}"}
    return set()


def _asked_by(node: ast.Call) -> set[str]:
    """What ``hasattr(trt.Class, "name")`` and ``getattr(trt, "name", None)`` ask for."""
    if node.func.id not in ("hasattr", "getattr") or len(node.args) < 2:  # type: ignore[attr-defined]
        return set()
    owner, name = node.args[0], node.args[1]
    if not isinstance(name, ast.Constant):
        return set()
    if word_of(owner) == MODULE:
        return {str(name.value)}
    if isinstance(owner, ast.Attribute) and word_of(owner.value) == MODULE:
        return {f"{owner.attr}.{name.value}"}
    if (word := word_of(owner)) in CLASS_OF:
        return {f"{CLASS_OF[word]}.{name.value}"}
    return set()


def untyped_words() -> set[str]:
    """Names of arguments whose type is ``Any``: what may be an object of TensorRT."""
    found: set[str] = set()
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                found |= {
                    argument.arg
                    for argument in arguments
                    if isinstance(argument.annotation, ast.Name) and argument.annotation.id == "Any"
                }
    return found
