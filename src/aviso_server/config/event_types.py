"""The entries of `notification_schema`: event types, their storage policies and who may use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from aviso_server.config import literals
from aviso_server.config.lateness import read_lateness, with_notices
from aviso_server.config.reading import DURATION, SWITCH, read_literal, read_roles, read_section, read_words
from aviso_server.config.rules import check_names
from aviso_server.config.settings import Settings, StreamAuth
from aviso_server.config.tree import Findings, Node
from aviso_server.log.base import StoragePolicy
from aviso_server.model.definition import build_event_type
from aviso_server.model.lateness.notice import NAME as NOTICES
from aviso_server.model.lateness.watched import Watched
from aviso_server.model.schema import TOPIC_BASE, EventType

__all__ = ["read_event_types"]

SECTION = "notification_schema"
PLUGINS = ("ecpds",)
_MOST = 2**63 - 1
_SIZE = "digits above zero and one of K, Ki, M, Mi, G, Gi, T, Ti"
_BASE = "ASCII letters, digits, '_' and '-', starting with a letter or a digit"
_TEXTS = frozenset({"base", "canonical_format", "default", "description", "key_order", "type", "values"})


def read_event_types(root: Node, settings: Settings, findings: Findings) -> Settings:
    """The settings with all that the schema section says."""
    section = root.members.get(SECTION)
    configured = section is not None and section.value is not None
    if section is None or not configured:
        return msgspec.structs.replace(settings, strict=settings.notification_schema_strict or False)
    if not isinstance(section.value, dict):
        findings.refuse(SECTION, f"expected a mapping of event types, found {section.shape}", "a mapping")
    event_types: list[EventType] = []
    policies: dict[str, StoragePolicy] = {}
    stream_auth: dict[str, StreamAuth] = {}
    watched: list[Watched] = []
    for name, entry in section.members.items():
        key = f"{SECTION}.{name}"
        if not isinstance(entry.value, dict):
            findings.refuse(key, f"expected the definition of an event type, found {entry.shape}", "a mapping")
            continue
        event_type = _event_type(name, entry, findings)
        if event_type is not None:
            vertices = settings.limits.max_polygon_vertices
            event_types.append(msgspec.structs.replace(event_type, max_polygon_vertices=vertices))
        policy = _policy(entry, f"{key}.storage_policy", settings.notification_backend.kind, findings)
        if policy is not None and event_type is not None:
            policies[event_type.base] = policy
        auth = _auth(entry, f"{key}.auth", settings.auth.enabled, findings)
        if auth is not None:
            stream_auth[name] = auth
        expected = read_lateness(entry, f"{key}.lateness", event_type, findings)
        if expected is not None:
            watched.append(expected)
    _check_bases(section, findings)
    explicit = settings.notification_schema_strict
    known = msgspec.structs.replace(
        settings,
        event_types=tuple(event_types),
        schema_configured=True,
        strict=bool(section.members) if explicit is None else explicit,
        policies=policies,
        stream_auth=stream_auth,
        watched=tuple(watched),
    )
    return with_notices(known)


def _event_type(name: str, entry: Node, findings: Findings) -> EventType | None:
    event_type, problems = build_event_type(name, plain(entry))
    for problem in problems:
        findings.refuse(f"{SECTION}.{name}.{problem.key}", problem.message, problem.accepted)
    return event_type


def plain(node: Node, name: str = "") -> Any:
    """A node as plain values, with text where text is wanted and switches as true or false."""
    if isinstance(node.value, dict):
        return {key: plain(child, key) for key, child in node.members.items()}
    if isinstance(node.value, list):
        return [plain(item, name) for item in node.items]
    if name in _TEXTS and node.value is not None:
        return node.text
    if name == "required" and isinstance(node.text, str):
        try:
            return literals.switch(node.text)
        except ValueError:
            return node.value
    return node.value


def _check_bases(section: Node, findings: Findings) -> None:
    owners: dict[str, str] = {}
    for name, entry in section.members.items():
        topic = entry.find("topic")
        base, key = name, f"{SECTION}.{name}"
        if topic is not None:
            node, key = topic.find("base"), f"{key}.topic.base"
            if node is None or node.text is None:
                continue  # a topic without base is reported with the event type
            base = node.text
        if NOTICES in (name.lower(), base.lower()):
            message = f"'{NOTICES}' is reserved for what the server itself says about late notifications"
            findings.refuse(key, message, "another name")
        if not TOPIC_BASE.fullmatch(base):
            findings.refuse(key, f"invalid topic base '{base}'", _BASE)
        owner = owners.setdefault(base.lower(), name)
        if owner != name:
            findings.refuse(key, f"event types '{owner}' and '{name}' both define topic base '{base}'", "a base once")


def _policy(entry: Node, key: str, backend: str, findings: Findings) -> StoragePolicy | None:
    node = read_section(entry.find("storage_policy"), key, findings)
    if node is None:
        return None
    if entry.find("topic") is None:
        findings.refuse(key, "needs a topic section in the same event type", "an event type with topic")
    values: dict[str, Any] = {}
    for name, (field, parse, accepted) in _POLICY.items():
        member = node.find(name)
        if member is None:
            continue
        if backend == "in_memory":
            findings.refuse(f"{key}.{name}", "the in_memory backend cannot honour this", "sqlite or jetstream")
        value = read_literal(parse, member, f"{key}.{name}", accepted, findings)
        if value is not None:
            values[field] = value
    return StoragePolicy(**values)


def _more_than_none(text: str) -> int:
    number = literals.integer(text)
    if not 0 < number <= _MOST:
        raise ValueError(f"{text} is out of range")
    return number


_POLICY: Mapping[str, tuple[str, Any, str]] = {
    "retention_time": ("retention_ns", literals.duration, DURATION),
    "max_messages": ("max_messages", _more_than_none, f"a whole number from 1 to {_MOST}"),
    "max_size": ("max_bytes", literals.size, _SIZE),
    "allow_duplicates": ("allow_duplicates", literals.switch, SWITCH),
    "compression": ("compression", literals.switch, SWITCH),
}


def _auth(entry: Node, key: str, enabled: bool, findings: Findings) -> StreamAuth | None:
    node = read_section(entry.find("auth"), key, findings)
    if node is None:
        return None
    required = _required(node, f"{key}.required", findings)
    roles: dict[str, Mapping[str, tuple[str, ...]] | None] = {}
    for name in ("read_roles", "write_roles"):
        member = node.find(name)
        roles[name] = None if member is None else read_roles(member, f"{key}.{name}", findings)
        if member is None:
            continue
        if (given := roles[name]) is not None:
            check_names(given, f"{key}.{name}", findings)
        if not enabled:
            findings.refuse(f"{key}.{name}", "roles need auth.enabled: true", "no roles, or auth.enabled: true")
        elif required is False:
            findings.refuse(f"{key}.{name}", "roles need required: true in the same section", "required: true")
    if required and not enabled:
        findings.refuse(f"{key}.required", "needs auth.enabled: true", "false, or auth.enabled: true")
    plugins = _plugins(node, f"{key}.plugins", required, findings)
    return StreamAuth(required or False, roles["read_roles"], roles["write_roles"], plugins)


def _required(node: Node, key: str, findings: Findings) -> bool | None:
    member = node.find("required")
    if member is None:
        findings.refuse(key, "must be set when the auth section is there", SWITCH)
    return read_literal(literals.switch, member, key, SWITCH, findings)


def _plugins(node: Node, key: str, required: bool | None, findings: Findings) -> tuple[str, ...]:
    member = node.find("plugins")
    plugins = None if member is None else read_words(member, key, findings)
    if plugins is None:
        return ()
    if not plugins:
        findings.refuse(key, "the list is empty", ", ".join(PLUGINS))
    for place, name in enumerate(plugins):
        if name not in PLUGINS:
            findings.refuse(f"{key}[{place}]", f"unknown plugin '{name}'", ", ".join(PLUGINS))
    if required is False:
        findings.refuse(key, "plugins need required: true in the same section", "required: true")
    return plugins
