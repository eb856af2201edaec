"""The GPU of this machine, for the head of a result."""

from __future__ import annotations

import shutil
import subprocess


def gpu_of_this_machine() -> dict[str, str]:
    """Name and driver under ``gpu``; empty where there is none."""
    if not shutil.which("nvidia-smi"):
        return {}
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {"gpu": done.stdout.strip().splitlines()[0]} if done.stdout.strip() else {}
