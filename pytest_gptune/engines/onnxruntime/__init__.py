"""ONNX Runtime, the embedded default: everything works on a CPU."""

from pytest_gptune.engines.onnxruntime.backend import OnnxRuntimeBackend

__all__ = ["OnnxRuntimeBackend"]
