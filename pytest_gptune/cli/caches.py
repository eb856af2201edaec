"""``gptune`` on tuning caches: ``show``, ``best``, ``what-if``, ``effects``, ``merge``, ``convert``."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gptune.records.cached_tuning import CachedTuning, Epsilon
    from pytest_gptune.records.what_if import Rung

_EPSILON_HELP = "a number for every output, or one for each as 'name=1e-3,other=0'"


def add_commands(commands: Any) -> None:
    """Add the commands to a parser's."""
    show = _reading(commands, "show", "print the routes of a tuning cache")
    show.set_defaults(run=_show)
    best = _reading(
        commands, "best", "print the fastest route within an epsilon; exit code 1 if there is none"
    )
    best.add_argument("--epsilon", type=_epsilon, metavar="X", help=f"{_EPSILON_HELP}; default the tuning's")
    best.set_defaults(run=_best)
    what_if = _reading(commands, "what-if", "print which route would win at other epsilons")
    what_if.add_argument(
        "--epsilon",
        type=_epsilon,
        action="append",
        metavar="X",
        help=f"{_EPSILON_HELP}; may repeat; default each at which the eligible set changes",
    )
    what_if.add_argument("--json", action="store_true", help="with every figure in full")
    what_if.add_argument("--plot", type=Path, metavar="FILE", help=".png or .svg; needs matplotlib")
    what_if.set_defaults(run=_what_if)
    effects = _reading(commands, "effects", "print what each knob's values do to latency and loss")
    effects.set_defaults(run=_effects)
    merge = commands.add_parser("merge", help="write the rows of several tuning caches into one")
    merge.add_argument("out", type=Path, metavar="OUT")
    merge.add_argument("inputs", type=Path, nargs="+", metavar="IN")
    merge.set_defaults(run=_merge)
    convert = commands.add_parser(
        "convert", help="write a tuning cache of trtexec or Torch-TensorRT in the form of ours"
    )
    convert.add_argument("source", type=Path, metavar="IN")
    convert.add_argument("out", type=Path, metavar="OUT")
    convert.add_argument("--tuning", default="", metavar="NAME", help="default the name of the file")
    convert.set_defaults(run=_convert)


def _reading(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text)
    parser.add_argument("cache", type=Path, metavar="CACHE", help="ours, trtexec's or Torch-TensorRT's")
    parser.add_argument("--tuning", default="", metavar="TEXT", help="only tunings whose name contains it")
    return parser


def _epsilon(text: str) -> Epsilon:
    if "=" not in text:
        return _number(text, text)
    pairs = [part.rpartition("=") for part in text.split(",")]
    return {name: _number(value, text) for name, _, value in pairs}


def _number(text: str, whole: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"'{whole}' is not an epsilon: write 1e-3, or name=1e-3,other=0")
    return value


def _show(given: argparse.Namespace) -> int:
    from pytest_gptune.reports.cache_tables import heading, show_lines

    for tuning in _tunings(given):
        _print([*heading(tuning), *show_lines(tuning, _width()), ""])
    return 0


def _best(given: argparse.Namespace) -> int:
    from pytest_gptune.records.tuning_cache import CacheError
    from pytest_gptune.records.what_if import rung_at
    from pytest_gptune.reports.cache_tables import best_lines, heading

    code = 0
    for tuning in _tunings(given):
        epsilon = tuning.epsilon if given.epsilon is None else given.epsilon
        if epsilon is None:
            raise CacheError(
                "the cache has no epsilon, so none can be taken from it",
                where=str(given.cache),
                mend="give --epsilon X",
            )
        rung = rung_at(tuning, epsilon)
        code = code if rung.winner else 1
        _print([heading(tuning)[0], *best_lines(tuning, rung)])
    return code


def _what_if(given: argparse.Namespace) -> int:
    from pytest_gptune.records.what_if import ladder, rungs_at
    from pytest_gptune.reports.cache_tables import heading, what_if_lines
    from pytest_gptune.reports.json_report import finite_json
    from pytest_gptune.reports.what_if_plot import check_plot_path, write_what_if_plot

    if given.plot is not None:
        check_plot_path(given.plot)
    found = [
        (tuning, rungs_at(tuning, given.epsilon) if given.epsilon else ladder(tuning))
        for tuning in _tunings(given)
    ]
    if given.json:
        plain = {"schema": 1, "tunings": [_plain(tuning, rungs) for tuning, rungs in found]}
        print(json.dumps(finite_json(plain), indent=2, allow_nan=False))
    else:
        for tuning, rungs in found:
            _print([*heading(tuning), *what_if_lines(tuning, rungs, _width()), ""])
    if given.plot is not None:
        write_what_if_plot(given.plot, found)
    return 0


def _effects(given: argparse.Namespace) -> int:
    from pytest_gptune.records.effects import effects
    from pytest_gptune.reports.cache_tables import effect_lines, effects_legend, heading

    for tuning in _tunings(given):
        _print([*heading(tuning), *effect_lines(tuning, effects(tuning), _width()), ""])
    _print(effects_legend())
    return 0


def _merge(given: argparse.Namespace) -> int:
    from pytest_gptune.records.cache_files import merge

    merged = merge(given.out, given.inputs)
    _warn(merged.warnings)
    print(f"{given.out}: tunings {merged.tunings}, routes {merged.routes}, rows {merged.rows}")
    return 0


def _convert(given: argparse.Namespace) -> int:
    from pytest_gptune.records.cache_files import convert

    converted = convert(given.source, given.out, given.tuning)
    _warn(converted.warnings)
    _print([f"{given.out}: routes {converted.routes}, from a cache of {converted.writer}"])
    _print([f"  missing: {text}" for text in converted.missing])
    return 0


def _tunings(given: argparse.Namespace) -> tuple[CachedTuning, ...]:
    from pytest_gptune.records.cache_files import read_existing
    from pytest_gptune.records.cached_tuning import cached_tunings
    from pytest_gptune.records.tuning_cache import CacheError

    content = read_existing(given.cache)
    _warn(content.warnings)
    tunings = cached_tunings(content)
    wanted = tuple(tuning for tuning in tunings if given.tuning in tuning.tuning)
    if not wanted:
        raise CacheError(
            f"the cache has no tuning whose name contains '{given.tuning}'",
            where=str(given.cache),
            mend=f"name one of {', '.join(tuning.tuning for tuning in tunings)}",
        )
    return wanted


def _plain(tuning: CachedTuning, rungs: Sequence[Rung]) -> dict[str, Any]:
    epsilon = tuning.epsilon
    return {
        "tuning": tuning.tuning,
        "metric": tuning.metric,
        "epsilon": _plain_epsilon(epsilon),
        "routes": len(tuning.routes),
        "ladder": [
            {
                "epsilon": _plain_epsilon(rung.epsilon),
                "multiple": rung.multiple,
                "eligible": rung.eligible,
                "winner": rung.winner and rung.winner.route,
                "latency_s": rung.winner and rung.winner.latency_s,
                "speedup": rung.speedup,
            }
            for rung in rungs
        ],
    }


def _plain_epsilon(epsilon: Epsilon | None) -> Any:
    if isinstance(epsilon, Mapping):
        return dict(epsilon)
    return epsilon if epsilon is None or math.isfinite(epsilon) else None


def _width() -> int:
    return shutil.get_terminal_size().columns


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        print(line)


def _warn(warnings: Sequence[str]) -> None:
    for text in warnings:
        print(f"gptune: warning: {text}", file=sys.stderr)
