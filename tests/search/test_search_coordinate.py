"""The coordinate search: one knob after another, from the best passing route."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from landscape import PLANTED, SWITCHES, Landscape, run

from pytest_gptune.search import CoordinateSearch, Search, create


def coordinate(landscape: Landscape) -> Search:
    search = create("coordinate", landscape.expression, max_routes=10)
    assert isinstance(search, CoordinateSearch)
    return search


def test_it_begins_with_the_default_alone() -> None:
    assert coordinate(PLANTED).initial() == (PLANTED.expression.default,)


def test_each_knob_is_tried_on_what_is_best_so_far() -> None:
    knobs = {"-a": ("0", "1", "2"), "-b": ("off", "on")}
    landscape = Landscape(knobs, {"-a=1": 0.9, "-a=2": 0.8, "-b=on": 0.7})
    found = run(coordinate(landscape), landscape)
    assert [[str(route) for route in proposed] for proposed in found.rounds] == [
        ["-a=0 -b=on"],
        ["-a=1 -b=on", "-a=2 -b=on"],
        ["-a=2 -b=off"],
    ]
    assert found.best == landscape.best()


def test_values_that_help_only_after_another_was_chosen_are_found() -> None:
    """Knobs go from right to left: b helps where c is on, and a where b is."""
    landscape = Landscape(
        dict.fromkeys(("-a", "-b", "-c"), ("off", "on")),
        {"-c=on": 0.9, "-b=on": 1.2, "-b=on -c=on": 0.5, "-a=on": 1.2, "-a=on -b=on": 0.5},
    )
    found = run(coordinate(landscape), landscape)
    assert str(found.best.route) == "-a=on -b=on -c=on"
    # c, then b on it, then a on both; in the second round a and b are back where they were.
    assert len(found.results) == 6


def test_a_round_without_a_gain_ends_it() -> None:
    landscape = Landscape(SWITCHES, {f"{knob}=on": 1.1 for knob in SWITCHES})
    assert len(run(coordinate(landscape), landscape).results) == 1 + len(SWITCHES)


def test_it_never_steps_onto_what_is_inaccurate() -> None:
    landscape = Landscape(SWITCHES, {"-a=on": 0.1, "-b=on": 0.9}, {"-a=on": 5.0})
    found = run(coordinate(landscape), landscape)
    assert found.best.route.as_dict()["-b"] == "on"
    assert sum(result.route.as_dict()["-a"] == "on" for result in found.results) == 1


def test_from_an_inaccurate_default_it_looks_for_one_that_passes() -> None:
    knobs = {"-tf32": ("on", "off"), **SWITCHES}
    landscape = Landscape(knobs, {"-tf32=off": 1.5, "-a=on": 0.8, "-b=on": 0.9}, {"-tf32=on": 2.0})
    found = run(coordinate(landscape), landscape)
    assert found.best == landscape.best()


def test_where_nothing_passes_it_ends() -> None:
    landscape = Landscape(SWITCHES, {}, {"-h=off": 3.0, "-h=on": 3.0})
    assert len(run(coordinate(landscape), landscape).results) == 1 + len(SWITCHES)


@given(
    st.dictionaries(
        st.lists(st.sampled_from([f"{k}=on" for k in SWITCHES]), min_size=1, max_size=2, unique=True).map(
            " ".join
        ),
        st.sampled_from([0.5, 0.7, 0.9, 1.2, 1.6]),
        max_size=8,
    ),
    st.dictionaries(st.sampled_from([f"{k}=on" for k in SWITCHES]), st.floats(0.0, 3.0), max_size=3),
)
def test_it_ends_repeats_nothing_and_resumes_anywhere(
    factors: dict[str, float], losses: dict[str, float]
) -> None:
    landscape = Landscape(SWITCHES, factors, losses)
    found = run(coordinate(landscape), landscape, most=2 ** len(SWITCHES))
    ends = {1 + sum(map(len, found.rounds[:n])): found.rounds[n] for n in range(len(found.rounds))}
    for done in range(1, len(found.results)):
        again = coordinate(landscape).propose(found.results[:done])
        start = max(end for end in ends if end <= done)
        assert again == ends[start][done - start :]
    # Where it ends, no one step is significantly better.
    here = found.best
    for name in SWITCHES:
        values = {**here.route.as_dict(), name: "on" if here.route.as_dict()[name] == "off" else "off"}
        step = landscape.result(type(here.route)(tuple(values.items())))
        if step.passed:
            assert (step.latency_s or 0) * 1.02 > (here.latency_s or 0)
