"""``--gptune-knobs`` and ``--gptune-dry-run``: print and exit, running nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gptune.errors import GptuneError
from pytest_gptune.plugin.collection import planned_route, tuning_id
from pytest_gptune.plugin.plan import Plan, Unavailable, planned
from pytest_gptune.plugin.settings import MarkerArguments, resolve
from pytest_gptune.plugin.state import state_of
from pytest_gptune.reports.knobs import knob_lines


def print_knobs(config: pytest.Config) -> int:
    """Print the knob space of the backend; exit code 0, or 4 where it cannot be had."""
    import shutil

    wanted = config.getoption("gptune_knobs")
    state = state_of(config)
    try:
        settings = resolve(config, MarkerArguments(), "")
        backend = state.backend(settings.backend)
        backend.check_buildable({})
        space = state.space(backend, None, {})
    except GptuneError as error:
        raise pytest.UsageError(str(error)) from None
    found = space.filter(wanted)
    if wanted and not len(found) and Path(wanted).exists():
        found = space  # `--gptune-knobs tests/`: argparse took the path for the filter
    for line in knob_lines(backend.name, space, found, wanted, shutil.get_terminal_size().columns):
        print(line)
    return int(pytest.ExitCode.OK)


def print_routes(session: pytest.Session) -> None:
    """Print the routes of every collected test; a test that cannot be planned makes the run fail."""
    state = state_of(session.config)
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    write = reporter.write_line if reporter is not None else print
    seen: dict[str, int] = {}
    for item in session.items:
        plan = planned(state, item) if isinstance(item, pytest.Function) else None
        if isinstance(plan, GptuneError):
            write(f"{item.nodeid.split('[')[0]}: {plan}")
            session.testsfailed += 1
        elif isinstance(plan, Unavailable):
            write(f"{item.nodeid.split('[')[0]}: skipped: {plan.reason}")
        elif isinstance(plan, Plan) and isinstance(item, pytest.Function):
            route = planned_route(item, plan)
            tuning = tuning_id(item, route)
            if tuning not in seen:
                expression = "" if plan.settings.routes is None else f" of {plan.expression}"
                write(f"{tuning}: {len(plan.routes)} routes{expression}")
                for knob, value, reason in plan.pruned:
                    write(f"  pruned: {knob}={value}: {reason}")
            seen[tuning] = seen.get(tuning, 0) + 1
            write(
                f"  {seen[tuning]:>4}  {route.route}"
                if route.route.values
                else f"  {seen[tuning]:>4}  default"
            )
