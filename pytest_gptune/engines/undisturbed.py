"""Keeps Python itself out of a timed region."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection and no tracing of coverage tools or debuggers within a timed region."""
    collects = gc.isenabled()
    trace, profile = sys.gettrace(), sys.getprofile()
    gc.disable()
    sys.settrace(None)
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.settrace(trace)
        sys.setprofile(profile)
        if collects:
            gc.enable()
