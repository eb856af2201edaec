from __future__ import annotations

from typing import get_args

import pytest

from pytest_gptune.routes import Knob, KnobSpace, Route, RouteError, RouteExpression, RouteSequence
from pytest_gptune.search import (
    ROUTE_STATUSES,
    SEARCHES,
    FastSearch,
    FullSearch,
    ReplaySearch,
    RouteResult,
    RouteStatus,
    Search,
    create,
)

SPACE = KnobSpace("1", (Knob("-a", ("0", "1", "2"), "0", ""), Knob("-b", ("on", "off"), "on", "")))


def parse(text: str) -> RouteExpression:
    return RouteExpression.parse(text, SPACE)


def listed(search: Search) -> list[str]:
    return [str(route) for route in search.initial()]


def test_fast() -> None:
    search = create("fast", parse("-a=[1|2] -b=[on|off]"), max_routes=4)
    assert search == FastSearch(parse("-a=[1|2] -b=[on|off]"))
    assert search.name == "fast"
    assert listed(search) == ["-a=0 -b=on", "-a=0 -b=off", "-a=1 -b=on", "-a=2 -b=on"]


def test_full_that_lists_the_default_keeps_its_order() -> None:
    search = create("full", parse("-a=[2|0] -b=[off|on]"), max_routes=4)
    assert isinstance(search, FullSearch)
    assert search.name == "full"
    assert listed(search) == ["-a=2 -b=off", "-a=2 -b=on", "-a=0 -b=off", "-a=0 -b=on"]


def test_full_that_omits_the_default_is_led_by_it() -> None:
    search = create("full", parse("-a=[1|2] -b=[on|off]"), max_routes=5)
    routes = search.initial()
    assert isinstance(routes, RouteSequence)
    assert routes.count == 5
    assert [str(route) for route in routes] == [
        "-a=0 -b=on",
        "-a=1 -b=on",
        "-a=1 -b=off",
        "-a=2 -b=on",
        "-a=2 -b=off",
    ]
    assert str(routes[-1]) == "-a=2 -b=off"
    assert [routes.index(route) for route in routes] == [0, 1, 2, 3, 4]
    assert Route((("-a", "0"), ("-b", "off"))) not in routes
    with pytest.raises(ValueError, match="not among"):
        routes.index(Route((("-a", "0"), ("-b", "off"))))


def test_full_is_lazy_beyond_what_can_be_counted_by_len() -> None:
    space = KnobSpace("1", tuple(Knob(f"-k{i}", ("0", "1", "2"), "0", "") for i in range(200)))
    text = " ".join(f"-k{i}=[1|2]" for i in range(200))
    routes = FullSearch(RouteExpression.parse(text, space)).initial()
    assert routes.count == 2**200 + 1
    assert routes
    assert set(routes[0].as_dict().values()) == {"0"}
    assert set(routes[2**200].as_dict().values()) == {"2"}
    assert routes.index(routes[2**200]) == 2**200


def test_replay_has_each_route_once_in_order() -> None:
    default, other = Route((("-a", "0"), ("-b", "on"))), Route((("-a", "1"), ("-b", "on")))
    search = ReplaySearch((other, default, Route(other.values[::-1])))
    assert search.name == "replay"
    assert search.initial() == (other, default)


def test_these_searches_propose_nothing_later() -> None:
    expression = parse("-a=[0|1]")
    results = [RouteResult(expression.default, "passed", 1e-3, (0.9e-3, 1.1e-3))]
    for search in (FastSearch(expression), FullSearch(expression), ReplaySearch((expression.default,))):
        assert isinstance(search, Search)
        assert search.propose(results) == ()
        assert search.propose([]) == ()


def test_too_many_routes_are_refused_with_the_exact_count() -> None:
    space = KnobSpace("1", tuple(Knob(f"-k{i}", ("on", "off"), "on", "") for i in range(200)))
    with pytest.raises(RouteError) as caught:
        create("full", space.expression(), max_routes=10_000)
    assert str(2**200) in caught.value.what
    assert "10000" in caught.value.what
    assert (
        caught.value.mend
        == "list fewer knobs or values, choose --gptune-search fast, or raise gptune_max_routes"
    )
    assert listed(create("fast", space.expression(), max_routes=201))
    with pytest.raises(RouteError, match="has 201 routes"):
        create("fast", space.expression(), max_routes=200)


def test_a_count_too_long_to_print_is_still_refused() -> None:
    space = KnobSpace("1", tuple(Knob(f"-k{i}", ("0", "1", "2", "3"), "0", "") for i in range(9_000)))
    with pytest.raises(RouteError, match=r"more than 2\*\*18000"):
        create("full", space.expression(), max_routes=10)


def test_searches_that_cannot_be_made() -> None:
    assert SEARCHES == ("replay", "fast", "mixed", "full", "coordinate")
    with pytest.raises(RouteError, match="'replay' takes its routes from a baseline"):
        create("replay", parse("-a=[0|1]"), max_routes=10)
    with pytest.raises(RouteError, match="unknown search 'fats'") as caught:
        create("fats", parse("-a=[0|1]"), max_routes=10)
    assert caught.value.mend == "choose fast, the nearest of replay, fast, mixed, full, coordinate"
    with pytest.raises(RouteError, match="choose one of replay"):
        create("", parse("-a=[0|1]"), max_routes=10)


def test_statuses() -> None:
    assert get_args(RouteStatus) == ROUTE_STATUSES
    assert " ".join(ROUTE_STATUSES) == (
        "passed inaccurate rejected crashed timeout out_of_memory inert pruned skipped unchecked test_failed"
    )
