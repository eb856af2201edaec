"""The mixed search: the combinations of what helped, best first, nothing twice."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st
from landscape import PLANTED, SWITCHES, Landscape, run

from pytest_gptune.routes import Route
from pytest_gptune.search import MixedSearch, RouteResult, Search, create


def mixed(landscape: Landscape, max_routes: int = 256) -> MixedSearch:
    search = create("mixed", landscape.expression, max_routes=10_000, mixed_max_routes=max_routes)
    assert isinstance(search, MixedSearch)
    assert isinstance(search, Search)
    return search


def changed(route: Route) -> set[str]:
    return {f"{n}={v}" for n, v in route.values if v != ("on" if n == "-tf32" else "off") and v != "plain"}


def test_it_begins_with_fast() -> None:
    assert list(mixed(PLANTED).initial()) == list(create("fast", PLANTED.expression, max_routes=99).initial())


def test_it_combines_what_helped() -> None:
    landscape = Landscape(SWITCHES, {"-a=on": 0.9, "-b=on": 0.8, "-c=on": 1.1, "-d=on": 0.95})
    found = run(mixed(landscape), landscape)
    assert [[changed(route) for route in proposed] for proposed in found.rounds] == [
        [
            {"-a=on", "-b=on", "-d=on"},
            {"-a=on", "-b=on"},
            {"-b=on", "-d=on"},
            {"-a=on", "-d=on"},
        ]
    ]
    assert found.best == landscape.best()


def test_it_takes_values_and_not_knobs() -> None:
    """The reference takes a knob with one good value whole; its bad values are combined as well."""
    knobs = {"-a": ("0", "1", "2"), "-b": ("off", "on")}
    landscape = Landscape(knobs, {"-a=1": 0.8, "-a=2": 1.5, "-b=on": 0.9})
    found = run(mixed(landscape), landscape)
    assert [str(route) for proposed in found.rounds for route in proposed] == ["-a=1 -b=on"]


def test_two_values_of_one_knob_are_both_combined() -> None:
    knobs = {"-a": ("0", "1", "2"), "-b": ("off", "on")}
    landscape = Landscape(knobs, {"-a=1": 0.8, "-a=2": 0.7, "-b=on": 0.9})
    found = run(mixed(landscape), landscape)
    assert [str(route) for proposed in found.rounds for route in proposed] == ["-a=2 -b=on", "-a=1 -b=on"]


def test_what_is_fast_and_inaccurate_is_not_combined() -> None:
    landscape = Landscape(SWITCHES, {"-a=on": 0.2, "-b=on": 0.9, "-c=on": 0.9}, {"-a=on": 9.0})
    found = run(mixed(landscape), landscape)
    assert [changed(route) for proposed in found.rounds for route in proposed] == [{"-b=on", "-c=on"}]


def test_luck_is_not_combined() -> None:
    """A mean below the default's within the noise is what the reference counts as a gain."""
    landscape = Landscape(SWITCHES, {"-a=on": 0.98, "-b=on": 0.97, "-c=on": 0.5}, noise=0.03)
    found = run(mixed(landscape), landscape)
    assert found.rounds == []


def test_from_an_inaccurate_default_it_starts_at_the_best_passing_route() -> None:
    """No value passes alone but those that mend the accuracy: others are tried on the best of them."""
    knobs = {"-tf32": ("on", "off", "emulated"), **SWITCHES}
    landscape = Landscape(
        knobs,
        {"-tf32=off": 1.5, "-tf32=emulated": 2.0, "-a=on": 0.8, "-b=on": 0.9, "-c=on": 1.2},
        {"-tf32=on": 2.0},
    )
    found = run(mixed(landscape), landscape)
    steps, combinations = found.rounds
    assert {route.as_dict()["-tf32"] for route in steps} == {"off"}
    assert len(steps) == len(SWITCHES)
    assert [changed(route) for route in combinations] == [{"-tf32=off", "-a=on", "-b=on"}]
    assert found.best == landscape.best()


def test_where_the_host_is_too_slow_to_see_a_gain_it_starts_where_it_is_not() -> None:
    """A graph is the only gain over the default: what others do for the device shows behind it alone."""
    knobs = {"-graph": ("off", "on"), **SWITCHES}
    gains = {"-a=on": 0.8, "-b=on": 0.9, "-c=on": 1.2}
    landscape = Landscape(knobs, gains, hosts_pace=3.0, ahead="-graph=on")
    found = run(mixed(landscape), landscape)
    steps, combinations = found.rounds
    assert {route.as_dict()["-graph"] for route in steps} == {"on"}
    assert len(steps) == len(SWITCHES)
    assert [changed(route) for route in combinations] == [{"-graph=on", "-a=on", "-b=on"}]
    assert found.best == landscape.best()


