"""NVIDIA TensorRT and TensorRT for RTX: one implementation for both of their modules."""

from pytest_gptune.engines.tensorrt.backend import TensorRtBackend, TensorRtRtxBackend

__all__ = ["TensorRtBackend", "TensorRtRtxBackend"]
