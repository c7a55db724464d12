"""Configuration as found: a tree whose every node remembers who supplied it."""

from __future__ import annotations

from typing import Any

import msgspec

from aviso_server.errors import Problem

__all__ = ["Findings", "Node"]


class Node(msgspec.Struct, frozen=True):
    """One value of a configuration with the file and line, or the variable, it came from."""

    value: Any  # dict of nodes, list of nodes, or a scalar
    source: str
    text: str | None = None  # a scalar as written, so that 0001 stays 0001 where text is wanted

    @property
    def members(self) -> dict[str, Node]:
        """The members of a mapping; empty for anything else."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[Node]:
        """The items of a list; empty for anything else."""
        return self.value if isinstance(self.value, list) else []

    @property
    def shape(self) -> str:
        """What this is, in words for a message."""
        if isinstance(self.value, dict):
            return "a mapping"
        if isinstance(self.value, list):
            return "a list"
        return "empty" if self.value is None else f"'{self.text}'"

    def find(self, key: str) -> Node | None:
        """The node under a dotted key; null counts as absent."""
        node = self
        for name in key.split("."):
            found = node.members.get(name)
            if found is None or found.value is None:
                return None
            node = found
        return node

    def source_of(self, key: str) -> str:
        """Who supplied the key or, if it is absent, the mapping it would stand in."""
        for name in sorted(self.members, key=len, reverse=True):  # names may contain dots: the longest fits best
            if key == name or key.startswith((f"{name}.", f"{name}[")):
                return self.members[name].source_of(key[len(name) :].lstrip("."))
        if key.startswith("[") and self.items:
            index, _, rest = key[1:].partition("]")
            if index.isdecimal() and int(index) < len(self.items):
                return self.items[int(index)].source_of(rest.lstrip("."))
        return self.source

    def over(self, older: Node) -> Node:
        """This node laid over an older one: mappings are joined key by key, anything else replaces."""
        if not isinstance(self.value, dict) or not isinstance(older.value, dict):
            return self
        joined = dict(older.value)
        for name, node in self.value.items():
            joined[name] = node.over(joined[name]) if name in joined else node
        return Node(joined, self.source)


class Findings:
    """Collects what is wrong with a configuration, so that a user hears of everything at once."""

    def __init__(self, root: Node) -> None:
        self.root = root
        self.problems: list[Problem] = []
        self._keys: set[str] = set()

    def refuse(self, key: str, message: str, accepted: str = "") -> None:
        """Report a problem with the key, naming its source."""
        self._keys.add(key)
        self.problems.append(Problem(key, message, accepted, self.root.source_of(key)))

    def broken(self, key: str) -> bool:
        """True if the key already has a problem: rules that build on its value have nothing to add."""
        return key in self._keys
