"""``gptune knobs`` and ``gptune routes``: what could be tried."""

from __future__ import annotations

import argparse
import shutil
from typing import Any

from pytest_gptune.routes import KnobSpace, RouteExpression


def add_commands(commands: Any) -> None:
    """Add the commands to a parser's."""
    knobs = commands.add_parser("knobs", help="print the knob space of a backend")
    knobs.add_argument("filter", nargs="?", default="", help="only knobs whose name or help contains it")
    knobs.add_argument("--backend", default="onnxruntime", help="default onnxruntime")
    knobs.add_argument("--json", action="store_true", help="in the form of getAllBuildRoutes()")
    knobs.set_defaults(run=_knobs)
    routes = commands.add_parser("routes", help="print the routes of an expression")
    routes.add_argument("expression", help="as '-knob=[a|b] -knob=c'; quote it")
    routes.add_argument("--search", choices=("fast", "full"), default="fast")
    routes.add_argument("--backend", default="onnxruntime", help="default onnxruntime")
    routes.add_argument(
        "--most", type=_count, default=1000, help="print at most so many routes, default 1000"
    )
    routes.set_defaults(run=_routes)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of routes")
    return int(text)


def _knobs(given: argparse.Namespace) -> int:
    from pytest_gptune.reports.knobs import knob_lines

    space = _space(given.backend)
    shown = space.filter(given.filter)
    if given.json:
        print(shown.to_json())
        return 0
    for line in knob_lines(given.backend, space, shown, given.filter, shutil.get_terminal_size().columns):
        print(line)
    return 0


def _routes(given: argparse.Namespace) -> int:
    expression = RouteExpression.parse(given.expression.lstrip(), _space(given.backend), where="expression")
    routes = expression.fast() if given.search == "fast" else expression.full()
    print(f"{routes.count} routes")
    for index in range(min(routes.count, given.most)):
        print(routes[index])
    if routes.count > given.most:
        print(f"... and {routes.count - given.most} more (--most)")
    for pruned in expression.pruned:
        print(f"pruned: {pruned.knob}={pruned.value}: {pruned.reason}")
    return 0


def _space(backend_name: str) -> KnobSpace:
    from pytest_gptune.engines.registry import load_backend

    backend = load_backend(backend_name)
    backend.check_available({})
    return KnobSpace.from_json(backend.knob_space(None, {}))
