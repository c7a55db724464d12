"""Conversion of the tree to settings: every key as its annotation says, with errors that say what is accepted."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from aviso_server.config.settings import (
    DERIVED,
    Duration,
    LatenessEntry,
    Settings,
    Size,
    StoragePolicyEntry,
    StreamAuth,
    Text,
    Whole,
)
from aviso_server.config.sources import Findings, Node
from aviso_server.errors import Problem

__all__ = [
    "ENTRY_KEYS",
    "SWITCH",
    "check_unknown",
    "duration",
    "format_duration",
    "integer",
    "is_duration",
    "keys_of",
    "read_section",
    "read_struct",
    "settings_keys",
    "size",
    "switch",
]

T = TypeVar("T", bound=msgspec.Struct)

SWITCH = "true or false"
_DURATION = "digits and one of s, m, h, d, w, above zero, such as 90s or 7d"
_SIZE = "digits above zero and one of K, Ki, M, Mi, G, Gi, T, Ti"
_ROLES = "realms, each with a list of roles"
_WORDS = tuple[str, ...]
_TRUE = frozenset({"1", "true", "on", "yes"})
_FALSE = frozenset({"0", "false", "off", "no"})
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES = {f"{letter}{i}": (1024 if i else 1000) ** n for n, letter in enumerate("KMGT", 1) for i in ("", "i")}
_LARGEST = 2**63 - 1
_BEYOND = int("9" * 40)  # Python refuses to parse thousands of digits; a number of this length is out of every range


def switch(text: str) -> bool:
    """Parse a boolean."""
    word = text.lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(f"'{text}' is neither true nor false")
    return word in _TRUE


def integer(text: str) -> int:
    """Parse a whole number in decimal digits, with an optional sign."""
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ValueError(f"'{text}' is not a whole number")
    if len(text) > 40:
        return -_BEYOND if text.startswith("-") else _BEYOND
    return int(text)


def duration(text: str) -> int:
    """Parse a duration such as `90s`, `10m`, `12h`, `7d` or `2w`; returns nanoseconds."""
    found = re.fullmatch(r"([0-9]+)([smhdw])", text.strip().lower(), re.ASCII)
    if found is None:
        raise ValueError(f"'{text}' is not a duration with a unit")
    return _positive(text, found[1], _SECONDS[found[2]] * 1_000_000_000)


def size(text: str) -> int:
    """Parse a size such as `500K`, `64Mi` or `2G`; returns bytes. `Ki`, `Mi`, `Gi` and `Ti` count in 1024s."""
    found = re.fullmatch(r"([0-9]+)([KMGT]i?)", text.strip(), re.ASCII)
    if found is None:
        raise ValueError(f"'{text}' is not a size with a unit")
    return _positive(text, found[1], _BYTES[found[2]])


def _positive(text: str, digits: str, unit: int) -> int:
    number = integer(digits)
    if number == 0:
        raise ValueError(f"'{text}' must be greater than zero")
    if number * unit > _LARGEST:
        raise ValueError(f"'{text}' is too large")
    return number * unit


def format_duration(nanoseconds: int) -> str:
    """Write a duration of whole seconds in its shortest form."""
    seconds = nanoseconds // 1_000_000_000
    for unit in ("w", "d", "h", "m"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{seconds // _SECONDS[unit]}{unit}"
    return f"{seconds}s"


def read_struct(kind: type[T], node: Node, key: str, findings: Findings) -> T:
    """Convert the keys under `key`; a value that cannot be used is reported and its default stands in."""
    values: dict[str, Any] = {}
    for name, hint in keys_of(kind).items():
        member = node.find(name)
        if member is None:
            continue
        full = f"{key}.{name}" if key else name
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            value = read_struct(hint, member, full, findings) if read_section(member, full, findings) else None
        else:
            value = _read_value(hint, member, full, findings)
        if value is not None:
            values[name] = value
    return kind(**values)


def read_section(node: Node | None, key: str, findings: Findings) -> Node | None:
    """Return the node if it has keys of its own; None if it is absent, or after reporting that it has none."""
    if node is None or isinstance(node.value, dict):
        return node
    findings.refuse(key, f"expected a section with keys of its own, found {node.shape}", "a mapping")
    return None


class _Refused(Exception):
    """The value cannot be converted; carries the message and what is accepted."""


def _read_value(hint: Any, node: Node, key: str, findings: Findings) -> Any:
    kind, rule = _split(hint)
    if kind == Mapping[str, _WORDS]:
        return _read_roles(node, key, findings)
    if kind == _WORDS:
        return _read_words(node, key, findings)
    try:
        return _convert(kind, rule, node)
    except _Refused as refusal:
        findings.refuse(key, *refusal.args)
        return None


def _split(hint: Any) -> tuple[Any, Any]:
    """Return the type and the rule of an annotation, without None."""
    if get_origin(hint) in (Union, UnionType):
        hint = next(option for option in get_args(hint) if option is not NoneType)
    if get_origin(hint) is Annotated:
        kind, rule = get_args(hint)
        return kind, rule
    return hint, None


def _convert(kind: Any, rule: Any, node: Node) -> Any:
    if isinstance(rule, Duration):
        return _literal(duration, node, _DURATION)
    if isinstance(rule, Size):
        return _literal(size, node, _SIZE)
    if kind is bool:
        return _literal(switch, node, SWITCH)
    if kind is int:
        return _whole(rule or Whole(), node)
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        text = _text(Text(), node, ", ".join(choices))
        if text not in choices:
            raise _Refused(f"unknown value '{text}'", ", ".join(choices))
        return text
    if kind is Path:
        return Path(_text(Text(blank=False), node))
    return kind(_text(rule or Text(), node))


def _literal(parse: Callable[[str], Any], node: Node, accepted: str) -> Any:
    if node.text is None:
        raise _Refused(f"expected one value, found {node.shape}", accepted)
    try:
        return parse(node.text)
    except ValueError as error:
        raise _Refused(str(error), accepted) from None


def _whole(rule: Whole, node: Node) -> int:
    number: int = _literal(integer, node, rule.accepted)
    if number > rule.maximum:
        raise _Refused(f"{node.text} is too large", f"a whole number from {rule.minimum} to {rule.maximum}")
    if number < rule.minimum:
        raise _Refused(f"{node.text} is out of range", rule.accepted)
    return number


def _text(rule: Text, node: Node, accepted: str = "text") -> str:
    # Messages about text do not repeat it: it may be a password.
    if node.text is None:
        raise _Refused(f"expected text, found {node.shape}", accepted)
    if not rule.blank and not node.text.strip():
        raise _Refused("must not be blank", accepted)
    if not rule.padded and node.text != node.text.strip():
        raise _Refused("must not begin or end with blanks", accepted)
    return node.text


def _read_words(node: Node, key: str, findings: Findings) -> tuple[str, ...] | None:
    """Convert a list of texts; the environment cannot supply one."""
    if not isinstance(node.value, list):
        findings.refuse(key, f"expected a list, found {node.shape}", "a list of texts, from a file")
        return None
    for place, item in enumerate(node.items):
        if item.text is None or item.value is None:
            findings.refuse(f"{key}[{place}]", f"expected text, found {item.shape}", "text")
    return tuple(item.text for item in node.items if item.text is not None and item.value is not None)


def _read_roles(node: Node, key: str, findings: Findings) -> Mapping[str, tuple[str, ...]] | None:
    if not isinstance(node.value, dict):
        findings.refuse(key, f"expected a mapping, found {node.shape}", _ROLES)
        return None
    roles = {realm: _read_words(member, f"{key}.{realm}", findings) for realm, member in node.members.items()}
    return {realm: names for realm, names in roles.items() if names is not None}


def keys_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the keys of a section with their annotations."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint for name, hint in hints.items() if kind is not Settings or name not in DERIVED}


def settings_keys(kind: type[msgspec.Struct] = Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the annotation of every key that is read, in the order of the file."""
    for name, hint in keys_of(kind).items():
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from settings_keys(hint, f"{prefix}{name}.")
        else:
            yield prefix + name, hint


