"""``gptune``: what needs no test run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pytest_gptune import __version__
from pytest_gptune.cli import caches, knobs
from pytest_gptune.errors import GptuneError


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="gptune",
        description="Looks at tuning without running a test. To tune: pytest --gptune-search fast",
    )
    parser.add_argument("--version", action="version", version=f"pytest-gptune {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    knobs.add_commands(commands)
    caches.add_commands(commands)
    given = parser.parse_args([_no_option(a) for a in (sys.argv[1:] if arguments is None else arguments)])
    try:
        code: int = given.run(given)
        sys.stdout.flush()
    except GptuneError as error:
        print(f"gptune: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # what reads the output, as head does, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _no_option(argument: str) -> str:
    """Keep argparse from taking the first knob of an expression, as ``-half=[on|off]``, for an option."""
    is_expression = argument.startswith("-") and not argument.startswith("--") and "=" in argument
    return f" {argument}" if is_expression else argument
