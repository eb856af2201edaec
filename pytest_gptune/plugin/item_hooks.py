"""Where an item's run begins and ends: for the fixtures, and for the hooks that see its reports."""

from __future__ import annotations

import pytest

from pytest_gptune.engines.base import BackendMissingError
from pytest_gptune.errors import GptuneError, SettingsError
from pytest_gptune.plugin.collection import ROUTE_FIXTURE, backend_required, planned_route
from pytest_gptune.plugin.items import ItemRun
from pytest_gptune.plugin.plan import Plan, Unavailable, find_space, planned
from pytest_gptune.plugin.state import state_of
from pytest_gptune.routes import KnobSpace

_ITEM_RUN = pytest.StashKey[ItemRun]()


def begin(request: pytest.FixtureRequest) -> ItemRun:
    """Start the run of an item's route.

    Raises:
        GptuneError: the test could not be planned, or asked for its fixture too late.
    """
    __tracebackhide__ = True
    item = request.node
    state = state_of(item.config)
    plan = planned(state, item)
    if isinstance(plan, GptuneError):
        raise plan
    if isinstance(plan, Unavailable):
        pytest.skip(plan.reason)
    if plan is None or ROUTE_FIXTURE not in getattr(getattr(item, "callspec", None), "params", {}):
        raise SettingsError(
            "a gptune fixture was asked for with request.getfixturevalue(), too late to choose the routes",
            where=item.nodeid,
            mend="take the fixture as an argument of the test or of a fixture it uses",
        )
    item_run = ItemRun(item, plan, planned_route(item, plan), state)
    restored = None
    if state.cache is not None:
        restored = state.cache.restored(item_run.spec(), item_run.planned.key)
    item.stash[_ITEM_RUN] = item_run
    if restored is not None:
        item_run.take_up(restored)
    item_run.skip_unless_wanted()
    return item_run


def item_run_of(item: pytest.Item) -> ItemRun:
    """The run that ``begin`` started for the item."""
    return item.stash[_ITEM_RUN]


def knobs_for(item: pytest.Item) -> KnobSpace:
    """The knob space of an item's backend, for its model where the marker names one."""
    state = state_of(item.config)
    plan = planned(state, item) if isinstance(item, pytest.Function) else None
    if isinstance(plan, Plan):
        return plan.space
    if isinstance(plan, GptuneError):
        raise plan
    if isinstance(plan, Unavailable):
        pytest.skip(plan.reason)
    try:
        return find_space(item, state)
    except BackendMissingError as error:
        if backend_required(item.config):
            raise
        pytest.skip(str(error))


def note_failure(item: pytest.Item, report: pytest.TestReport) -> None:
    """Record a failure of the test that is not the route's: the user's own assertion, or a teardown."""
    item_run = item.stash.get(_ITEM_RUN, None)
    if item_run is None or not report.failed:
        return
    if item_run.record.status not in ("passed", "unchecked"):
        return  # the route ended, and the failure is that of the baseline's route
    if report.when == "setup":
        # The route did not run: whatever is wrong is said by the error itself.
        del item.stash[_ITEM_RUN]
    else:
        lines = report.longreprtext.strip().splitlines()
        item_run.run.note_test_failed(lines[-1] if lines else "the test failed")


def attach_record(item: pytest.Item, report: pytest.TestReport) -> None:
    """Attach what is known of the item's route to its last report, as plain data that crosses processes."""
    item_run = item.stash.get(_ITEM_RUN, None)
    if item_run is None:
        return
    record = item_run.record
    if item_run.restored is None:
        item_run.state.spend(item_run.tuning, record.wall_s)
        item_run.state.writing_cache(lambda cache: cache.record(item_run.spec(), record))
    report.gptune = {  # type: ignore[attr-defined]
        "spec": item_run.spec().as_plain(),
        "record": record.as_plain(),
    }
