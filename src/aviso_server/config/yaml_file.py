"""Reads one YAML file into a tree: no tags, no duplicate keys, every node with its line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from aviso_server.config.tree import Node
from aviso_server.errors import Problem

__all__ = ["read_yaml"]

# The core schema of YAML 1.2, which knows no dates, no octal 0010 and no yes/no; those stay text.
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEAN = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]+", re.ASCII)
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", re.ASCII
)
_UNTAGGED = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str"))
_MOST_NODES = 200_000
_DEEPEST = 64
_BOUNDED = f"up to {_DEEPEST} levels and {_MOST_NODES} values"


def read_yaml(path: Path) -> tuple[Node, list[Problem]]:
    """The tree of a file and what is wrong with its form; an empty file is an empty mapping."""
    name = str(path)
    empty = Node({}, name)
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except OSError as error:
        return empty, [
            Problem("configuration", f"the file cannot be read: {error.strerror or error}", "a readable file", name)
        ]
    except UnicodeDecodeError as error:
        return empty, [Problem("configuration", f"the file is not UTF-8 (byte {error.start})", "UTF-8 text", name)]
    except RecursionError:
        return empty, [Problem("configuration", "the file is nested too deeply", f"up to {_DEEPEST} levels", name)]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
        source = name if mark is None else f"{name}:{mark.line + 1}"
        return empty, [Problem("configuration", f"the file is not valid YAML: {reason}", "a YAML mapping", source)]
    if root is None:
        return empty, []
    reader = _Reader(name)
    node = reader.node(root, "", 0)
    if node.value is None:
        return empty, reader.problems
    if not isinstance(node.value, dict) and not reader.problems:
        reader.problems.append(
            Problem("configuration", f"the file holds {node.shape}, not a mapping", "a YAML mapping", node.source)
        )
    return (node if isinstance(node.value, dict) else empty), reader.problems


class _Reader:
    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[Problem] = []
        self.count = 0

    def node(self, found: yaml.Node, key: str, depth: int) -> Node:
        source = f"{self.name}:{found.start_mark.line + 1}"
        self.count += 1
        if depth > _DEEPEST or self.count > _MOST_NODES:
            # An alias inside its own anchor, or anchors that multiply.
            if not any(problem.accepted == _BOUNDED for problem in self.problems):
                self.problems.append(
                    Problem(key, "the file is nested too deeply or has too many values", _BOUNDED, source)
                )
            return Node(None, source)
        if found.tag not in _UNTAGGED:
            self.problems.append(Problem(key, f"the YAML tag '{found.tag}' is not accepted", "plain values", source))
            return Node(None, source)
        if isinstance(found, yaml.MappingNode):
            return Node(self._members(found, key, depth), source)
        if isinstance(found, yaml.SequenceNode):
            return Node([self.node(item, f"{key}[{i}]", depth + 1) for i, item in enumerate(found.value)], source)
        return Node(_scalar(found.value, getattr(found, "style", None)), source, found.value)

    def _members(self, found: yaml.MappingNode, key: str, depth: int) -> dict[str, Node]:
        members: dict[str, Node] = {}
        for name, value in found.value:
            source = f"{self.name}:{name.start_mark.line + 1}"
            if not isinstance(name, yaml.ScalarNode):
                self.problems.append(Problem(key, "a key of this mapping is not text", "text keys", source))
                continue
            full = f"{key}.{name.value}" if key else name.value
            if name.value in members:
                self.problems.append(Problem(full, "the key stands twice in the same mapping", "each key once", source))
                continue
            member = self.node(value, full, depth + 1)
            members[name.value] = Node(member.value, source, member.text)
        return members


def _scalar(text: str, style: str | None) -> Any:
    if style is not None:  # quoted
        return text
    if text in _NULL:
        return None
    if text in _BOOLEAN:
        return _BOOLEAN[text]
    if _INTEGER.fullmatch(text) and len(text) <= 40:
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text
