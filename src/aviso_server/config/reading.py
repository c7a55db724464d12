"""From the tree to settings: every key as its annotation says, event types, problems and warnings."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from aviso_server.config.checks import check_auth, check_ecpds, check_names, check_sections, log_level, mask_credentials
from aviso_server.config.settings import (
    DERIVED,
    Deployment,
    Duration,
    LatenessEntry,
    Secret,
    Settings,
    Size,
    StoragePolicyEntry,
    StreamAuth,
    Text,
    Whole,
)
from aviso_server.config.sources import Findings, Node, gather
from aviso_server.errors import ConfigError, Problem
from aviso_server.log.base import StoragePolicy
from aviso_server.model.event_type import TOPIC_BASE, EventType, build_event_type
from aviso_server.model.fields import SpatialField
from aviso_server.model.lateness import EVENT_TYPE as ALARMS
from aviso_server.model.lateness import Watched, date_field, default_fields
from aviso_server.model.times import SECOND

__all__ = [
    "ENTRY_KEYS", "Inspection", "duration", "format_duration", "inspect", "integer", "load", "settings_keys", "shown",
    "size", "switch",
]  # fmt: skip

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


_ADDRESS = frozenset({"application.host", "application.port"})
_EVERY_ADDRESS = {"0.0.0.0": "localhost", "::": "localhost"}  # listening on all of them: a name that leads to one
_NOT_OUTSIDE = ("0.0.0.0", "::", "127.0.0.1", "::1", "localhost")  # hosts that mean another machine elsewhere
_SHORTEST_SECRET = 32  # bytes; HS256 is no stronger than its key
_SCHEMA = "notification_schema"
_PLUGINS = ("ecpds",)
_BASE = "ASCII letters, digits, '_' and '-', starting with a letter or a digit"
_TEXTS = frozenset({"base", "canonical_format", "default", "description", "key_order", "type", "values"})
_ALARM_RETENTION = 30 * 86_400 * SECOND


class Inspection(msgspec.Struct, frozen=True):
    """The settings of a configuration, its problems and its warnings; usable if there are no problems."""

    settings: Settings
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


def load(environ: Mapping[str, str], file: Path | None = None, given: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of a server; raises ConfigError with every problem if they cannot be used.

    `file` stands for `AVISOSERVER_CONFIG_FILE`: only that file is read, and the environment on top of it. `given` are
    values of the command line by dotted key, which win over both.
    """
    found = inspect(environ, file, given)
    if found.problems:
        raise ConfigError(list(found.problems))
    return found.settings


def inspect(environ: Mapping[str, str], file: Path | None = None, given: Mapping[str, str] | None = None) -> Inspection:
    """Return settings, problems and warnings of a configuration; defaults stand in for what is broken."""
    root, problems = gather(environ, file, given or {})
    findings = Findings(root)
    settings = read_struct(Settings, root, "", findings)
    if _ADDRESS & (given or {}).keys() and root.find("application.base_url") is None:
        settings = _named_by_address(settings)
    settings = _with_event_types(root, settings, findings)
    check_sections(settings, findings)
    check_auth(settings.auth, findings)
    check_ecpds(root, settings, findings)
    settings, warnings = _with_variables(settings, environ)
    warnings += [*check_unknown(root, findings), *_unrouted_fields(root, settings), *_weak_secret(root, settings)]
    warnings += _unreachable(root, settings)
    settings = msgspec.structs.replace(settings, warnings=tuple(map(str, warnings)))
    return Inspection(settings, (*problems, *findings.problems), tuple(warnings))


def shown(settings: Settings) -> dict[str, Any]:
    """Return keys and values without secrets, ready for JSON; event types by name."""
    return {**_shown(settings), _SCHEMA: [event_type.name for event_type in settings.event_types]}


