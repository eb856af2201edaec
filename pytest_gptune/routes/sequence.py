"""Routes of an expression, counted exactly and made one at a time.

An expression over 200 knobs has more routes than could ever be listed, so nothing here builds more than what
is asked for: a route by its index, or an index by its route, in time proportional to the number of knobs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, overload

from pytest_gptune.routes.errors import RouteLookupError, quoted
from pytest_gptune.routes.route import Route

if TYPE_CHECKING:
    from pytest_gptune.routes.terms import Term


class RouteSequence(ABC):
    """Distinct routes in a fixed order. Like a ``Sequence``, but ``count`` is their exact number.

    ``len()`` raises OverflowError beyond ``sys.maxsize``, as Python has it; ``count`` never does.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def count(self) -> int:
        """How many routes there are."""

    @abstractmethod
    def _at(self, index: int) -> Route:
        """The route at ``index``, which is from 0 up to but without ``count``."""

    @abstractmethod
    def _position(self, route: Route) -> int | None:
        """The index of ``route``; None if it is not in the sequence."""

    def __len__(self) -> int:
        return self.count

    def __bool__(self) -> bool:
        # Python would ask len(), which overflows.
        return self.count > 0

    @overload
    def __getitem__(self, index: int) -> Route: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Route, ...]: ...
    def __getitem__(self, index: int | slice) -> Route | tuple[Route, ...]:
        if isinstance(index, slice):
            return tuple(self._at(i) for i in range(*index.indices(self.count)))
        position = index + self.count if index < 0 else index
        if not 0 <= position < self.count:
            raise IndexError("route index out of range")
        return self._at(position)

    def __iter__(self) -> Iterator[Route]:
        return map(self._at, range(self.count))

    def __reversed__(self) -> Iterator[Route]:
        return map(self._at, range(self.count - 1, -1, -1))

    def __contains__(self, route: object) -> bool:
        return isinstance(route, Route) and self._position(route) is not None

    def index(self, route: Route) -> int:
        """The index of ``route``.

        Raises:
            RouteLookupError: it is not in the sequence.
        """
        position = self._position(route)
        if position is None:
            raise RouteLookupError(
                f"the route {quoted(str(route))} is not among the routes of the expression",
                mend="name every knob of the expression, with values that it lists",
            )
        return position


class FastRoutes(RouteSequence):
    """The default route, then one knob at a time: knobs from right to left, values as listed."""

    __slots__ = ("_default", "_others", "_slots")

    def __init__(self, terms: tuple[Term, ...]) -> None:
        self._default = tuple((term.knob.name, term.default) for term in terms)
        self._slots = {term.knob.name: slot for slot, term in enumerate(terms)}
        self._others = tuple(tuple(v for v in term.available if v != term.default) for term in terms)

    @property
    def count(self) -> int:
        """One, and one for each listed value that is not its knob's default."""
        return 1 + sum(map(len, self._others))

    def _at(self, index: int) -> Route:
        if index == 0:
            return Route(self._default)
        left = index - 1
        slot = len(self._others) - 1
        while left >= len(self._others[slot]):
            left -= len(self._others[slot])
            slot -= 1
        changed = (self._default[slot][0], self._others[slot][left])
        return Route((*self._default[:slot], changed, *self._default[slot + 1 :]))

    def _position(self, route: Route) -> int | None:
        mine = route.as_dict()
        if mine.keys() != self._slots.keys():
            return None
        differing = [slot for slot, (name, value) in enumerate(self._default) if mine[name] != value]
        if not differing:
            return 0
        slot = differing[0]
        value = mine[self._default[slot][0]]
        if len(differing) > 1 or value not in self._others[slot]:
            return None
        return 1 + sum(map(len, self._others[slot + 1 :])) + self._others[slot].index(value)


class FullRoutes(RouteSequence):
    """The product of the listed values, the rightmost knob fastest."""

    __slots__ = ("_choices", "_names")

    def __init__(self, terms: tuple[Term, ...]) -> None:
        self._names = tuple(term.knob.name for term in terms)
        self._choices = tuple(term.available for term in terms)

    @property
    def count(self) -> int:
        """The product of the numbers of listed values."""
        return math.prod(map(len, self._choices))

    def _at(self, index: int) -> Route:
        chosen: list[str] = []
        for choice in reversed(self._choices):
            index, digit = divmod(index, len(choice))
            chosen.append(choice[digit])
        return Route(tuple(zip(self._names, reversed(chosen), strict=True)))

    def _position(self, route: Route) -> int | None:
        mine = route.as_dict()
        if mine.keys() != set(self._names):
            return None
        index = 0
        for name, choice in zip(self._names, self._choices, strict=True):
            if mine[name] not in choice:
                return None
            index = index * len(choice) + choice.index(mine[name])
        return index
