"""The timing cache that the routes of a search share: what the builder measured, kept between builds.

One file for each version of TensorRT and kind of GPU. A cache of another, or a damaged one, would steer the
builder by measurements that are not this machine's; it is told apart by the header we write before it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gptune.storage import write_atomically

_SCHEMA = 1


@dataclass(frozen=True)
class TimingCacheFile:
    """A timing cache on disk.

    Attributes:
        path: the file.
        library: module and version that wrote it.
        gpu: name and compute capability of the GPU that was measured.
    """

    path: Path
    library: str
    gpu: str

    @classmethod
    def within(cls, folder: Path, library: str, gpu: str) -> TimingCacheFile:
        """The file of this library and GPU in ``folder``."""
        digest = hashlib.sha256(f"{library}\n{gpu}".encode()).hexdigest()[:16]
        return cls(folder / f"{digest}.timing", library, gpu)

    def read(self) -> tuple[bytes, str]:
        """What the builder kept, empty where there is nothing of use, and why it was discarded."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return b"", ""
        except OSError as error:
            return b"", f"the timing cache cannot be read, so the builder measures anew: {error}"
        line, _, data = content.partition(b"\n")
        try:
            header = json.loads(line)
        except ValueError:
            header = None
        if not isinstance(header, dict):
            header = {}
        if header.get("sha256") != hashlib.sha256(data).hexdigest() or header.get("schema") != _SCHEMA:
            return b"", f"the timing cache {self.path.name} is damaged and was discarded"
        if (header.get("library"), header.get("gpu")) != (self.library, self.gpu):
            return b"", (
                f"the timing cache {self.path.name} is of {header.get('library')} on {header.get('gpu')} "
                "and was discarded"
            )
        return data, ""

    def write(self, data: bytes) -> None:
        """Keep what the builder measured.

        Two processes on two GPUs of one kind may overwrite each other's: an entry that is lost is measured
        again.

        Raises:
            StorageError: it cannot be written.
        """
        header = {
            "schema": _SCHEMA,
            "library": self.library,
            "gpu": self.gpu,
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        write_atomically(self.path, json.dumps(header).encode() + b"\n" + data)


def give_timing_cache(config: Any, data: bytes) -> tuple[bool, str]:
    """Let the builder use ``data``, or start an empty cache.

    Returns:
        Whether there is a cache to be kept after the build, and why ``data`` was discarded.
    """
    warning = ""
    for content in [data, b""] if data else [b""]:
        timing_cache = config.create_timing_cache(content)
        # False for the mismatch is what TensorRT checks itself: version and device.
        if timing_cache is not None and config.set_timing_cache(timing_cache, False):
            return True, warning
        warning = "TensorRT does not take the timing cache, so it was discarded"
    return False, warning


def taken_timing_cache(config: Any) -> bytes:
    """What the builder's cache holds after a build."""
    timing_cache = config.get_timing_cache()
    if timing_cache is None:
        return b""
    data = timing_cache.serialize()
    return b"" if data is None else bytes(data)
