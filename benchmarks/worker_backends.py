"""The plugin's workers as the finals on a GPU use them, for benchmarks on any device."""

from __future__ import annotations

from typing import Any

from pytest_gptune.engines.worker.proxy import WorkerBackend


class AProcessEach(WorkerBackend):
    """Gives every fresh engine a process of its own, as where engines slow theirs down."""

    def _wears(self, options: Any) -> bool:
        return True
