from __future__ import annotations

import pytest

from pytest_gptune.routes import Knob, KnobSpace, Route, RouteError

SPACE = KnobSpace(
    "1",
    (
        Knob("-copy_ppg", ("on", "off"), "on", ""),
        Knob("-ort:threads", ("0", "1", "2"), "0", "", None),
        Knob("-limit", None, "16", ""),
    ),
)
DEFAULT = Route((("-copy_ppg", "on"), ("-ort:threads", "0")))


def test_parse_reads_what_a_command_line_gives() -> None:
    assert str(Route.parse("ort:threads=1 -copy_ppg=off", SPACE)) == "-ort:threads=1 -copy_ppg=off"
    assert Route.parse("-copy_ppg=[off]", SPACE) == Route((("-copy_ppg", "off"),))
    assert Route.parse("-limit=32", SPACE).as_dict() == {"-limit": "32"}
    # Of another machine: read, so that a report can say that it is not available here.
    assert Route.parse("ort:threads=64", SPACE).as_dict() == {"-ort:threads": "64"}
    for text in ("", " \n", "default", " default "):
        assert Route.parse(text, SPACE) == Route()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("copy_ppg=[on|off]", r"not several: '-copy_ppg=\[on\|off\]'"),
        ("copy_pgg=on", "unknown knob 'copy_pgg' at character 1"),
        ("copy_ppg=on -copy_ppg=off", "named twice, at character 1 and at character 13"),
        ("copy_ppg=on default", "unknown knob 'default' at character 13"),
        ("copy_ppg=maybe", "value 'maybe' at character 10"),
    ],
)
def test_parse_refuses_what_is_no_route(text: str, what: str) -> None:
    with pytest.raises(RouteError, match=what) as caught:
        Route.parse(text, SPACE, where="--gptune-route")
    assert caught.value.where == "--gptune-route"
    assert caught.value.mend


@pytest.mark.parametrize(
    "values",
    [
        (("copy_ppg", "on"),),
        (("-copy_ppg", ""),),
        (("", "on"),),
        (("-copy_ppg", "on off"),),
        (("-copy_ppg", "[on]"),),
        (("-copy_ppg", "o=n"),),
        (("-copy_ppg", "on"), ("-copy_ppg", "off")),
        (("-copy_ppg", "\ud800"),),
    ],
)
def test_what_could_not_be_read_back_is_no_route(values: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(RouteError):
        Route(values)


def test_order_does_not_tell_routes_apart() -> None:
    one = Route((("-copy_ppg", "on"), ("-limit", "1")))
    other = Route((("-limit", "1"), ("-copy_ppg", "on")))
    assert one == other
    assert len({one, other}) == 1
    assert one.id_against(DEFAULT) == other.id_against(DEFAULT)
    assert one != Route((("-copy_ppg", "on"), ("-limit", "2")))
    assert one != str(one)


def test_id_shows_what_differs() -> None:
    assert DEFAULT.id_against(DEFAULT) == "default"
    assert Route(DEFAULT.values[::-1]).id_against(DEFAULT) == "default"
    route = Route((("-copy_ppg", "off"), ("-ort:threads", "1")))
    assert route.id_against(DEFAULT) == "copy_ppg=off,ort:threads=1"
    assert Route((("-ort:threads", "1"), ("-copy_ppg", "off"))).id_against(DEFAULT) == route.id_against(
        DEFAULT
    )
    assert Route((*DEFAULT.values, ("-limit", "3"))).id_against(DEFAULT) == "limit=3"
    assert Route((("-copy_ppg", "off"),)).id_against(DEFAULT) == "copy_ppg=off,ort:threads="


def test_long_ids_are_cut_and_stay_apart() -> None:
    def made(count: int, value: str = "off") -> Route:
        return Route(tuple((f"-knob{i:03}", value) for i in range(count)))

    fitting = Route((("-" + "k" * 96, "off"),))
    assert len(fitting.id_against(Route())) == 100
    assert "~" not in fitting.id_against(Route())
    ids = {made(count).id_against(Route()) for count in range(9, 40)}
    assert len(ids) == 31
    assert all(len(i) == 100 and i[-9] == "~" for i in ids)
    assert made(9).id_against(Route()) == (
        "knob000=off,knob001=off,knob002=off,knob003=off,knob004=off,knob005=off,knob006=off,knob007~4904d6d5"
    )


def test_ids_hold_nothing_that_splits_a_node_id() -> None:
    plain, doubled = Route((("-a:b", "c"),)), Route((("-a::b", "c"),))
    assert plain.id_against(Route()) == "a:b=c"
    found = doubled.id_against(Route())
    assert "::" not in found
    assert found.startswith("a:b=c~")
    # A name that ends as a cut id does must not be taken for one.
    assert Route((("-a:b", found.partition("=")[2]),)).id_against(Route()) != found


def test_minimal_drops_what_is_default_anyway() -> None:
    route = Route((("-ort:threads", "1"), ("-copy_ppg", "on"), ("-elsewhere", "x")))
    assert route.minimal(SPACE).values == (("-ort:threads", "1"), ("-elsewhere", "x"))
    assert DEFAULT.minimal(SPACE) == Route()


def test_over_completes_a_partial_route() -> None:
    route = Route((("-limit", "3"), ("-ort:threads", "1"))).over(DEFAULT)
    assert str(route) == "-copy_ppg=on -ort:threads=1 -limit=3"
    assert Route().over(DEFAULT) == DEFAULT
