"""What holds for every space, expression and text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gptune.routes import Knob, KnobSpace, Route, RouteError, RouteExpression

T = TypeVar("T")

# Whether a busy machine takes long is not what is asked here.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

WORDS = st.text("abc019_:-.é~", min_size=1, max_size=4).filter(lambda word: word != "...")


@st.composite
def knobs(draw: st.DrawFn, name: str) -> Knob:
    help_text = draw(st.text(max_size=5))
    reason = draw(st.text(max_size=5))
    if draw(st.integers(0, 5)) == 0:
        pruned = tuple(draw(st.lists(WORDS, max_size=2, unique=True)))
        return Knob(name, None, str(draw(st.integers(-9, 99))), help_text, pruned, reason)
    words = draw(st.lists(WORDS, min_size=1, max_size=6, unique=True))
    cut = draw(st.integers(1, len(words)))
    some, rest = tuple(words[:cut]), tuple(words[cut:])
    return Knob(
        name,
        some,
        draw(st.sampled_from(some)),
        help_text,
        draw(st.sampled_from([rest, (), None])),
        reason,
    )


@st.composite
def spaces(draw: st.DrawFn) -> KnobSpace:
    names = draw(st.lists(WORDS, min_size=1, max_size=6, unique=True))
    return KnobSpace(draw(st.text(max_size=4)), tuple(draw(knobs(f"-{name}")) for name in names))


@st.composite
def expressions(draw: st.DrawFn) -> RouteExpression:
    space = draw(spaces())
    chosen = draw(st.lists(st.sampled_from(space.knobs), min_size=1, unique_by=lambda k: k.name))
    terms = []
    for knob in chosen:
        if knob.values is None:
            number = draw(st.sampled_from([n for n in ("-9", "0", "1", "10", "42") if knob.allows(n)]))
            terms.append(f"{knob.name}={number}")
            continue
        valid = [*knob.values, *(knob.pruned or ()), *(["77777"] if knob.pruned is None else [])]
        values = draw(st.lists(st.sampled_from(valid), min_size=1, unique=True))
        if draw(st.booleans()):
            terms.append(f"{knob.name}={values[0]}")
        else:
            bar = draw(st.sampled_from(["|", " | ", "||", "\n|\t"]))
            terms.append(f"{knob.name}=[{bar.join(values)}]")
    gap = draw(st.sampled_from([" ", "\n", "\t", "  ", "\r\n", "\u00a0"]))
    return RouteExpression.parse(gap.join(terms), space)


@patient
@given(expressions())
def test_counts_and_distinctness(expression: RouteExpression) -> None:
    choices = [
        [v for v in term.values if not term.knob.prunes(v)] or [term.knob.default]
        for term in expression.terms
        if not term.fixed
    ]
    defaults = [term.knob.default for term in expression.terms if not term.fixed]
    fast, full = list(expression.fast()), list(expression.full())
    assert expression.full().count == len(full) == len(set(full)) == math.prod(map(len, choices))
    others = sum(len(set(choice) - {default}) for choice, default in zip(choices, defaults, strict=True))
    assert expression.fast().count == len(fast) == len(set(fast)) == 1 + others


@patient
@given(expressions())
def test_fast_changes_one_knob_at_most(expression: RouteExpression) -> None:
    first, *others = expression.fast()
    assert first == expression.default
    for route in others:
        differing = [pair for pair in route.values if pair not in first.values]
        assert len(differing) == 1
        assert len(route.values) == len(first.values)


@patient
@given(expressions())
def test_no_list_yields_a_pruned_value(expression: RouteExpression) -> None:
    fixed = {term.knob.name for term in expression.terms if term.fixed}
    pruned = {(p.knob, p.value) for p in expression.pruned if p.knob not in fixed}
    for route in (*expression.fast(), *expression.full()):
        assert not pruned & set(route.values)
        assert [name for name, _ in route.values] == [term.knob.name for term in expression.terms]
    assert expression.runnable == all(p.knob not in fixed for p in expression.pruned)


@patient
@given(expressions())
def test_index_is_the_inverse(expression: RouteExpression) -> None:
    for sequence in (expression.fast(), expression.full()):
        for i in range(min(sequence.count, 200)):
            assert sequence.index(sequence[i]) == i
            assert sequence[i] in sequence
        for route in (*expression.fast(), *expression.full()[:200]):
            if route in sequence:
                assert sequence[sequence.index(route)] == route


@patient
@given(expressions())
def test_an_expression_reads_back_what_it_prints(expression: RouteExpression) -> None:
    again = RouteExpression.parse(str(expression), expression.space)
    assert again == expression
    assert again.terms == expression.terms
    assert again.pruned == expression.pruned


@patient
@given(expressions(), st.data())
def test_a_route_reads_back_what_it_prints(expression: RouteExpression, data: st.DataObject) -> None:
    full = expression.full()
    route = full[data.draw(st.integers(0, full.count - 1))]
    again = Route.parse(str(route), expression.space)
    assert again.values == route.values
    # Without its dash, "--a" would be read as the knob "-a".
    if not any(knob.name.startswith("--") for knob in expression.space):
        bare = " ".join(f"{name[1:]}={value}" for name, value in route.values)
        assert Route.parse(bare, expression.space) == route
    assert route.minimal(expression.space).over(expression.default) == route or any(
        term.fixed for term in expression.terms
    )


@patient
@given(expressions())
def test_ids_tell_routes_apart(expression: RouteExpression) -> None:
    routes = {expression.default, *expression.fast(), *expression.full()[:300]}
    ids = {route.id_against(expression.default) for route in routes}
    assert len(ids) == len(routes)
    for found in ids:
        assert 0 < len(found) <= 100
        assert not any(part in found for part in ("[", "]", "::"))


PAIRS = st.tuples(st.sampled_from([f"-{'k' * n}{n}" for n in (1, 2, 40, 60)]), WORDS)


@patient
@given(st.lists(st.lists(PAIRS, max_size=4, unique_by=lambda pair: pair[0]), max_size=8))
def test_ids_tell_routes_of_other_knobs_apart(drawn: list[list[tuple[str, str]]]) -> None:
    routes = {Route(tuple(pairs)) for pairs in drawn}
    for default in routes:
        assert len({route.id_against(default) for route in routes}) == len(routes)


@patient
@given(spaces())
def test_a_space_reads_back_what_it_writes(space: KnobSpace) -> None:
    again = KnobSpace.from_json(space.to_json())
    assert again == space
    assert again.defaults_digest == space.defaults_digest
    if space.expression().terms:
        assert RouteExpression.parse(str(space.expression()), space) == space.expression()


def read_or_refusal(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except RouteError as error:
        refusal = error
    assert refusal.what
    return None


GRAMMAR = st.text("-=[]|# \t\nab.1", max_size=30)
AB = KnobSpace(
    "1", (Knob("-a", ("a", "b", "1"), "a", ""), Knob("-b", None, "1", ""), Knob("-1", ("b",), "b", ""))
)


@patient
@given(st.one_of(st.text(), GRAMMAR, GRAMMAR.map(lambda text: f"-a=[a|b] -b=1 {text}")), st.booleans())
def test_any_text_is_read_or_refused(text: str, comments: bool) -> None:
    expression = read_or_refusal(lambda: RouteExpression.parse(text, AB, comments=comments))
    if expression is not None:
        assert RouteExpression.parse(str(expression), AB) == expression
        # What is checked without the knobs refuses nothing that could be read with them.
        RouteExpression.check_grammar(text, comments=comments)
    read_or_refusal(lambda: RouteExpression.check_grammar(text, comments=comments))
    route = read_or_refusal(lambda: Route.parse(text, AB))
    if route is not None:
        assert Route.parse(str(route), AB) == route


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6))
VALUES = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v), max_leaves=8
)
GIVEN = st.one_of(LEAVES, GRAMMAR, GRAMMAR.map("-a=".__add__), GRAMMAR.map("-a=[{}]".format), st.just("a"))
OPTIONS = st.fixed_dictionaries(
    {"option": st.one_of(st.just("-a"), GIVEN), "allowed_values": GIVEN, "default_value": GIVEN},
    optional={"help": GIVEN, "pruned_values": GIVEN, "pruned_reason": GIVEN, "more": VALUES},
)
DOCUMENTS = st.fixed_dictionaries(
    {
        "tuner_version": st.one_of(st.just("1"), LEAVES),
        "tuner_options": st.lists(OPTIONS | VALUES, max_size=2),
    }
)


@patient
@given(st.one_of(st.text(), VALUES.map(json.dumps), DOCUMENTS.map(json.dumps)))
def test_any_document_is_read_or_refused(text: str) -> None:
    space = read_or_refusal(lambda: KnobSpace.from_json(text))
    if space is not None:
        assert KnobSpace.from_json(space.to_json()) == space
