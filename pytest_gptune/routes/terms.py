"""The grammar shared by routes and route expressions: text to checked terms.

A term is ``-knob=value`` or ``-knob=[a|b]``. Terms stand apart by any white space outside brackets. Values in
brackets are trimmed and empty ones dropped. Every error names the token, its place and what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_gptune.routes.errors import RouteError, quoted
from pytest_gptune.routes.knobs import Knob, KnobSpace, nearest

# A list runs to the first closing bracket, or to the end of the text when there is none.
_TOKEN = re.compile(r"(?:[^\s\[]|\[[^\]]*\]?)+")
_COMMENT = re.compile(r"#[^\r\n]*")


@dataclass(frozen=True, slots=True)
class Term:
    """A knob as an expression gives it.

    Attributes:
        knob: the knob.
        values: what was given, in the order given, pruned values included.
        fixed: ``-knob=a``, not ``-knob=[a]``.
    """

    knob: Knob
    values: tuple[str, ...]
    fixed: bool

    def __str__(self) -> str:
        return f"{self.knob.name}={self.values[0] if self.fixed else '[' + '|'.join(self.values) + ']'}"

    @property
    def default(self) -> str:
        """The value in the default route: the fixed one, or the knob's own default even if not listed."""
        return self.values[0] if self.fixed else self.knob.default

    @property
    def available(self) -> tuple[str, ...]:
        """The values that routes take: the fixed one, or the listed ones that this machine has.

        A knob whose listed values are all pruned stays at its default.
        """
        if self.fixed:
            return self.values
        return tuple(v for v in self.values if not self.knob.prunes(v)) or (self.knob.default,)


def parse_terms(
    text: str, space: KnobSpace, *, where: str = "", comments: bool = False, dash_optional: bool = False
) -> tuple[Term, ...]:
    """The terms of ``text``, all checked against ``space``.

    Args:
        text: the expression or route.
        space: the knobs that may be named.
        where: the file, option or marker ``text`` comes from, for messages.
        comments: ``#`` starts a comment that ends with the line.
        dash_optional: ``knob=a`` is read as ``-knob=a``.
    """
    reader = _Reader(text, where, space, dash_optional)
    terms: list[Term] = []
    places: dict[str, int] = {}
    for token in _tokens(text, comments):
        term = reader.term(token.group(), token.start())
        first = places.setdefault(term.knob.name, token.start())
        if first != token.start():
            raise reader.error(
                f"knob {quoted(term.knob.name)} is named twice, "
                f"at {reader.place(first)} and at {reader.place(token.start())}",
                "keep one of them",
            )
        terms.append(term)
    return tuple(terms)


def check_grammar(text: str, *, where: str = "", comments: bool = False) -> bool:
    """Check the form of every term, whatever the knobs; whether there is any.

    Raises:
        RouteError: no space of knobs could make a term of it.
    """
    reader = _Text(text, where)
    some = False
    for found in _tokens(text, comments):
        some = True
        token, start = found.group(), found.start()
        name, equals, given = token.partition("=")
        name = name if equals else name.partition("[")[0]
        example = f"{'' if name.startswith('-') else '-'}{name}=[a|b]"
        if not given:
            raise reader.without_value(token, start, example)
        if not name.startswith("-"):
            raise reader.error(
                f"knob {quoted(name)} at {reader.place(start)} has no leading dash", f"write {example}"
            )
        if "[" in given:
            reader.inside(token, given, start + len(name) + 1, example)
    return some


def _tokens(text: str, comments: bool) -> Iterator[re.Match[str]]:
    # Comments are blanked, not removed, so that positions in messages are those of the file.
    readable = _COMMENT.sub(lambda found: " " * len(found.group()), text) if comments else text
    return _TOKEN.finditer(readable)


