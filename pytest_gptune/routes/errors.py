"""Errors about knobs, routes and route expressions."""

from __future__ import annotations

from pytest_gptune.errors import GptuneError

_QUOTE_LIMIT = 80


class RouteError(GptuneError):
    """A knob space, route, route expression or search cannot be used as written."""


class RouteLookupError(RouteError, ValueError):
    """A route is not in a sequence; a ``ValueError`` too, as ``index`` of Python's sequences raises."""


def quoted(text: str) -> str:
    """``text`` in quotes for a message, cut so that a pasted file does not drown the message."""
    if len(text) > _QUOTE_LIMIT:
        text = text[: _QUOTE_LIMIT - 3] + "..."
    return repr(text)
