"""A build route: one value for each named knob."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from pytest_gptune.routes.errors import RouteError, quoted
from pytest_gptune.routes.knobs import KnobSpace, is_plain
from pytest_gptune.routes.terms import parse_terms

_LONGEST_ID = 100
_DEFAULT_ID = "default"
_DIGEST_SUFFIX = re.compile(r"~[0-9a-f]{8}\Z")


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One value for each named knob; every other knob is at its default.

    Two routes are equal when they give the same values to the same knobs, in whatever order: a compiler does
    not look at the order, and a baseline must not seem to change with it.

    Attributes:
        values: pairs of a knob's name, with its leading dash, and the value.
    """

    values: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        # One pass over everything: a search makes thousands of routes of hundreds of knobs.
        parts = [part for pair in self.values for part in pair]
        if not self.values:
            return
        if not (all(parts) and is_plain("".join(parts)) and all(name[0] == "-" for name, _ in self.values)):
            raise RouteError(
                f"{quoted(str(self))} is not a route",
                mend="give names with a leading dash, and values without white space or any of [ ] | # , =",
            )
        if len({name for name, _ in self.values}) != len(self.values):
            raise RouteError(f"the route {quoted(str(self))} names a knob twice", mend="keep one of them")

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Route):
            return NotImplemented
        return self.values == other.values or frozenset(self.values) == frozenset(other.values)

    def __hash__(self) -> int:
        return hash(frozenset(self.values))

    @classmethod
    def parse(cls, text: str, space: KnobSpace, *, where: str = "") -> Route:
        """Read a route as ``str()`` writes it, or as a command line gives it.

        The leading dash of a knob may be left out; ``default`` and the empty text are the route that names no
        knob. A value that this machine lacks is read, since a baseline may come from another machine.

        Raises:
            RouteError: anything else, a list of several values included.
        """
        if text.strip() in ("", _DEFAULT_ID):
            return cls()
        terms = parse_terms(text, space, where=where, dash_optional=True)
        for term in terms:
            if len(term.values) > 1:
                raise RouteError(
                    f"a route has one value for each knob, not several: {quoted(str(term))}",
                    where=where,
                    mend=f"write one of {', '.join(f'{term.knob.name}={value}' for value in term.values)}",
                )
        return cls(tuple((term.knob.name, term.values[0]) for term in terms))

    def as_dict(self) -> dict[str, str]:
        """The values by knob."""
        return dict(self.values)

    def minimal(self, space: KnobSpace) -> Route:
        """The route without the values that are their knob's default in ``space`` anyway.

        In the order of ``space``, so that equal routes print the same: this is what records are kept by.
        Knobs that ``space`` does not have come last, by name.
        """
        mine = self.as_dict()
        kept = [
            (knob.name, value)
            for knob in space
            if (value := mine.pop(knob.name, None)) is not None and value != knob.default
        ]
        return Route((*kept, *sorted(mine.items())))

    def over(self, default: Route) -> Route:
        """The default route with the values of this one in place of its own; further knobs at the end.

        Gives a route that names only some knobs the form, and so the id, that a search would give it.
        """
        return Route(tuple({**default.as_dict(), **self.as_dict()}.items()))

    def id_against(self, default: Route) -> str:
        """A name for the route that shows what differs from the default route.

        Distinct routes have distinct ids against one default. A knob that only the default names is shown
        without a value, as ``copy_ppg=``. Ids have at most 100 characters, and none that would be taken for a
        part of a node id: those that have to be changed or cut end in ``~`` and 8 digits of a digest.
        """
        if self == default:
            return _DEFAULT_ID
        mine, theirs = self.as_dict(), default.as_dict()
        # The default's order, so that equal routes have equal ids in whatever order they were written.
        names = [*theirs, *sorted(mine.keys() - theirs.keys())]
        differing = [name for name in names if mine.get(name) != theirs.get(name)]
        whole = ",".join(f"{name[1:]}={mine.get(name, '')}" for name in differing)
        shown = re.sub("::+", ":", whole)
        # A name that happens to end as a cut one does is treated as one, lest the two be confused.
        if shown == whole and len(whole) <= _LONGEST_ID and not _DIGEST_SUFFIX.search(whole):
            return whole
        suffix = f"~{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
        return shown[: _LONGEST_ID - len(suffix)] + suffix