@dataclass(frozen=True, slots=True)
class _Text:
    """What is read, and what its messages need. Offsets count from 0, messages from 1."""

    text: str
    where: str

    def place(self, offset: int) -> str:
        """Where ``offset`` is, for a message: the character, and the line if there are several."""
        line = len(self.text[: offset + 1].splitlines())
        return f"character {offset + 1}" + (f" (line {line})" if len(self.text.splitlines()) > 1 else "")

    def error(self, what: str, mend: str) -> RouteError:
        return RouteError(what, where=self.where, mend=mend)

    def without_value(self, token: str, start: int, example: str) -> RouteError:
        """Of a token that is a name alone."""
        return self.error(
            f"knob {quoted(token)} at {self.place(start)} has no '=' and value"
            if "=" not in token
            else f"knob {quoted(token)} has no value at {self.place(start + len(token))}",
            f"write {example}",
        )

    def inside(self, token: str, given: str, offset: int, example: str) -> tuple[str, int]:
        """What stands in the brackets of ``given``, which begins at ``offset``, and where they open."""
        before, _, rest = given.partition("[")
        opening = offset + len(before)
        inside, closing, after = rest.partition("]")
        if before:
            raise self.error(
                f"text {quoted(before)} at {self.place(offset)} stands before '[' in {quoted(token)}",
                f"write {example}",
            )
        if not closing or "[" in inside:
            raise self.error(
                f"'[' at {self.place(opening)} is not closed before the next '[' or the end: {quoted(token)}",
                f"write {example}",
            )
        if after:
            raise self.error(
                f"text {quoted(after)} at {self.place(opening + len(inside) + 2)} stands after ']' "
                f"in {quoted(token)}",
                f"write {example}; put white space before the next knob",
            )
        return inside, opening


@dataclass(frozen=True, slots=True)
class _Reader(_Text):
    """Reads single tokens of an expression over a space of knobs."""

    space: KnobSpace
    dash_optional: bool

    def term(self, token: str, start: int) -> Term:
        """The term that ``token``, which begins at ``start``, stands for."""
        name, equals, given = token.partition("=")
        if not equals and "[" in name:
            # "[on|off]" or "-copy_ppg[on|off]": without its list the name is what was meant.
            name = name.partition("[")[0]
        knob = self._knob(name or token, start)
        if not equals:
            raise self.without_value(token, start, _example(knob))
        offset = start + len(name) + 1
        # A closing bracket alone is left to the check of the value, which names it.
        if "[" not in given:
            self._check(knob, given, offset)
            return Term(knob, (given,), True)
        return Term(knob, self._list(knob, token, given, offset), False)

    def _knob(self, name: str, start: int) -> Knob:
        knob = self.space.get(name)
        if knob is None and self.dash_optional:
            knob = self.space.get(f"-{name}")
        if knob is not None:
            return knob
        if self.space.get(f"-{name}"):
            mend = f"write -{name}, with its leading dash"
        elif near := self.space.nearest(name):
            mend = f"write {near}, the nearest known knob, or see --gptune-knobs"
        else:
            mend = "see --gptune-knobs for the known knobs"
        raise self.error(f"unknown knob {quoted(name)} at {self.place(start)}", mend)

    def _list(self, knob: Knob, token: str, given: str, offset: int) -> tuple[str, ...]:
        """The values of ``given``, a list in brackets that begins at ``offset``."""
        inside, opening = self.inside(token, given, offset, _example(knob))
        if not knob.bounded:
            raise self.error(
                f"{knob.name} is open-ended, its values cannot be listed: "
                f"{quoted(given)} at {self.place(opening)}",
                f"fix it at one value: {_example(knob)}",
            )
        places: dict[str, int] = {}
        for value, at in _split(inside, opening + 1):
            self._check(knob, value, at)
            first = places.setdefault(value, at)
            if first != at:
                raise self.error(
                    f"value {quoted(value)} of {knob.name} is listed twice, "
                    f"at {self.place(first)} and at {self.place(at)}: {quoted(token)}",
                    "keep one of them",
                )
        if not places:
            raise self.error(
                f"the list {quoted(given)} of {knob.name} at {self.place(opening)} has no values",
                f"write {_example(knob)}",
            )
        return tuple(places)

    def _check(self, knob: Knob, value: str, offset: int) -> None:
        if knob.allows(value) or knob.prunes(value):
            return
        if not value:
            what = f"knob '{knob.name}=' has no value at {self.place(offset)}"
        else:
            what = f"value {quoted(value)} at {self.place(offset)} is not allowed for {knob.name}"
        if knob.values is None:
            mend = f"write one value, as {_example(knob)}"
        else:
            allowed = ", ".join(knob.values)
            near = nearest(value, knob.values)
            mend = f"write {near}, the nearest of {allowed}" if near else f"write one of {allowed}"
        raise self.error(what, mend)


def _split(inside: str, offset: int) -> Iterator[tuple[str, int]]:
    """The trimmed values of a list with their offsets; empty ones are dropped."""
    for piece in inside.split("|"):
        value = piece.strip()
        if value:
            yield value, offset + piece.index(value)
        offset += len(piece) + 1


def _example(knob: Knob) -> str:
    """How a user may write the knob: its values, not the name of a type, which is no value."""
    return knob.allowed_values if knob.bounded else f"{knob.name}={knob.default or 'VALUE'}"
