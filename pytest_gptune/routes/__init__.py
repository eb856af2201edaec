"""Knobs, routes and route expressions: the pure part that says which engines can be built.

>>> from pytest_gptune.routes import KnobSpace, RouteExpression
>>> space = KnobSpace.from_json(
...     '{"tuner_version": "1", "tuner_options": [{"option": "-copy_ppg",'
...     ' "allowed_values": "-copy_ppg=[on|off]", "default_value": "on", "help": ""}]}'
... )
>>> [str(route) for route in RouteExpression.parse("-copy_ppg=[on|off]", space).fast()]
['-copy_ppg=on', '-copy_ppg=off']
"""

from __future__ import annotations

from pytest_gptune.routes.errors import RouteError, RouteLookupError
from pytest_gptune.routes.expression import PrunedValue, RouteExpression
from pytest_gptune.routes.knobs import Knob, KnobSpace
from pytest_gptune.routes.route import Route
from pytest_gptune.routes.sequence import RouteSequence
from pytest_gptune.routes.terms import Term

__all__ = [
    "Knob",
    "KnobSpace",
    "PrunedValue",
    "Route",
    "RouteError",
    "RouteExpression",
    "RouteLookupError",
    "RouteSequence",
    "Term",
]
