"""Files and environment as one tree, whose every node knows its file and line or its variable."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from aviso_server.errors import Problem

__all__ = ["Findings", "Node", "gather", "read_yaml"]


class Node(msgspec.Struct, frozen=True):
    """One value of a configuration with the file and line, or the variable, it came from."""

    value: Any  # dict of nodes, list of nodes, or a scalar
    source: str
    text: str | None = None  # a scalar as written, so that 0001 stays 0001 where text is wanted

    @property
    def members(self) -> dict[str, Node]:
        """Return the members of a mapping; none for anything else."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[Node]:
        """Return the items of a list; none for anything else."""
        return self.value if isinstance(self.value, list) else []

    @property
    def shape(self) -> str:
        """Describe the value for a message."""
        if isinstance(self.value, dict):
            return "a mapping"
        if isinstance(self.value, list):
            return "a list"
        return "empty" if self.value is None else f"'{self.text}'"

    def find(self, key: str) -> Node | None:
        """Return the node under a dotted key; null counts as absent."""
        node = self
        for name in key.split("."):
            found = node.members.get(name)
            if found is None or found.value is None:
                return None
            node = found
        return node

    def source_of(self, key: str) -> str:
        """Return the source of a key or, if it is absent, of the mapping it would stand in."""
        for name in sorted(self.members, key=len, reverse=True):  # names may contain dots: the longest fits best
            if key == name or key.startswith((f"{name}.", f"{name}[")):
                return self.members[name].source_of(key[len(name) :].lstrip("."))
        if key.startswith("[") and self.items:
            index, _, rest = key[1:].partition("]")
            if index.isdecimal() and int(index) < len(self.items):
                return self.items[int(index)].source_of(rest.lstrip("."))
        return self.source

    def over(self, older: Node) -> Node:
        """Lay this node over an older one: mappings are joined key by key, anything else replaces."""
        if not isinstance(self.value, dict) or not isinstance(older.value, dict):
            return self
        joined = dict(older.value)
        for name, node in self.value.items():
            joined[name] = node.over(joined[name]) if name in joined else node
        return Node(joined, self.source)


class Findings:
    """Collects the problems of a configuration, to report all of them at once."""

    def __init__(self, root: Node) -> None:
        self.root = root
        self.problems: list[Problem] = []
        self._keys: set[str] = set()

    def refuse(self, key: str, message: str, accepted: str = "") -> None:
        """Report a problem with the key, naming its source."""
        self._keys.add(key)
        self.problems.append(Problem(key, message, accepted, self.root.source_of(key)))

    def broken(self, key: str) -> bool:
        """Tell whether the key has a problem already."""
        return key in self._keys


_PREFIX = "AVISOSERVER_"
_CONFIG_FILE = "AVISOSERVER_CONFIG_FILE"
_NO_KEYS = frozenset({_CONFIG_FILE.lower(), "avisoserver_log"})


def read_environment(environ: Mapping[str, str]) -> tuple[Node, list[Problem]]:
    """Read variables as a tree: names in any case, `__` between levels, every value text."""
    root = Node({}, "")
    problems: list[Problem] = []
    for variable in sorted(environ):
        name = variable.lower()
        if not name.startswith(_PREFIX.lower()) or name in _NO_KEYS:
            continue
        levels = name[len(_PREFIX) :].split("__")
        value = environ[variable]
        if not _is_unicode(value):
            problems.append(Problem(".".join(levels), "the value is not Unicode text", "UTF-8 text", variable))
            continue
        root = _nested(levels, value, variable).over(root)
    return root, problems


def _nested(levels: list[str], value: str, source: str) -> Node:
    node = Node(value, source, value)
    for level in reversed(levels):
        node = Node({level: node}, source)
    return node


def _is_unicode(text: str) -> bool:
    # Python keeps bytes that are no UTF-8 as lone surrogates
    return not any("\ud800" <= character <= "\udfff" for character in text)


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
    """Read a file as a tree, with the problems of its form; an empty file is an empty mapping."""
    name = source = str(path)
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except OSError as error:
        message, accepted = f"the file cannot be read: {error.strerror or error}", "a readable file"
    except UnicodeDecodeError as error:
        message, accepted = f"the file is not UTF-8 (byte {error.start})", "UTF-8 text"
    except RecursionError:
        message, accepted = "the file is nested too deeply", f"up to {_DEEPEST} levels"
    except yaml.YAMLError as error:
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
        message, accepted = f"the file is not valid YAML: {reason}", "a YAML mapping"
        if (mark := getattr(error, "problem_mark", None)) is not None:
            source = f"{name}:{mark.line + 1}"
    else:
        return _tree(root, name)
    return Node({}, name), [Problem("configuration", message, accepted, source)]


def _tree(root: yaml.Node | None, name: str) -> tuple[Node, list[Problem]]:
    empty = Node({}, name)
    if root is None:
        return empty, []
    reader = _YamlReader(name)
    node = reader.node(root, "", 0)
    if node.value is None:
        return empty, reader.problems
    if not isinstance(node.value, dict) and not reader.problems:
        reader.problems.append(
            Problem("configuration", f"the file holds {node.shape}, not a mapping", "a YAML mapping", node.source)
        )
    return (node if isinstance(node.value, dict) else empty), reader.problems


class _YamlReader:
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


_COMMAND_LINE = "command line"
_FILE = "the path of a YAML file"


def gather(
    environ: Mapping[str, str], file: Path | None, given: Mapping[str, str] | None = None
) -> tuple[Node, list[Problem]]:
    """Merge files, environment and what is `given` on top into one tree, with the problems of their form."""
    files, problems = _files(environ, file)
    root = Node({}, "")
    for path in files:
        tree, found = read_yaml(path)
        root = tree.over(root)
        problems += found
    variables, found = read_environment(environ)
    root = variables.over(root)
    for key, value in (given or {}).items():
        root = _nested(key.split("."), value, _COMMAND_LINE).over(root)
    return root, problems + found


def _files(environ: Mapping[str, str], file: Path | None) -> tuple[list[Path], list[Problem]]:
    named, source = environ.get(_CONFIG_FILE), ""
    if file is not None:
        paths = [file]
    elif named is None:
        # a folder is taken for a file and refused: leaving it out would start a server with other settings
        paths = [path for path in _usual(environ) if path.is_file() or path.is_dir()]
    elif not _is_unicode(named):
        return [], [Problem("configuration", "the path is not Unicode text", _FILE, _CONFIG_FILE)]
    elif not named.strip():
        return [], [Problem("configuration", "the path is blank", f"{_FILE}, or unset", _CONFIG_FILE)]
    else:
        paths, source = [Path(named)], _CONFIG_FILE
    unusable = [Problem(str(path), _no_file(path), _FILE, source) for path in paths if not path.is_file()]
    return [path for path in paths if path.is_file()], unusable


def _no_file(path: Path) -> str:
    if path.is_dir():
        return "is a folder, not a file"
    return "is not a file" if path.exists() else "there is no such file"


def _usual(environ: Mapping[str, str]) -> list[Path]:
    usual = [Path("configuration/config.yaml"), Path("/etc/aviso_server/config.yaml")]
    home = environ.get("HOME")
    return [*usual, Path(home) / ".aviso_server" / "config.yaml"] if home else usual
