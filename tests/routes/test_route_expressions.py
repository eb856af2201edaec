from __future__ import annotations

import pickle

import pytest

from pytest_gptune.errors import GptuneError
from pytest_gptune.routes import (
    Knob,
    KnobSpace,
    PrunedValue,
    Route,
    RouteError,
    RouteExpression,
    RouteLookupError,
)

SPACE = KnobSpace(
    "1",
    (
        Knob("-copy_ppg", ("on", "off"), "on", "Copy propagation."),
        Knob("-tile", ("0", "1", "2"), "1", "Tiles.", ("3",), "needs a newer device"),
        Knob("-threads", ("0", "1", "2"), "0", "Threads.", None, "this machine has 2 cores"),
        Knob("-gone", ("base",), "base", "", ("x", "y"), "not on this device"),
        Knob("-limit", None, "16", "Open-ended."),
    ),
)


def parse(text: str, **options: bool) -> RouteExpression:
    return RouteExpression.parse(text, SPACE, **options)  # type: ignore[arg-type]


def routes(text: str, search: str) -> list[str]:
    expression = parse(text)
    return [str(route) for route in (expression.fast() if search == "fast" else expression.full())]


@pytest.mark.parametrize(
    ("text", "what", "mend"),
    [
        (
            "-tile=[0|1] -copy_pgg=on",
            "unknown knob '-copy_pgg' at character 13",
            "write -copy_ppg, the nearest",
        ),
        ("-qqqqqq=1", "unknown knob '-qqqqqq' at character 1", "see --gptune-knobs"),
        ("-tile=[0|7]", "value '7' at character 10 is not allowed for -tile", "write one of 0, 1, 2"),
        ("-tile=[0|  7 ]", "value '7' at character 12", "0, 1, 2"),
        ("-copy_ppg=of", "value 'of' at character 11", "write off, the nearest of on, off"),
        ("-copy_ppg=", "'-copy_ppg=' has no value at character 11", "on, off"),
        ("-copy_ppg= on", "'-copy_ppg=' has no value at character 11", "on, off"),
        ("=x", "unknown knob '=x' at character 1", "--gptune-knobs"),
        ("[on|off]", r"unknown knob '[on|off]' at character 1", "--gptune-knobs"),
        ("-copy_ppg[on|off]", "'-copy_ppg[on|off]' at character 1 has no '='", "-copy_ppg=[on|off]"),
        ("-tile=[0|1", "'[' at character 7 is not closed", "-tile=[0|1|2]"),
        ("-tile=[0|1 -copy_ppg=[on|off]", "'[' at character 7 is not closed", "-tile=[0|1|2]"),
        ("-tile=[0]-copy_ppg=on", "text '-copy_ppg=on' at character 10 stands after ']'", "white space"),
        ("-limit=many", "value 'many' at character 8", "-limit=16"),
        ("-limit=016", "value '016' at character 8", "-limit=16"),
        ("-limit=" + "9" * 5000, "at character 8", "-limit=16"),
        ("-threads=-1", "value '-1' at character 10", "0, 1, 2"),
        ("-copy_ppg=on # why", "unknown knob '#' at character 14", "--gptune-knobs"),
    ],
)
def test_message_names_token_place_and_remedy(text: str, what: str, mend: str) -> None:
    with pytest.raises(RouteError) as caught:
        RouteExpression.parse(text, SPACE, where="--gptune-routes")
    assert what in caught.value.what
    assert mend in caught.value.mend
    assert caught.value.where == "--gptune-routes"
    assert isinstance(caught.value, GptuneError)


def test_a_pasted_file_does_not_drown_the_message() -> None:
    with pytest.raises(RouteError) as caught:
        parse("-" + "x" * 100_000)
    assert len(str(caught.value)) < 400


def test_route_files_have_lines_and_comments() -> None:
    text = "# encoder\n-copy_ppg=[on|  # the default\n   off]\r\n-tile=2# pinned\n"
    assert str(parse(text, comments=True)) == "-copy_ppg=[on|off] -tile=2"
    with pytest.raises(RouteError, match=r"'-copy_pgg' at character 27 \(line 3\)"):
        parse("# first line\n\n-tile=2     -copy_pgg=on\n", comments=True)
    with pytest.raises(RouteError, match="empty"):
        parse("# nothing but a comment", comments=True)


def test_a_listed_value_that_is_pruned_is_left_out() -> None:
    expression = parse("-tile=[0|3|2] -threads=[64|1]")
    assert expression.pruned == (
        PrunedValue("-tile", "3", "needs a newer device"),
        PrunedValue("-threads", "64", "this machine has 2 cores"),
    )
    assert expression.runnable
    assert str(expression) == "-tile=[0|3|2] -threads=[64|1]"
    assert routes("-tile=[0|3|2] -threads=[64|1]", "full") == ["-tile=0 -threads=1", "-tile=2 -threads=1"]
    assert routes("-tile=[0|3|2] -threads=[64|1]", "fast") == [
        "-tile=1 -threads=0",
        "-tile=1 -threads=1",
        "-tile=0 -threads=0",
        "-tile=2 -threads=0",
    ]


