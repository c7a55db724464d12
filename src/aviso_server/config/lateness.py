"""The `lateness` section of an event type: what of it is expected, and what becomes of the alarms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from aviso_server.config import literals
from aviso_server.config.reading import DURATION, SWITCH, read_literal, read_section, read_words
from aviso_server.config.settings import Settings, StreamAuth
from aviso_server.config.tree import Findings, Node
from aviso_server.log.base import StoragePolicy
from aviso_server.model.lateness.notice import EVENT_TYPE, NAME
from aviso_server.model.lateness.watched import Watched, date_field, default_fields
from aviso_server.model.schema import EventType
from aviso_server.model.timestamp import SECOND

__all__ = ["read_lateness", "with_notices"]

_KEPT = 30 * 86_400 * SECOND  # how long the log keeps alarms


def read_lateness(entry: Node, key: str, event_type: EventType | None, findings: Findings) -> Watched | None:
    """What is to be watched of an event type; None if nothing is."""
    node = read_section(entry.find("lateness"), key, findings)
    if node is None:
        return None
    enabled = _value(node, key, "enabled", findings)
    if enabled is None and not findings.broken(f"{key}.enabled"):
        findings.refuse(f"{key}.enabled", "must be set when the lateness section is there", SWITCH)
    given = {name: _value(node, key, name, findings) for name in _VALUES if name != "enabled"}
    by = _fields(node, f"{key}.by", event_type, findings)
    if not enabled or event_type is None or by is None:
        return None
    watched = Watched(
        event_type=event_type.name,
        stream=event_type.base,
        by=by,
        date=date_field(event_type.fields),
        **{name: value for name, value in given.items() if value is not None},
    )
    if watched.min_seen > watched.learn_days:
        message = f"nothing comes on {watched.min_seen} of {watched.learn_days} days"
        findings.refuse(f"{key}.min_seen", message, f"at most learn_days, {watched.learn_days}")
    return watched


def with_notices(settings: Settings) -> Settings:
    """The settings with the event type of the alarms, if there can be any.

    Alarms show identifiers: only those may read them who may read all of the event types that they are about.
    """
    if not settings.watched:
        return settings
    rules = [settings.stream_auth.get(each.event_type) for each in settings.watched]
    guards = [rule for rule in rules if rule is not None and rule.required]
    guarded = {}
    if guards:
        same = all((rule.read_roles, rule.plugins) == (guards[0].read_roles, ()) for rule in guards)
        guarded[NAME] = StreamAuth(True, guards[0].read_roles if same else {}, {})
    kept = {} if settings.notification_backend.kind == "in_memory" else {NAME: StoragePolicy(retention_ns=_KEPT)}
    return msgspec.structs.replace(
        settings,
        event_types=(*settings.event_types, EVENT_TYPE),
        policies={**settings.policies, **kept},
        stream_auth={**settings.stream_auth, **guarded},
    )


def _fields(node: Node, key: str, event_type: EventType | None, findings: Findings) -> tuple[str, ...] | None:
    member = node.find("by")
    if event_type is None:
        return None
    usable = default_fields(event_type.fields)
    if member is None:
        if not usable:
            findings.refuse(key, "only dates and shapes are declared under identifier", "a field of another type")
        return usable
    by = read_words(member, key, findings)
    if by is None:
        return None
    accepted = ", ".join(usable) or "no field of this event type"
    if not by:
        findings.refuse(key, "the list is empty", accepted)
    for place, name in enumerate(by):
        if name not in event_type.fields:
            findings.refuse(f"{key}[{place}]", f"'{name}' is not declared under identifier", accepted)
        elif name not in usable:
            findings.refuse(f"{key}[{place}]", f"'{name}' is a date or a shape", accepted)
        elif name in by[:place]:
            findings.refuse(f"{key}[{place}]", f"'{name}' is listed twice", "each field once")
    return by


def _value(node: Node, key: str, name: str, findings: Findings) -> Any:
    parse, accepted = _VALUES[name]
    return read_literal(parse, node.find(name), f"{key}.{name}", accepted, findings)


def _seconds(text: str) -> int:
    return literals.duration(text) // SECOND


def _between(least: int, most: int) -> Any:
    def parse(text: str) -> int:
        number = literals.integer(text)
        if not least <= number <= most:
            raise ValueError(f"{text} is out of range")
        return number

    return parse, f"a whole number from {least} to {most}"


_VALUES: Mapping[str, tuple[Any, str]] = {
    "enabled": (literals.switch, SWITCH),
    "tolerance": (_seconds, DURATION),
    "learn_days": _between(7, 400),
    "min_seen": _between(2, 400),
    "max_combinations": _between(1, 100_000),
}
