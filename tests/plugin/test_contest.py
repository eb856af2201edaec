"""What a round of finals is got ready for, and which round of an earlier run it may be."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pytest_gptune.engines.base import BuildRequest
from pytest_gptune.plugin.contest import REFERENCE, Contest
from pytest_gptune.timing.finals import FinalsPlan

REQUESTS = {key: BuildRequest("m.onnx", "a" * 64, ((key, "on"),), fresh=True) for key in ("-a", "-b", "-c")}


def contest(plan: FinalsPlan | None = None, **more: Any) -> Contest:
    nothing = cast(Any, object())
    requests = {**REQUESTS, **more.pop("also", {})}
    return Contest(nothing, nothing, nothing, nothing, plan or FinalsPlan(), requests, **more)


def test_all_builds_of_a_round_are_expected_in_random_order() -> None:
    made = contest()
    orders = {tuple(request.route_text for request in made._expected(list(REQUESTS))) for _ in range(40)}
    assert len(orders) == 6
    assert {frozenset(order) for order in orders} == {frozenset(r.route_text for r in REQUESTS.values())}
    assert [request.route_text for request in made._expected(["-b"])] == [REQUESTS["-b"].route_text]


@pytest.mark.parametrize(
    "more",
    [
        {"kept": {"-b": object()}},
        {"also": {REFERENCE: REQUESTS["-a"]}, "reference_backend": object()},
    ],
)
def test_none_is_expected_where_one_of_them_cannot_be(more: dict[str, Any]) -> None:
    """It would start after all others in every round."""
    made = contest(**more)
    assert made._expected(list(made.requests)) == []
    assert len(made._expected(["-a", "-c"])) == 2


def test_a_reference_that_the_same_backend_builds_is_expected() -> None:
    made = contest(also={REFERENCE: REQUESTS["-a"]})
    assert len(made._expected(list(made.requests))) == 4


@pytest.mark.parametrize(
    ("plan", "same"),
    [
        (FinalsPlan(builds=9, step=1, most_builds=90), True),
        (FinalsPlan(rounds=4), False),
        (FinalsPlan(waiting_s=0.1), False),
        (FinalsPlan(block_s=0.1), False),
    ],
)
def test_a_round_of_other_blocks_is_another(plan: FinalsPlan, same: bool) -> None:
    """More of them would have a lower least one; how many rounds there are to be does not matter."""
    keys = list(REQUESTS)
    assert (contest(plan)._signature(keys) == contest()._signature(keys)) == same
