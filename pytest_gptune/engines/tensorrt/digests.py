"""What identifies an engine, and what it is made of.

Of TensorRT RTX the plan itself: it holds no measurement, and the first build of a fresh process gave the
same bytes again. Of TensorRT what its inspector tells: plans of one route differ, since the builder measures.
Equal layers and tactics are necessary for two engines to be the same, and not enough.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

# An address of this process, as it is printed for what has no name.
_ADDRESS = re.compile(r"0x7[0-9a-f]{11}\b")


def plan_digest(data: bytes) -> str:
    """SHA-256 of a plan, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def inspector_digest(text: str, model_sha256: str) -> str:
    """SHA-256 of an engine as its inspector describes it, and of the model its weights are of."""
    return hashlib.sha256(f"{model_sha256}\n{normalised(text)}".encode()).hexdigest()


def normalised(text: str) -> str:
    """The inspector's JSON with sorted keys and addresses numbered; other text with addresses numbered."""
    try:
        text = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    except ValueError:
        text = "\n".join(line.rstrip() for line in text.splitlines())
    seen: dict[str, str] = {}
    return _ADDRESS.sub(lambda match: seen.setdefault(match[0], f"@{len(seen)}"), text)


def layer_lines(text: str) -> tuple[str, ...]:
    """A line for each layer of the inspector's JSON: name, kind, tactic, and types of its outputs."""
    try:
        layers = json.loads(text)["Layers"]
    except (ValueError, KeyError, TypeError):
        return ()
    return tuple(_layer_line(layer) for layer in layers)


def _layer_line(layer: Any) -> str:
    if not isinstance(layer, dict):
        return str(layer)
    outputs = layer.get("Outputs") or []
    types = [
        str(item.get("Format/Datatype") or item.get("Format") or "")
        for item in outputs
        if isinstance(item, dict)
    ]
    parts = [
        layer.get("Name"),
        layer.get("LayerType"),
        layer.get("TacticName"),
        ", ".join(filter(None, types)),
    ]
    return " | ".join(str(part) for part in parts if part)