def test_a_fixed_value_that_is_pruned_makes_the_expression_not_runnable() -> None:
    expression = parse("-tile=3 -copy_ppg=[on|off]")
    assert not expression.runnable
    assert expression.pruned == (PrunedValue("-tile", "3", "needs a newer device"),)
    assert [str(route) for route in expression.fast()] == ["-tile=3 -copy_ppg=on", "-tile=3 -copy_ppg=off"]
    assert expression.full().count == 2


def test_a_knob_all_of_whose_values_are_pruned_stays_at_its_default() -> None:
    expression = parse("-gone=[x|y] -copy_ppg=[on|off]")
    assert expression.runnable
    expected = ["-gone=base -copy_ppg=on", "-gone=base -copy_ppg=off"]
    assert [str(route) for route in expression.full()] == expected
    assert [str(route) for route in expression.fast()] == expected


def test_a_list_of_one_is_variable() -> None:
    expression = parse("-copy_ppg=[off]")
    assert str(expression) == "-copy_ppg=[off]"
    assert [str(route) for route in expression.fast()] == ["-copy_ppg=on", "-copy_ppg=off"]
    assert not expression.terms[0].fixed


def test_expressions_that_print_the_same_are_equal() -> None:
    one, other = parse("-copy_ppg=[on|off]  -tile=1"), parse("\n-copy_ppg=[ on || off ]\t-tile=1")
    assert one == other
    assert hash(one) == hash(other)
    assert one != parse("-copy_ppg=[off|on] -tile=1")
    assert one != parse("-copy_ppg=[on|off] -tile=[1]")
    assert one != str(one)


def test_the_expression_of_a_space_lists_every_choice() -> None:
    expression = SPACE.expression()
    assert str(expression) == "-copy_ppg=[on|off] -tile=[0|1|2] -threads=[0|1|2]"
    nothing = KnobSpace("1", ()).expression()
    assert [str(route) for route in nothing.fast()] == [""]
    assert [str(route) for route in nothing.full()] == [""]


def test_sequences_behave_as_sequences() -> None:
    for sequence in (parse("-copy_ppg=[on|off] -tile=[0|2]").fast(), parse("-tile=[0|2|1]").full()):
        listed = list(sequence)
        assert len(sequence) == sequence.count == len(listed) > 2
        assert sequence[-1] == listed[-1]
        assert sequence[-sequence.count] == listed[0]
        assert sequence[1:] == tuple(listed[1:])
        assert list(reversed(sequence)) == listed[::-1]
        for index in (sequence.count, -sequence.count - 1):
            with pytest.raises(IndexError):
                sequence[index]


def test_index_refuses_a_route_that_is_not_there() -> None:
    expression = parse("-copy_ppg=[on|off] -tile=[0|2]")
    both = Route((("-copy_ppg", "off"), ("-tile", "0")))
    assert expression.full().index(both) == 2
    assert both not in expression.fast()
    assert expression.default in expression.fast()
    assert expression.default not in expression.full()
    assert "-copy_ppg=on" not in expression.fast()
    for stranger in (
        both,
        Route(),
        Route((("-copy_ppg", "off"),)),
        Route((("-copy_ppg", "on"), ("-tile", "7"))),
        Route((("-copy_ppg", "off"), ("-tile", "1"), ("-limit", "16"))),
    ):
        with pytest.raises(ValueError, match="not among the routes") as caught:
            expression.fast().index(stranger)
        assert isinstance(caught.value, RouteLookupError)
        if stranger != both:
            assert stranger not in expression.full()


def test_two_hundred_knobs_are_counted_exactly_and_indexed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    space = KnobSpace("1", tuple(Knob(f"-k{i}", ("on", "off"), "on", "") for i in range(200)))
    expression = space.expression()
    full, fast = expression.full(), expression.fast()
    made = 0
    check = Route.__post_init__

    def counting(route: Route) -> None:
        nonlocal made
        made += 1
        check(route)

    monkeypatch.setattr(Route, "__post_init__", counting)
    assert full.count == 2**200
    assert full
    with pytest.raises(OverflowError):
        len(full)
    assert set(full[0].as_dict().values()) == {"on"}
    assert set(full[-1].as_dict().values()) == set(full[2**200 - 1].as_dict().values()) == {"off"}
    assert full.index(full[-1]) == 2**200 - 1
    assert next(iter(full)) == expression.default
    assert [str(route)[:7] for route in full[2**199 : 2**199 + 2]] == ["-k0=off"] * 2
    assert fast.count == 201
    assert fast[1].id_against(expression.default) == "k199=off"
    assert fast[200].id_against(expression.default) == "k0=off"
    assert made < 20


def test_everything_survives_pickling() -> None:
    expression = parse("-tile=[0|3] -copy_ppg=off")
    again = pickle.loads(pickle.dumps(expression))
    assert again == expression
    assert again.space == SPACE
    assert list(pickle.loads(pickle.dumps(expression.fast()))) == list(expression.fast())
