"""Route expressions: the knobs to tune, the values to try, the knobs to hold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pytest_gptune.routes.errors import RouteError
from pytest_gptune.routes.knobs import KnobSpace
from pytest_gptune.routes.route import Route
from pytest_gptune.routes.sequence import FastRoutes, FullRoutes, RouteSequence
from pytest_gptune.routes.terms import Term, check_grammar, parse_terms

_EXAMPLE = "-knob=[a|b]"


@dataclass(frozen=True, slots=True)
class PrunedValue:
    """A value that an expression gives and this machine lacks.

    Attributes:
        knob: the knob's name, with its leading dash.
        value: the value.
        reason: why the machine lacks it; may be empty.
    """

    knob: str
    value: str
    reason: str


@dataclass(frozen=True, eq=False)
class RouteExpression:
    """Knobs with the values to try, made by :meth:`parse` or :meth:`KnobSpace.expression`.

    Two expressions that print the same are equal.

    Attributes:
        space: the knobs it was checked against.
        terms: what it gives, in the order written.
    """

    space: KnobSpace
    terms: tuple[Term, ...]

    @classmethod
    def parse(
        cls, text: str, space: KnobSpace, *, where: str = "", comments: bool = False
    ) -> RouteExpression:
        """Read an expression such as ``-copy_ppg=[on|off] -slice_fusion=off``.

        Args:
            text: the expression; any white space separates its terms.
            space: the knobs that may be named.
            where: the file, option or marker it comes from, for messages.
            comments: ``#`` starts a comment that ends with the line, as in a route file.

        Raises:
            RouteError: it cannot be read, or names a knob or value that does not exist. A value that exists
                but that this machine lacks is no error: see ``pruned``.
        """
        terms = parse_terms(text, space, where=where, comments=comments)
        if not terms:
            example = next((knob.allowed_values for knob in space if knob.bounded), _EXAMPLE)
            raise _emptiness(where, example)
        return cls(space, terms)

    @staticmethod
    def check_grammar(text: str, *, where: str = "", comments: bool = False) -> None:
        """Check what can be checked before any space of knobs is known: the form of the terms.

        Raises:
            RouteError: no space of knobs could make an expression of it.
        """
        if not check_grammar(text, where=where, comments=comments):
            raise _emptiness(where, _EXAMPLE)

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RouteExpression):
            return NotImplemented
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    @cached_property
    def default(self) -> Route:
        """Fixed knobs as given, variable knobs at their own default, even when the list omits it."""
        return Route(tuple((term.knob.name, term.default) for term in self.terms))

    @cached_property
    def pruned(self) -> tuple[PrunedValue, ...]:
        """The given values that this machine lacks, in the order given. No route of a list takes them."""
        return tuple(
            PrunedValue(term.knob.name, value, term.knob.pruned_reason)
            for term in self.terms
            for value in term.values
            if term.knob.prunes(value)
        )

    @property
    def runnable(self) -> bool:
        """False when a fixed value is pruned: then every route has it, and none can be built."""
        return not any(term.fixed and term.knob.prunes(term.values[0]) for term in self.terms)

    def fast(self) -> RouteSequence:
        """The default route, then one knob at a time."""
        return FastRoutes(self.terms)

    def full(self) -> RouteSequence:
        """The product of the listed values. Without the default route when the lists omit it."""
        return FullRoutes(self.terms)


def _emptiness(where: str, example: str) -> RouteError:
    return RouteError(
        "the route expression is empty",
        where=where,
        mend=f"name at least one knob, as {example}, or give no routes to tune every bounded knob",
    )