def _shown(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        members = {name: (getattr(value, name), hint) for name, hint in keys_of(type(value)).items()}
        return {
            name: format_duration(member) if member is not None and is_duration(hint) else _shown(member)
            for name, (member, hint) in members.items()
        }
    if isinstance(value, Secret):
        return "[REDACTED]" if value else ""
    if isinstance(value, str):
        return mask_credentials(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, tuple):
        return [_shown(item) for item in value]
    return {name: _shown(member) for name, member in value.items()} if isinstance(value, dict) else value


def _named_by_address(settings: Settings) -> Settings:
    """Set the base URL to where the server will listen, as far as that is known."""
    application = settings.application
    host = _EVERY_ADDRESS.get(application.host, application.host)
    if application.port == 0:
        return settings
    url = f"http://[{host}]:{application.port}" if ":" in host else f"http://{host}:{application.port}"
    return msgspec.structs.replace(settings, application=msgspec.structs.replace(application, base_url=url))


def _with_variables(settings: Settings, environ: Mapping[str, str]) -> tuple[Settings, list[Problem]]:
    """Add what other variables than AVISOSERVER_… say, and warn of those that cannot be read."""
    level, modules, warning = log_level(environ, settings.logging.level)
    backend = settings.notification_backend
    token = environ.get("NATS_TOKEN")
    if backend.jetstream.token is None and token:
        jetstream = msgspec.structs.replace(backend.jetstream, token=Secret(token))
        backend = msgspec.structs.replace(backend, jetstream=jetstream)
    settings = msgspec.structs.replace(
        settings,
        notification_backend=backend,
        log_level=level,
        log_levels=modules,
        deployment=Deployment(
            namespace=environ.get("K8S_NAMESPACE_NAME") or None,
            pod=environ.get("K8S_POD_NAME") or environ.get("HOSTNAME") or None,
        ),
    )
    return settings, [] if warning is None else [warning]


def _weak_secret(root: Node, settings: Settings) -> list[Problem]:
    key, length = "auth.jwt_secret", len(settings.auth.jwt_secret.encode())
    if not settings.auth.enabled or not 0 < length < _SHORTEST_SECRET:
        return []
    message = f"is only {length} bytes long and could be guessed"
    return [Problem(key, message, f"{_SHORTEST_SECRET} random bytes or more", root.source_of(key))]


def _unreachable(root: Node, settings: Settings) -> list[Problem]:
    """Warn of workers on other machines that would look for this server on their own."""
    archive, host = settings.archive, settings.application.host
    if not archive.enabled or archive.url is not None or archive.spark.startswith("local") or host not in _NOT_OUTSIDE:
        return []
    message = f"is not set: workers of {archive.spark} reach this server at '{host}' only if they are on its machine"
    return [Problem("archive.url", message, "the address of this server as workers see it", root.source_of("archive"))]


def _unrouted_fields(root: Node, settings: Settings) -> list[Problem]:
    """Warn of fields that topics leave out: other servers of this protocol lose them."""
    warnings: list[Problem] = []
    for event_type in settings.event_types:
        key = f"{_SCHEMA}.{event_type.name}.topic.key_order"
        left_out = [
            name
            for name, field in event_type.fields.items()
            if name not in event_type.key_order and not isinstance(field, SpatialField)
        ]
        if left_out and event_type is not ALARMS:
            message = f"leaves out {', '.join(left_out)}; they are stored and can be filtered, but are not in the topic"
            warnings.append(Problem(key, message, source=root.source_of(key)))
    return warnings


def _with_event_types(root: Node, settings: Settings, findings: Findings) -> Settings:
    """Add everything that `notification_schema` says."""
    section = root.find(_SCHEMA)
    if section is None:
        return msgspec.structs.replace(settings, strict=settings.notification_schema_strict or False)
    if not isinstance(section.value, dict):
        findings.refuse(_SCHEMA, f"expected a mapping of event types, found {section.shape}", "a mapping")
    event_types: list[EventType] = []
    policies: dict[str, StoragePolicy] = {}
    stream_auth: dict[str, StreamAuth] = {}
    watched: list[Watched] = []
    for name, entry in section.members.items():
        key = f"{_SCHEMA}.{name}"
        if not isinstance(entry.value, dict):
            findings.refuse(key, f"expected the definition of an event type, found {entry.shape}", "a mapping")
            continue
        event_type, problems = build_event_type(name, _plain(entry))
        for problem in problems:
            findings.refuse(f"{key}.{problem.key}", problem.message, problem.accepted)
        if event_type is not None:
            vertices = settings.limits.max_polygon_vertices
            event_types.append(msgspec.structs.replace(event_type, max_polygon_vertices=vertices))
            if "point_cloud" in event_type.fields and entry.find("topic") is None:
                findings.refuse(f"{key}.topic", "must be set: the event type has a point cloud", "base and key_order")
        policy = _policy(entry, f"{key}.storage_policy", settings.notification_backend.kind, findings)
        if policy is not None and event_type is not None:
            policies[event_type.base] = policy
        auth = _auth(entry, f"{key}.auth", settings.auth.enabled, findings)
        if auth is not None:
            stream_auth[name] = auth
        expected = _lateness(entry, f"{key}.lateness", event_type, findings)
        if expected is not None:
            watched.append(expected)
    _check_bases(section, findings)
    explicit = settings.notification_schema_strict
    return _with_alarms(
        msgspec.structs.replace(
            settings,
            event_types=tuple(event_types),
            schema_configured=True,
            strict=bool(section.members) if explicit is None else explicit,
            policies=policies,
            stream_auth=stream_auth,
            watched=tuple(watched),
        )
    )


def _plain(node: Node, name: str = "") -> Any:
    """Return a node as plain values, with text where text is wanted and switches as true or false."""
    if isinstance(node.value, dict):
        return {key: _plain(child, key) for key, child in node.members.items()}
    if isinstance(node.value, list):
        return [_plain(item, name) for item in node.items]
    if name in _TEXTS and node.value is not None:
        return node.text
    if name == "required" and isinstance(node.text, str):
        try:
            return switch(node.text)
        except ValueError:
            return node.value
    return node.value


def _check_bases(section: Node, findings: Findings) -> None:
    owners: dict[str, str] = {}
    for name, entry in section.members.items():
        topic = entry.find("topic")
        base, key = name, f"{_SCHEMA}.{name}"
        if topic is not None:
            node, key = topic.find("base"), f"{key}.topic.base"
            if node is None or node.text is None:
                continue  # a topic without base is reported with the event type
            base = node.text
        if ALARMS.name in (name.lower(), base.lower()):
            message = f"'{ALARMS.name}' is reserved for what the server itself says about late notifications"
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
    for name in StoragePolicyEntry.__struct_fields__ if backend == "in_memory" else ():
        if node.find(name) is not None:
            findings.refuse(f"{key}.{name}", "the in_memory backend cannot honour this", "sqlite or jetstream")
    return StoragePolicy(*msgspec.structs.astuple(read_struct(StoragePolicyEntry, node, key, findings)))


def _auth(entry: Node, key: str, enabled: bool, findings: Findings) -> StreamAuth | None:
    node = read_section(entry.find("auth"), key, findings)
    if node is None:
        return None
    auth = read_struct(StreamAuth, node, key, findings)
    if node.find("required") is None:
        findings.refuse(f"{key}.required", "must be set when the auth section is there", SWITCH)
    for name, roles in (("read_roles", auth.read_roles), ("write_roles", auth.write_roles)):
        if node.find(name) is None:
            continue
        if roles is not None:
            check_names(roles, f"{key}.{name}", findings)
        if not enabled:
            findings.refuse(f"{key}.{name}", "roles need auth.enabled: true", "no roles, or auth.enabled: true")
        elif auth.required is False:
            findings.refuse(f"{key}.{name}", "roles need required: true in the same section", "required: true")
    if auth.required and not enabled:
        findings.refuse(f"{key}.required", "needs auth.enabled: true", "false, or auth.enabled: true")
    if node.find("plugins") is not None and not findings.broken(f"{key}.plugins"):
        if not auth.plugins:
            findings.refuse(f"{key}.plugins", "the list is empty", ", ".join(_PLUGINS))
        for place, plugin in enumerate(auth.plugins):
            if plugin not in _PLUGINS:
                findings.refuse(f"{key}.plugins[{place}]", f"unknown plugin '{plugin}'", ", ".join(_PLUGINS))
        if auth.required is False:
            findings.refuse(f"{key}.plugins", "plugins need required: true in the same section", "required: true")
    return auth


def _lateness(entry: Node, key: str, event_type: EventType | None, findings: Findings) -> Watched | None:
    node = read_section(entry.find("lateness"), key, findings)
    if node is None:
        return None
    given = read_struct(LatenessEntry, node, key, findings)
    if node.find("enabled") is None:
        findings.refuse(f"{key}.enabled", "must be set when the lateness section is there", SWITCH)
    by = None if event_type is None else _combined_fields(given, f"{key}.by", event_type, findings)
    if not given.enabled or event_type is None or by is None:
        return None
    limits = {name: getattr(given, name) for name in ("learn_days", "min_seen", "max_combinations")}
    limits["tolerance"] = None if given.tolerance is None else given.tolerance // SECOND
    watched = Watched(
        event_type=event_type.name,
        stream=event_type.base,
        by=by,
        date=date_field(event_type.fields),
        **{name: value for name, value in limits.items() if value is not None},
    )
    if watched.min_seen > watched.learn_days:
        message = f"nothing comes on {watched.min_seen} of {watched.learn_days} days"
        findings.refuse(f"{key}.min_seen", message, f"at most learn_days, {watched.learn_days}")
    return watched


def _combined_fields(
    given: LatenessEntry, key: str, event_type: EventType, findings: Findings
) -> tuple[str, ...] | None:
    usable, by = default_fields(event_type.fields), given.by
    if by is None:
        if not usable and not findings.broken(key):
            findings.refuse(key, "only dates and shapes are declared under identifier", "a field of another type")
        return None if findings.broken(key) else usable
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


def _with_alarms(settings: Settings) -> Settings:
    """Add the event type of the alarms about late notifications, if there can be any.

    Alarms show identifiers, so readers need the rights for all event types that are watched.
    """
    if not settings.watched:
        return settings
    rules = [settings.stream_auth.get(each.event_type) for each in settings.watched]
    guards = [rule for rule in rules if rule is not None and rule.required]
    guarded = {}
    if guards:
        same = all((rule.read_roles, rule.plugins) == (guards[0].read_roles, ()) for rule in guards)
        guarded[ALARMS.name] = StreamAuth(True, guards[0].read_roles if same else {}, {})
    retention = StoragePolicy(retention_ns=_ALARM_RETENTION)
    kept = {} if settings.notification_backend.kind == "in_memory" else {ALARMS.name: retention}
    return msgspec.structs.replace(
        settings,
        event_types=(*settings.event_types, ALARMS),
        policies={**settings.policies, **kept},
        stream_auth={**settings.stream_auth, **guarded},
    )
