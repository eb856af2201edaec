"""The interfaces of real TensorRT bindings, as they were recorded: classes, members, enumerations."""

from __future__ import annotations

import enum
import json
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "tensorrt"
VERSIONS = ("10.0", "10.16", "11.1", "11.4")


class Recorded:
    """One version's interface.

    Attributes:
        version: of the library it was read from, as ``11.1.0.106``.
        members: names of each class, without those of Python itself.
        enums: members of each enumeration.
    """

    def __init__(self, version: str) -> None:
        plain = json.loads((DATA / f"api-{version}.json").read_text("utf-8"))
        self.version: str = plain["version"]
        classes = plain["classes"]
        self.enums = {name: tuple(item["enum"]) for name, item in classes.items() if "enum" in item}
        self.members = {name: frozenset(item.get("members", ())) for name, item in classes.items()}

    def has(self, name: str) -> bool:
        """Whether there is a class, or a member or enumerator of one, as ``IBuilderConfig.build_route``."""
        cls, _, member = name.partition(".")
        if cls not in self.members:
            return False
        return not member or member in self.members[cls] or member in self.enums.get(cls, ())

    @cached_property
    def skeleton(self) -> Any:
        """A module with these classes and enumerations, and nothing that works."""
        classes: dict[str, Any] = {
            name: type(name, (), dict.fromkeys(members)) for name, members in self.members.items()
        }
        # Numbers are the bindings' own business; the backend goes by names.
        for name, enumerators in self.enums.items():
            classes[name] = enum.IntEnum(name, {member: n for n, member in enumerate(enumerators)})
        return SimpleNamespace(__version__=self.version, **classes)
