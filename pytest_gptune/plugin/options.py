"""Command line options and ini keys: names, types, help. Their values are read in ``settings``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

# The layer that knows these is imported only when a test uses the plugin; a test holds the two together.
GATE_CHOICES = ("auto", "paired", "absolute", "relative", "off")

IniType = Literal["string", "bool", "int", "float"]


@dataclass(frozen=True)
class Option:
    """One option and its ini key.

    Attributes:
        name: without ``--gptune-``.
        kind: type of its value; ``flag`` takes none.
        ini: whether ``gptune_NAME`` may stand in the configuration file.
        arguments: further arguments of ``argparse``.
    """

    name: str
    help: str
    kind: Literal["text", "int", "float", "flag", "texts"] = "text"
    ini: bool = True
    choices: tuple[str, ...] = ()
    metavar: str = ""

    @property
    def flag(self) -> str:
        """As it is written on the command line."""
        return f"--gptune-{self.name}"

    @property
    def dest(self) -> str:
        """Name of the attribute and of the ini key."""
        return "gptune_" + self.name.replace("-", "_")


OPTIONS: tuple[Option, ...] = (
    Option(
        "search",
        "how routes are searched: replay measures the default route and the baseline's winner only "
        "(default), fast one knob at a time, mixed fast and then the combinations of what helped, full the "
        "product, coordinate one-knob steps from the best route; or one of a pytest_gptune_search hook",
        metavar="MODE",
    ),
    Option(
        "backend", "onnxruntime (default), or one of the entry point group gptune.backends", metavar="NAME"
    ),
    Option(
        "routes", "route expression for tests that name none; default: every bounded knob", metavar="EXPR"
    ),
    Option("route-file", "read the route expression from a file; # starts a comment", metavar="PATH"),
    Option("route", "this route only, as the report prints it", ini=False, metavar="ROUTE"),
    Option("epsilon", "the largest loss that passes", kind="float", metavar="X"),
    Option(
        "metric", "l0, l1, l2, lInf (default), cos, or one of a pytest_gptune_metric hook", metavar="NAME"
    ),
    Option("atol", "absolute tolerance of metric l0, default 1e-5", kind="float", metavar="X"),
    Option("rtol", "relative tolerance of metric l0, default 1e-5", kind="float", metavar="X"),
    Option("cache", "tuning cache: a record of every route tried", metavar="PATH"),
    Option("continue", "take up finished routes from the tuning cache", kind="flag", ini=False),
    Option(
        "prior",
        "an earlier tuning cache: under a budget, what helped there is tried first; may be given again",
        kind="texts",
        metavar="PATH",
    ),
    Option(
        "budget",
        "seconds for the search of each test; routes that are left then are skipped",
        kind="float",
        metavar="SECONDS",
    ),
    Option("route-timeout", "seconds for one route, default 3600", kind="float", metavar="SECONDS"),
    Option("save-engine", "keep the winner's very engine in this folder, with a sidecar", metavar="DIR"),
    Option("save-all-engines", "keep the engine of every route that passes in that folder", kind="flag"),
    Option(
        "engine",
        "gate this kept engine as it is; a folder: replay takes the engine in it that is the baseline's",
        metavar="PATH",
    ),
    Option("update-goldens", "make goldens anew from the reference", kind="flag", ini=False),
    Option("update-baseline", "write the winner to the baseline", kind="flag", ini=False),
    Option("max-regression", "percent that the winner may be slower, default 3", kind="float", metavar="PCT"),
    Option("gate", "what the winner is compared with, default auto", choices=GATE_CHOICES, metavar="GATE"),
    Option(
        "reference-python",
        "interpreter that builds the reference engine: compares two versions of a backend in one run",
        metavar="PATH",
    ),
    Option(
        "against",
        "git revision of the model for the paired gate; default: the commit that wrote the baseline",
        metavar="REF",
    ),
    Option(
        "isolation",
        "process (default): engines are built and run in a worker; none: all in this process, for debuggers",
        choices=("process", "none"),
        metavar="HOW",
    ),
    Option("build-only", "build every route and run nothing: for machines without the device", kind="flag"),
    Option("report", "write a report: PATH.json; may be given again", kind="texts", metavar="PATH"),
    Option("dry-run", "print the routes and exit", kind="flag", ini=False),
)

INI_ONLY: tuple[tuple[str, IniType, str], ...] = (
    ("gptune_require_baseline", "bool", "a test without a comparable baseline fails"),
    ("gptune_require_backend", "bool", "a backend or device that is not there is an error, not a skip"),
    ("gptune_ambiguous", "string", "warn (default) or fail: what an ambiguous verdict does"),
    ("gptune_max_routes", "int", "the most routes of one search, default 10000"),
    ("gptune_mixed_max_routes", "int", "the most routes of the second phase of mixed, default 256"),
    ("gptune_final_builds", "int", "builds of each finalist, default 5"),
)

INI_KEYS: tuple[str, ...] = (
    *(option.dest for option in OPTIONS if option.ini),
    *(key for key, _, _ in INI_ONLY),
)

_INI_TYPES: dict[str, IniType] = {"text": "string", "texts": "string", "int": "int", "float": "float"}


def add_options(parser: pytest.Parser) -> None:
    """Declare all options and ini keys."""
    group = parser.getgroup("gptune", "accuracy-gated tuning of inference engines (pytest-gptune)")
    for option in OPTIONS:
        arguments: dict[str, Any] = {"dest": option.dest, "default": None, "help": option.help}
        if option.kind == "flag":
            arguments["action"] = "store_true"
        else:
            arguments["metavar"] = option.metavar
            arguments["action"] = "append" if option.kind == "texts" else "store"
            if option.kind in ("int", "float"):
                arguments["type"] = int if option.kind == "int" else float
            if option.choices:
                arguments["choices"] = option.choices
        group.addoption(option.flag, **arguments)
        if option.ini:
            kind: IniType = "bool" if option.kind == "flag" else _INI_TYPES[option.kind]
            parser.addini(option.dest, f"{option.flag}: {option.help}", type=kind, default=None)
    group.addoption(
        "--gptune-knobs",
        dest="gptune_knobs",
        nargs="?",
        const="",
        default=None,
        metavar="FILTER",
        help="print the knob space and exit; with FILTER only knobs whose name or help contains it",
    )
    for name, ini_type, text in INI_ONLY:
        parser.addini(name, text, type=ini_type, default=None)
