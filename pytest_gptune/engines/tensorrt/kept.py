"""What a kept engine needs to be loaded again, checked before TensorRT sees a byte of it.

Deserialising runs code: an engine is loaded only where its digest is the recorded one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from pytest_gptune.engines.base import BuildRequest, EngineFailedError

_MEND = "build the engine here and keep it anew"


def facts_of(data: bytes, request: BuildRequest, library: str, compute_capability: str) -> dict[str, str]:
    """What has to agree for ``data`` to be loaded.

    Args:
        data: the plan.
        request: what it was built from.
        library: module and version, as ``tensorrt 11.1.0.106``.
        compute_capability: of the GPU, as ``9.0``; or several that it was built for ahead of time.
    """
    return {
        "library": library,
        "compute_capability": compute_capability,
        "plan_sha256": hashlib.sha256(data).hexdigest(),
        "route": request.route_text,
        "model_sha256": request.model_sha256,
    }


def check_kept(recorded: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Refuse a kept engine that is not what was recorded, or not for this machine.

    Args:
        recorded: the facts of the sidecar.
        here: the facts as they would be for the same bytes on this machine.

    Raises:
        EngineFailedError: what does not match is named, both values with it.
    """
    if not recorded:
        raise EngineFailedError(
            "the kept engine has no record of what it is; loading it would run code of unknown origin",
            mend=_MEND,
        )
    found = []
    for name, expected in here.items():
        given = recorded.get(name, "")
        if name == "compute_capability" and expected in given.split(","):
            continue
        if given != expected:
            found.append(f"{name.replace('_', ' ')} is {given or 'not recorded'}, here it is {expected}")
    if found:
        raise EngineFailedError(f"the kept engine does not fit: {'; '.join(found)}", mend=_MEND)
