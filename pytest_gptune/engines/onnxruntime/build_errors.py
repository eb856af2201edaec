"""What ONNX Runtime says when it refuses a model or a route, as errors of ours."""

from __future__ import annotations

import re

from pytest_gptune.engines.base import BuildRejectedError, BuildRequest
from pytest_gptune.errors import ModelError

# Messages about the model itself, whatever the route, and what to tell the user instead.
_OPSET = re.compile(
    r"Opset (\d+) is under development.*official support for domain (\S+) is till opset (\d+)", re.S
)
_IR = re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)")
_DATA_FILE = re.compile(r"External initializer: (\S+) offset: .*out of bounds or can not be read in full")
_UNKNOWN_OPERATOR = re.compile(r"Fatal error: (\S+?)\(-?\d+\) is not a registered function/op")


def build_error(error: Exception, request: BuildRequest, version: str) -> ModelError | BuildRejectedError:
    """The error of a session that could not be made: the model's, whatever the route, or the route's.

    Args:
        error: what ONNX Runtime raised.
        request: what was to be built.
        version: of ONNX Runtime.
    """
    kind, text = type(error).__name__, " ".join(str(error).split())
    where = request.model
    if match := _OPSET.search(text):
        opset, domain, most = match.groups()
        return ModelError(
            f"the model needs opset {opset} of {domain}; ONNX Runtime {version} has up to {most}",
            where=where,
            mend=f"export with opset {most} or older, or upgrade onnxruntime",
        )
    if match := _IR.search(text):
        return ModelError(
            f"the model has IR version {match[1]}; ONNX Runtime {version} reads up to {match[2]}",
            where=where,
            mend="save it with an older IR version (ir_version= of make_model), or upgrade onnxruntime",
        )
    if match := _UNKNOWN_OPERATOR.search(text):
        return ModelError(
            f"the model has operator {match[1]}, which ONNX Runtime {version} does not know",
            where=where,
            mend="export without custom operators, or use the backend that has them",
        )
    if match := _DATA_FILE.search(text):
        return ModelError(
            f"the external data file of tensor {match[1]} is shorter than the model says",
            where=where,
            mend="copy the data file again: it is truncated, or another model's",
        )
    if kind in ("InvalidProtobuf", "NoSuchFile", "InvalidGraph") or "Missing opset in the model" in text:
        return ModelError(
            f"ONNX Runtime {version} cannot load the model: {text}", where=where, mend="export it again"
        )
    return BuildRejectedError(f"ONNX Runtime {version} refuses to build the route ({kind}): {text}")