def is_duration(hint: Any) -> bool:
    """Tell whether a key is kept in nanoseconds."""
    return isinstance(_split(hint)[1], Duration)


_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "storage_policy": StoragePolicyEntry,
    "auth": StreamAuth,
    "lateness": LatenessEntry,
}
ENTRY_KEYS = (
    *("identifier", "topic.base", "topic.key_order", "endpoint", "payload.required", "max_historical_notifications"),
    *(f"{section}.{name}" for section, kind in _SECTIONS.items() for name in keys_of(kind)),
)
"""The keys of a `notification_schema` entry; the model checks those of the first line."""

_RETIRED = {"notification_backend.jetstream.enable_auto_reconnect": "the server always connects again"}
_FREE = frozenset({"identifier", "endpoint", "payload"})  # identifier and payload are checked with the event type


def check_unknown(root: Node, findings: Findings) -> list[Problem]:
    """Return warnings about keys that nothing reads; where such keys may not stand they are refused instead."""
    known = [name for name, _ in settings_keys()]
    top = {name: child for name, child in root.members.items() if name != "notification_schema"}
    unknown = list(_unknown(Node(top, ""), "", {**_names(known), "notification_schema": {}}))
    aborting = {"auth", "ecpds"}
    entries = root.find("notification_schema")
    for event_type, entry in (entries.members if entries else {}).items():
        prefix = f"notification_schema.{event_type}"
        unknown += _unknown(entry, prefix, _names(list(ENTRY_KEYS)))
        known += [f"{prefix}.{key}" for key in ENTRY_KEYS]
        aborting.add(f"{prefix}.auth")
    warnings: list[Problem] = []
    for section, name, siblings in unknown:
        key = f"{section}.{name}" if section else name
        if section in aborting:
            findings.refuse(key, "unknown key", ", ".join(siblings))
            continue
        if key in _RETIRED:
            message = f"no longer used, ignored; {_RETIRED[key]}"
        else:
            near = _nearest(section, name, siblings) or _nearest("", key, known)
            message = f"unknown key, ignored; {f'did you mean {near}?' if near else 'it has no effect'}"
        warnings.append(Problem(key, message, source=root.source_of(key)))
    return warnings


def _nearest(section: str, name: str, accepted: list[str]) -> str | None:
    near = difflib.get_close_matches(name.lower(), accepted, n=1)
    return ".".join(filter(None, (section, near[0]))) if near else None


def _names(known: list[str]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for key in known:
        level = names
        for name in key.split("."):
            level = level.setdefault(name, {})
    return names


def _unknown(node: Node, section: str, names: dict[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    for name, child in node.members.items():
        if name not in names:
            yield section, name, list(names)
        elif names[name] and name not in _FREE:
            yield from _unknown(child, f"{section}.{name}" if section else name, names[name])
