"""The knobs of a compiler on this machine, and the JSON form every backend gives them in."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from pytest_gptune.routes.errors import RouteError, quoted

if TYPE_CHECKING:
    from pytest_gptune.routes.expression import RouteExpression

# What the grammar of expressions, route files and route ids uses to separate things.
_SEPARATORS = re.compile(r"[\s\[\]|#,=]")
_ELLIPSIS = "..."
_OPEN_TYPE = "int32_t"
_TYPE_NAME = re.compile(r"u?int\d*(_t)?|size_t|float\d*|double|(std::)?string", re.ASCII)
# One spelling for each number: otherwise 16 and 016 would be two routes with one engine. At most 19 digits
# (64 bits), since Python refuses to convert integers of thousands of digits.
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_POSITIVE = re.compile(r"[1-9][0-9]{0,18}")
# difflib needs quadratic time, and nobody means a knob with a name that long.
_LONGEST_GUESSED = 200

_FORM_HINT = (
    'give {"tuner_version": "...", "tuner_options": [{"option": "-k", "allowed_values": "-k=[a|b]", '
    '"default_value": "a", "help": "..."}]}'
)

_T = TypeVar("_T")


def is_plain(text: str) -> bool:
    """Whether ``text`` can stand in a route without being taken for a part of the grammar."""
    return bool(text) and text.isprintable() and not _SEPARATORS.search(text)


def nearest(word: str, known: tuple[str, ...]) -> str | None:
    """The one of ``known`` that ``word`` was most likely meant to be."""
    if len(word) > _LONGEST_GUESSED:
        return None
    by_lower = {name.lower(): name for name in reversed(known)}
    found = difflib.get_close_matches(word.lower(), list(by_lower), n=1)
    return by_lower[found[0]] if found else None


@dataclass(frozen=True, slots=True)
class Knob:
    """A compiler option: its allowed values, default and help.

    Attributes:
        name: with its leading dash, as ``-copy_ppg``.
        values: the values it takes on this machine; None when open-ended, as ``int32_t`` is.
        default: the value it has when a route does not name it.
        help: the compiler's description.
        pruned: values that are valid but that this machine lacks; None for every positive integer that is
            not among ``values`` (more threads than there are cores, for one).
        pruned_reason: why this machine lacks them.
        searched: the values that are tried when no expression lists any; None for all of ``values``.
        on_request: tried only where an expression names the knob.
        of_model: the knob is about a part of the model, and its default leaves the model as it is.
    """

    name: str
    values: tuple[str, ...] | None
    default: str
    help: str
    pruned: tuple[str, ...] | None = ()
    pruned_reason: str = ""
    searched: tuple[str, ...] | None = None
    on_request: bool = False
    of_model: bool = False

    def __post_init__(self) -> None:
        if not (self.name.startswith("-") and is_plain(self.name[1:])):
            raise RouteError(
                f"{quoted(self.name)} cannot be the name of a knob",
                mend="give it a leading dash and no white space or any of [ ] | # , =",
            )
        for value in (*(self.values or ()), *(self.pruned or ())):
            if not is_plain(value) or value in (_ELLIPSIS, _OPEN_TYPE):
                raise RouteError(
                    f"{quoted(value)} cannot be a value of {self.name}",
                    mend="list single words without any of [ ] | # , =",
                )
        if self.values is None:
            if self.pruned is None:
                raise RouteError(
                    f"{self.name} is open-ended and prunes every integer, so that it has no values",
                    mend="list the values it takes, or those it lacks",
                )
            if self.default and not is_plain(self.default):
                raise RouteError(f"{quoted(self.default)} cannot be the default of {self.name}")
        else:
            self._check_bounded(self.values)
        unknown = [value for value in self.searched or () if value not in (self.values or ())]
        if unknown:
            raise RouteError(
                f"{self.name} searches {', '.join(map(quoted, unknown))}, which is not among its values",
                mend=f"search some of {', '.join(self.values or ())}",
            )

    def _check_bounded(self, values: tuple[str, ...]) -> None:
        if not values:
            raise RouteError(f"{self.name} has no values", mend="list its values, or leave the knob out")
        listed = (*values, *(self.pruned or ()))
        twice = {value for value in listed if listed.count(value) > 1}
        if twice:
            raise RouteError(f"{self.name} lists {', '.join(map(quoted, sorted(twice)))} twice")
        if self.default not in values:
            raise RouteError(
                f"the default {quoted(self.default)} of {self.name} is not among its values",
                mend=f"make it one of {', '.join(values)}",
            )

    @property
    def bounded(self) -> bool:
        """Whether the values can be listed, so that a search can try them all."""
        return self.values is not None

    @property
    def allowed_values(self) -> str:
        """The allowed values as the compiler writes them: ``-k=[a|b]``, ``-k=int32_t``."""
        return _render(self.name, self.values)

    def allows(self, value: str) -> bool:
        """Whether the knob takes ``value`` on this machine.

        An open-ended knob whose default is an integer takes integers; otherwise any plain word, since
        only the compiler knows better.
        """
        if self.values is not None:
            return value in self.values
        if self.prunes(value):
            return False
        if _INTEGER.fullmatch(self.default):
            return _INTEGER.fullmatch(value) is not None
        return is_plain(value) and value != _ELLIPSIS and not _TYPE_NAME.fullmatch(value)

    def prunes(self, value: str) -> bool:
        """Whether ``value`` is valid for the knob, but not available on this machine."""
        if self.pruned is not None:
            return value in self.pruned
        return _POSITIVE.fullmatch(value) is not None and not self.allows(value)


@dataclass(frozen=True)
class KnobSpace:
    """All knobs of a backend, for a model on this machine.

    Attributes:
        notes: what a reader of the space should know, as why a kind of knobs is not there; a sentence each.
    """

    tuner_version: str
    knobs: tuple[Knob, ...]
    notes: tuple[str, ...] = ()
    _by_name: dict[str, Knob] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name: dict[str, Knob] = {}
        for knob in self.knobs:
            if knob.name in by_name:
                raise RouteError(
                    f"the knob space has two knobs with the name {knob.name}",
                    mend="leave one of them out",
                )
            by_name[knob.name] = knob
        object.__setattr__(self, "_by_name", by_name)

    def __len__(self) -> int:
        return len(self.knobs)

    def __iter__(self) -> Iterator[Knob]:
        return iter(self.knobs)

    @classmethod
    def from_json(cls, text: str) -> KnobSpace:
        """Read the JSON of TensorRT's ``IBuilderConfig.getAllBuildRoutes()``.

        The key ``notes``, a list of texts, is ours. So are five keys of an option: ``pruned_values``, in the
        grammar of ``allowed_values`` where ``-k=int32_t`` means every other positive integer,
        ``pruned_reason``, ``searched_values``, in the same grammar, ``on_request`` and ``of_model``. Keys
        that are not known are passed over, for a later compiler may write more.

        Raises:
            RouteError: ``text`` is anything else.
        """
        if not isinstance(text, str) or not text.strip():
            raise RouteError(
                "the knob space is empty: this compiler has no tuner",
                mend="use a version of the compiler that reports its build routes, or name no routes",
            )
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            # ValueError is wider than JSONDecodeError on purpose: integers of too many digits raise it.
            raise RouteError(
                f"the knob space is not JSON that can be read: {error}", mend=_FORM_HINT
            ) from error
        fields: dict[str, object] = _typed(document, dict, "the knob space")
        version = _typed(fields.get("tuner_version"), str, "tuner_version of the knob space")
        options: list[object] = _typed(fields.get("tuner_options"), list, "tuner_options of the knob space")
        notes: list[object] = _typed(fields.get("notes", []), list, "notes of the knob space")
        return cls(
            version,
            tuple(_knob(option, number) for number, option in enumerate(options, start=1)),
            tuple(_typed(note, str, "a note of the knob space") for note in notes),
        )

    def to_json(self) -> str:
        """The space in the form that :meth:`from_json` reads."""
        options = []
        for knob in self.knobs:
            option: dict[str, object] = {
                "option": knob.name,
                "allowed_values": knob.allowed_values,
                "default_value": knob.default,
                "help": knob.help,
            }
            if knob.pruned != ():
                option["pruned_values"] = _render(knob.name, knob.pruned)
            if knob.pruned_reason:
                option["pruned_reason"] = knob.pruned_reason
            if knob.searched is not None:
                option["searched_values"] = _render(knob.name, knob.searched)
            if knob.on_request:
                option["on_request"] = True
            if knob.of_model:
                option["of_model"] = True
            options.append(option)
        document: dict[str, object] = {"tuner_version": self.tuner_version, "tuner_options": options}
        if self.notes:
            document["notes"] = list(self.notes)
        return json.dumps(document, indent=1)

    def get(self, name: str) -> Knob | None:
        """The knob with this name, leading dash included; None if there is none."""
        return self._by_name.get(name)

    def nearest(self, name: str) -> str | None:
        """The name of the knob that ``name`` was most likely meant to be; None if none is near."""
        return nearest(name if name.startswith("-") else f"-{name}", tuple(self._by_name))

    def filter(self, text: str) -> KnobSpace:
        """The knobs whose name or help contains ``text``, in either case."""
        wanted = text.lower()
        kept = tuple(k for k in self.knobs if wanted in k.name.lower() or wanted in k.help.lower())
        return KnobSpace(self.tuner_version, kept, self.notes)

    @property
    def defaults_digest(self) -> str:
        """SHA-256 of all names and defaults: two default routes build the same only where it agrees.

        The tuner's version is left out, since a new version with the same defaults is told apart elsewhere;
        and so are knobs of the model, whose defaults change nothing.
        """
        lines = sorted(f"{knob.name}={knob.default}" for knob in self.knobs if not knob.of_model)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def expression(self) -> RouteExpression:
        """Every bounded knob with a choice, except those on request; no terms if there is no such knob."""
        from pytest_gptune.routes.expression import RouteExpression
        from pytest_gptune.routes.terms import Term

        listed = [(k, k.values if k.searched is None else k.searched) for k in self.knobs if not k.on_request]
        return RouteExpression(
            self, tuple(Term(k, values, False) for k, values in listed if values and len(values) > 1)
        )


def _typed(value: object, kind: type[_T], what: str) -> _T:
    if isinstance(value, kind):
        return value
    found = "missing" if value is None else f"of type {type(value).__name__}"
    raise RouteError(f"{what} is {found}, it has to be of type {kind.__name__}", mend=_FORM_HINT)


def _knob(option: object, number: int) -> Knob:
    fields: dict[str, object] = _typed(option, dict, f"knob {number} of the knob space")
    name = _typed(fields.get("option"), str, f"option of knob {number}")
    allowed = _typed(fields.get("allowed_values"), str, f"allowed_values of {quoted(name)}")
    pruned = _typed(fields.get("pruned_values", f"{name}=[]"), str, f"pruned_values of {quoted(name)}")
    return Knob(
        name=name,
        values=_values(name, allowed, "allowed_values"),
        default=_typed(fields.get("default_value"), str, f"default_value of {quoted(name)}"),
        help=_typed(fields.get("help", ""), str, f"help of {quoted(name)}"),
        pruned=_values(name, pruned, "pruned_values"),
        pruned_reason=_typed(fields.get("pruned_reason", ""), str, f"pruned_reason of {quoted(name)}"),
        searched=_searched(name, fields.get("searched_values")),
        on_request=_typed(fields.get("on_request", False), bool, f"on_request of {quoted(name)}"),
        of_model=_typed(fields.get("of_model", False), bool, f"of_model of {quoted(name)}"),
    )


def _searched(name: str, given: object) -> tuple[str, ...] | None:
    if given is None:
        return None
    text = _typed(given, str, f"searched_values of {quoted(name)}")
    return _values(name, text, "searched_values")


def _values(name: str, text: str, key: str) -> tuple[str, ...] | None:
    """The values of ``-name=[a|b]``; None for the name of a type or a list with ``...``."""
    if not text.startswith(f"{name}="):
        raise RouteError(
            f"{key} {quoted(text)} does not belong to {quoted(name)}",
            mend=f"begin it with {quoted(name + '=')}",
        )
    listed = text[len(name) + 1 :].strip()
    if not (listed.startswith("[") and listed.endswith("]")):
        return None if _TYPE_NAME.fullmatch(listed) else (listed,)
    values = tuple(value for value in map(str.strip, listed[1:-1].split("|")) if value)
    return None if _ELLIPSIS in values else values


def _render(name: str, values: tuple[str, ...] | None) -> str:
    return f"{name}={_OPEN_TYPE}" if values is None else f"{name}=[{'|'.join(values)}]"
