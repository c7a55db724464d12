"""From the tree to a settings value: every key converted on demand to what its annotation asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from aviso_server.config import literals
from aviso_server.config.rule import Duration, Text, Whole
from aviso_server.config.tree import Findings, Node

__all__ = [
    "DURATION",
    "SWITCH",
    "read_literal",
    "read_roles",
    "read_section",
    "read_struct",
    "read_value",
    "read_words",
]

T = TypeVar("T", bound=msgspec.Struct)
V = TypeVar("V")

SWITCH = "true or false"
DURATION = "digits and one of s, m, h, d, w, above zero, such as 90s or 7d"
_ROLES = "realms, each with a list of roles"


class _Refused(Exception):
    """The value cannot be converted; carries the message and what is accepted."""


def read_struct(kind: type[T], node: Node, key: str, findings: Findings, skip: frozenset[str] = frozenset()) -> T:
    """The settings under `key`; a value that cannot be used is reported and its default stands in."""
    hints = get_type_hints(kind, include_extras=True)
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        member = node.members.get(field.name)
        if member is None or member.value is None or field.name in skip:
            continue
        full = f"{key}.{field.name}" if key else field.name
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            if read_section(member, full, findings) is not None:
                values[field.name] = read_struct(hint, member, full, findings)
            continue
        value = read_value(hint, member, full, findings)
        if value is not None:
            values[field.name] = value
    return kind(**values)


def read_section(node: Node | None, key: str, findings: Findings) -> Node | None:
    """The node if it has keys of its own; None if it is not there, or after reporting that it has none."""
    if node is None or isinstance(node.value, dict):
        return node
    findings.refuse(key, f"expected a section with keys of its own, found {node.shape}", "a mapping")
    return None


def read_literal(parse: Callable[[str], V], node: Node | None, key: str, accepted: str, findings: Findings) -> V | None:
    """What a text stands for; None if it is not there, or after reporting why it stands for nothing."""
    if node is None:
        return None
    try:
        return parse(node.text if node.text is not None else node.shape)
    except ValueError as error:
        findings.refuse(key, str(error), accepted)
        return None


def read_value(hint: Any, node: Node, key: str, findings: Findings) -> Any:
    """The value of one key, or None after reporting why it is not acceptable."""
    kind, rule = _without_none(hint)
    if kind == Mapping[str, tuple[str, ...]]:
        return read_roles(node, key, findings)
    if kind == tuple[str, ...]:
        return read_words(node, key, findings)
    try:
        return _convert(kind, rule, node)
    except _Refused as refusal:
        findings.refuse(key, *refusal.args)
        return None


def _without_none(hint: Any) -> tuple[Any, Any]:
    if get_origin(hint) in (Union, UnionType):
        [hint] = [option for option in get_args(hint) if option is not NoneType]
    if get_origin(hint) is Annotated:
        kind, rule = get_args(hint)
        return kind, rule
    return hint, None


def _convert(kind: Any, rule: Any, node: Node) -> Any:
    if isinstance(rule, Duration):
        return _literal(literals.duration, node, DURATION)
    if kind is bool:
        return node.value if isinstance(node.value, bool) else _literal(literals.switch, node, SWITCH)
    if kind is int:
        return _whole(rule or Whole(), node)
    if get_origin(kind) is Literal:
        return _choice(get_args(kind), node)
    if kind is Path:
        return Path(_text(Text(blank=False), node))
    return kind(_text(rule or Text(), node))


def _literal(parse: Any, node: Node, accepted: str) -> Any:
    if node.text is None:
        raise _Refused(f"expected one value, found {node.shape}", accepted)
    try:
        return parse(node.text)
    except ValueError as error:
        raise _Refused(str(error), accepted) from None


def _whole(rule: Whole, node: Node) -> int:
    number: int = _literal(literals.integer, node, rule.accepted)
    if number > rule.maximum:
        raise _Refused(f"{node.text} is too large", f"a whole number from {rule.minimum} to {rule.maximum}")
    if number < rule.minimum:
        raise _Refused(f"{node.text} is out of range", rule.accepted)
    return number


def _choice(choices: tuple[str, ...], node: Node) -> str:
    accepted = ", ".join(choices)
    text = _text(Text(), node, accepted)
    if text not in choices:
        raise _Refused(f"unknown value '{text}'", accepted)
    return text


def _text(rule: Text, node: Node, accepted: str = "text") -> str:
    # Messages about text do not repeat it: it may be a password.
    if node.text is None:
        raise _Refused(f"expected text, found {node.shape}", accepted)
    if not rule.blank and not node.text.strip():
        raise _Refused("must not be blank", accepted)
    if not rule.padded and node.text != node.text.strip():
        raise _Refused("must not begin or end with blanks", accepted)
    return node.text


def read_words(node: Node, key: str, findings: Findings) -> tuple[str, ...] | None:
    """A list of texts; the environment cannot supply one."""
    if not isinstance(node.value, list):
        findings.refuse(key, f"expected a list, found {node.shape}", "a list of texts, from a file")
        return None
    words: list[str] = []
    for place, item in enumerate(node.items):
        if item.text is None or item.value is None:
            findings.refuse(f"{key}[{place}]", f"expected text, found {item.shape}", "text")
        else:
            words.append(item.text)
    return tuple(words)


def read_roles(node: Node, key: str, findings: Findings) -> Mapping[str, tuple[str, ...]] | None:
    """Realms with their roles."""
    if not isinstance(node.value, dict):
        findings.refuse(key, f"expected a mapping, found {node.shape}", _ROLES)
        return None
    roles = {realm: read_words(member, f"{key}.{realm}", findings) for realm, member in node.members.items()}
    return {realm: names for realm, names in roles.items() if names is not None}