def test_where_every_route_has_the_hosts_pace_it_starts_at_the_default() -> None:
    landscape = Landscape(SWITCHES, {"-a=on": 0.8}, hosts_pace=3.0, ahead="-none=on")
    assert run(mixed(landscape), landscape).rounds == []


def test_a_device_that_is_no_faster_than_the_host_is_no_better_start() -> None:
    knobs = {"-graph": ("off", "on"), **SWITCHES}
    landscape = Landscape(knobs, {"-graph=on": 2.995}, hosts_pace=3.0, ahead="-graph=on")
    assert run(mixed(landscape), landscape).rounds == []


def test_where_nothing_passes_nothing_follows() -> None:
    landscape = Landscape(SWITCHES, {"-a=on": 0.5, "-b=on": 0.5}, {"-h=off": 3.0, "-h=on": 3.0})
    assert run(mixed(landscape), landscape).rounds == []


def test_a_default_that_crashed_is_no_start_and_no_end() -> None:
    search = mixed(PLANTED)
    default = RouteResult(PLANTED.expression.default, "crashed", None, None)
    others = [PLANTED.result(route) for route in list(search.initial())[1:]]
    assert {route.as_dict()["-a"] for route in search.propose([default, *others])} == {"on"}


def test_without_the_default_nothing_follows() -> None:
    """It was timed nowhere: passed, but with benchmarks disabled; or it was not selected."""
    search = mixed(PLANTED)
    others = [PLANTED.result(route) for route in list(search.initial())[1:]]
    untimed = RouteResult(PLANTED.expression.default, "passed", None, None)
    assert search.propose(others) == search.propose([untimed, *others]) == search.propose([]) == ()


def test_the_second_phase_is_bounded_and_says_so() -> None:
    factors = {f"{knob}=on": 0.9 - 0.01 * number for number, knob in enumerate(SWITCHES)}
    landscape = Landscape(SWITCHES, factors)
    search = mixed(landscape, max_routes=5)
    found = run(search, landscape)
    assert len(found.results) == 1 + 8 + 5
    # The best combination by prediction is the first, and here the best of all.
    assert landscape.result(found.rounds[0][0]) == landscape.best()
    (note,) = search.notes(found.results)
    assert "247 combinations" in note
    assert "best 5" in note
    assert mixed(landscape).notes(found.results) == ()


def test_combinations_of_two_hundred_knobs_are_made_one_at_a_time() -> None:
    knobs = {f"-k{number}": ("off", "on") for number in range(200)}
    landscape = Landscape(knobs, {f"{knob}=on": 0.9 for knob in knobs})
    found = run(mixed(landscape, max_routes=20), landscape)
    assert len(found.rounds[0]) == 20
    assert len(changed(found.rounds[0][0])) == 200


@given(
    st.dictionaries(st.sampled_from([f"{k}=on" for k in SWITCHES]), st.floats(0.5, 1.5), max_size=6),
    st.dictionaries(st.sampled_from([f"{k}=on" for k in SWITCHES]), st.floats(0.0, 3.0), max_size=3),
    st.integers(1, 20),
)
def test_best_first_nothing_twice_and_resumable_anywhere(
    factors: dict[str, float], losses: dict[str, float], most: int
) -> None:
    landscape = Landscape(SWITCHES, factors, losses)
    search = mixed(landscape, most)
    found = run(search, landscape)
    late = [route for proposed in found.rounds for route in proposed]
    assert len(late) <= most

    def predicted(route: Route) -> float:
        return math.prod(factors.get(choice, 1.0) for choice in changed(route))

    assert all(predicted(a) <= predicted(b) + 1e-12 for a, b in itertools.pairwise(late))
    # Cut off after any route, a search made anew goes on with the next one.
    first = len(found.results) - len(late)
    for done in range(first, len(found.results)):
        again = mixed(landscape, most).propose(found.results[:done])
        assert list(again) == late[done - first :]
    # Without interactions the best of all is found, unless it is beyond the bound.
    if len(late) < most and not losses:
        best = landscape.best().latency_s or 0.0
        assert (found.best.latency_s or 0.0) <= best * 1.02 ** len(SWITCHES)
