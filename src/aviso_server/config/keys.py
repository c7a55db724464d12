"""The keys a configuration may have, as the settings declare them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from aviso_server.config.literals import format_duration
from aviso_server.config.rule import Duration, Secret, Whole
from aviso_server.config.settings import DERIVED, Settings
from aviso_server.config.tree import Findings, Node
from aviso_server.errors import Problem

__all__ = ["ENTRY_KEYS", "Key", "check_unknown", "settings_keys"]

ENTRY_KEYS = (
    "identifier",
    "topic.base",
    "topic.key_order",
    "endpoint",
    "payload.required",
    "max_historical_notifications",
    "storage_policy.retention_time",
    "storage_policy.max_messages",
    "storage_policy.max_size",
    "storage_policy.allow_duplicates",
    "storage_policy.compression",
    "auth.required",
    "auth.read_roles",
    "auth.write_roles",
    "auth.plugins",
    "lateness.enabled",
    "lateness.by",
    "lateness.tolerance",
    "lateness.learn_days",
    "lateness.min_seen",
    "lateness.max_combinations",
)
"""The keys of a `notification_schema` entry."""

_FREE = frozenset({"identifier", "endpoint", "payload"})  # identifier and payload are the model's to check


class Key(msgspec.Struct, frozen=True):
    """One key: its dotted name, what kind of value it takes, and its default as one would write it."""

    name: str
    kind: str
    default: str


def settings_keys(kind: type[msgspec.Struct] = Settings, prefix: str = "") -> Iterator[Key]:
    """Every key that Settings reads, in the order of the file."""
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        if kind is Settings and field.name in DERIVED:
            continue
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from settings_keys(hint, f"{prefix}{field.name}.")
        else:
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            yield Key(prefix + field.name, _kind(hint), _written(default, hint))


def _kind(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        [hint] = [option for option in get_args(hint) if option is not NoneType]
    rule = None
    if get_origin(hint) is Annotated:
        hint, rule = get_args(hint)
    if isinstance(rule, Duration):
        return "duration"
    if isinstance(rule, Whole):
        return "integer"
    if get_origin(hint) is Literal:
        return " / ".join(get_args(hint))
    if hint is bool:
        return "boolean"
    if hint == tuple[str, ...]:
        return "list of texts"
    if hint is Secret:
        return "secret text"
    if isinstance(hint, type) and issubclass(hint, PurePath):
        return "path"
    return "text" if hint is str else "roles by realm"


def _written(default: Any, hint: Any) -> str:
    if default is None or default == () or default == {} or default == "":
        return "unset"
    if isinstance(default, bool):
        return str(default).lower()
    return format_duration(default) if _kind(hint) == "duration" else str(default)


def check_unknown(root: Node, findings: Findings) -> list[Problem]:
    """Warnings about keys that nothing reads; where such keys may not stand they are refused instead."""
    known = [key.name for key in settings_keys()]
    top = {name: child for name, child in root.members.items() if name != "notification_schema"}
    unknown = list(_unknown(Node(top, ""), "", {**_names(known), "notification_schema": {}}))
    aborting = {"auth", "ecpds"}
    entries = root.find("notification_schema")
    names = _names(list(ENTRY_KEYS))
    for event_type, entry in (entries.members if entries else {}).items():
        prefix = f"notification_schema.{event_type}"
        unknown += _unknown(entry, prefix, names)
        known += [f"{prefix}.{key}" for key in ENTRY_KEYS]
        aborting.add(f"{prefix}.auth")
    warnings: list[Problem] = []
    for section, name, siblings in unknown:
        key = f"{section}.{name}" if section else name
        if section in aborting:
            findings.refuse(key, "unknown key", ", ".join(siblings))
            continue
        near = _nearest(section, name, siblings) or _nearest("", key, known)
        advice = f"did you mean {near}?" if near else "it has no effect"
        warnings.append(Problem(key, f"unknown key, ignored; {advice}", source=root.source_of(key)))
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
