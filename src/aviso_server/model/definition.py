"""Reading the definition of an event type from a configuration file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from aviso_server.errors import Problem
from aviso_server.model.fields import FIELD_TYPES, Field
from aviso_server.model.fields.point_cloud import PointCloudField
from aviso_server.model.schema import EventType

__all__ = ["build_event_type"]

_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_PLACE = re.compile(r" - at `\$([^`]*)`$")
_FORMS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    str: "text",
    tuple[str, ...]: "a list of texts",
    tuple[int, int]: "[min, max], two whole numbers",
    tuple[float, float]: "[min, max], two numbers",
}
"""What the values of a definition look like."""


class Topic(msgspec.Struct, frozen=True):
    """The layout of an event type's topics."""

    base: str
    key_order: tuple[str, ...]


class Payload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether a publisher must send a payload."""

    required: bool


def build_event_type(name: str, definition: Mapping[str, Any]) -> tuple[EventType | None, list[Problem]]:
    """The event type that a `notification_schema` entry defines, or everything that is wrong with it.

    `storage_policy` and `auth` are not looked at; keys of problems are relative to the entry.
    """
    problems: list[Problem] = []
    fields = _fields(definition.get("identifier"), problems)
    topic = _convert("topic", definition.get("topic"), Topic, problems)
    payload = _convert("payload", definition.get("payload"), Payload, problems)
    limit = _convert("max_historical_notifications", definition.get("max_historical_notifications"), int, problems)
    if limit is not None and limit < 1:
        problems.append(
            Problem("max_historical_notifications", f"{limit} is out of range", "a whole number, 1 or more")
        )
    _check_names(fields, topic, problems)
    if problems:
        return None, problems
    return EventType(
        name=name,
        fields=fields,
        base=topic.base if topic else name,
        key_order=topic.key_order if topic else tuple(sorted(set(fields) - {"point_cloud"})),
        payload_required=payload.required if payload else None,
        max_historical_notifications=limit,
    ), []


def _convert(key: str, value: object, kind: Any, problems: list[Problem]) -> Any:
    if value is None:
        return None
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        problems.append(_explained(key, str(error), kind))
        return None


def _explained(key: str, text: str, kind: Any) -> Problem:
    """The problem that msgspec reports, in the words of a configuration file."""
    hints = get_type_hints(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else {}
    hints = {name: hints[name] for name in getattr(kind, "__struct_fields__", ())}
    if (missing := _MISSING.search(text)) is not None:
        return Problem(f"{key}.{missing[1]}", "must be present", _accepted(hints[missing[1]]))
    if (unknown := _UNKNOWN.search(text)) is not None:
        return Problem(f"{key}.{unknown[1]}", "unknown key", ", ".join(hints))
    place = found[1] if (found := _PLACE.search(text)) is not None else ""
    name = re.split(r"[.\[]", place)[1] if place else ""
    accepted = _accepted(hints.get(name, kind))
    return Problem(f"{key}{place}", "has the wrong form", accepted)


def _accepted(hint: Any) -> str:
    """What a value of this type looks like in a configuration file."""
    if get_origin(hint) in (Union, UnionType):
        hint = get_args(hint)[0]
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return f"a mapping with {', '.join(hint.__struct_fields__)}"
    return _FORMS[hint]


def _fields(definitions: object, problems: list[Problem]) -> dict[str, Field]:
    if not isinstance(definitions, Mapping):
        problems.append(Problem("identifier", "must be present", "a mapping of field names to definitions"))
        return {}
    fields: dict[str, Field] = {}
    for name, definition in definitions.items():
        key = f"identifier.{name}"
        if not isinstance(name, str) or not isinstance(definition, Mapping):
            problems.append(Problem(key, "is not the definition of a field", "a mapping with type and required"))
            continue
        parameters = dict(definition)
        type_name = parameters.pop("type", None)
        if not isinstance(type_name, str) or type_name not in FIELD_TYPES:
            problems.append(Problem(f"{key}.type", f"unknown field type {type_name!r}", ", ".join(FIELD_TYPES)))
            continue
        kind = FIELD_TYPES[type_name]
        field: Field | None = _convert(key, parameters, kind, problems)
        if field is None:
            continue
        if (problem := field.problem()) is not None:
            problems.append(Problem(f"{key}.{problem.key}", problem.message, problem.accepted))
        else:
            fields[name] = field
    return fields


def _check_names(fields: Mapping[str, Field], topic: Topic | None, problems: list[Problem]) -> None:
    declared = ", ".join(sorted(fields)) or "fields of identifier"
    if "point" in fields:
        problems.append(Problem("identifier.point", "this name is reserved for filters", "another name"))
    for place, key in enumerate(topic.key_order if topic else ()):
        # a field whose definition was refused is declared all the same
        refused = any(
            problem.key == f"identifier.{key}" or problem.key.startswith(f"identifier.{key}.") for problem in problems
        )
        if key not in fields and not refused:
            problems.append(Problem("topic.key_order", f"'{key}' is not declared under identifier", declared))
        if topic and key in topic.key_order[:place]:
            problems.append(Problem("topic.key_order", f"'{key}' is listed twice", "each field once"))
        if isinstance(fields.get(key), PointCloudField):
            problems.append(Problem("topic.key_order", f"'{key}' is a point cloud", "fields that are no point clouds"))
    clouds = [name for name, field in fields.items() if isinstance(field, PointCloudField)]
    problems += [
        Problem(f"identifier.{name}", "a PointCloudHandler field must be named point_cloud", "point_cloud")
        for name in clouds
        if name != "point_cloud"
    ]
    if clouds and "polygon" in fields:
        message = "cannot be declared together with a PointCloudHandler field"
        problems.append(Problem("identifier.polygon", message, "one of the two"))
