"""Reading the definition of an event type from a configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from aviso_server.errors import Problem
from aviso_server.model.fields import FIELD_TYPES, Field
from aviso_server.model.fields.point_cloud import PointCloudField
from aviso_server.model.schema import EventType

__all__ = ["build_event_type"]


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
        problems.append(Problem("max_historical_notifications", f"must be positive, got {limit}", "a positive integer"))
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
        problems.append(Problem(key, str(error)))
        return None


def _fields(definitions: object, problems: list[Problem]) -> dict[str, Field]:
    if not isinstance(definitions, Mapping):
        problems.append(Problem("identifier", "must be present and map field names to definitions"))
        return {}
    fields: dict[str, Field] = {}
    for name, definition in definitions.items():
        key = f"identifier.{name}"
        if not isinstance(name, str) or not isinstance(definition, Mapping):
            problems.append(Problem(key, "must be a mapping with `type` and `required`"))
            continue
        parameters = dict(definition)
        type_name = parameters.pop("type", None)
        if not isinstance(type_name, str) or type_name not in FIELD_TYPES:
            problems.append(Problem(f"{key}.type", f"unknown field type {type_name!r}", ", ".join(FIELD_TYPES)))
            continue
        kind = FIELD_TYPES[type_name]
        field: Field | None = _convert(key, parameters, kind, problems)
        if field is None:
            if problems and not problems[-1].accepted:
                problems[-1].accepted = ", ".join(parameter.name for parameter in msgspec.structs.fields(kind))
        elif (reason := field.problem()) is not None:
            problems.append(Problem(f"{key}.{reason[0]}", reason[1]))
        else:
            fields[name] = field
    return fields


def _check_names(fields: Mapping[str, Field], topic: Topic | None, problems: list[Problem]) -> None:
    declared = ", ".join(sorted(fields))
    if "point" in fields:
        problems.append(Problem("identifier.point", "this name is reserved for filters; use another one"))
    for place, key in enumerate(topic.key_order if topic else ()):
        # a field whose definition was refused is declared all the same
        refused = any(
            problem.key == f"identifier.{key}" or problem.key.startswith(f"identifier.{key}.") for problem in problems
        )
        if key not in fields and not refused:
            problems.append(Problem("topic.key_order", f"'{key}' is not declared under identifier", declared))
        if topic and key in topic.key_order[:place]:
            problems.append(Problem("topic.key_order", f"'{key}' is listed twice"))
        if isinstance(fields.get(key), PointCloudField):
            problems.append(Problem("topic.key_order", f"'{key}' is a point cloud and cannot be part of the topic"))
    clouds = [name for name, field in fields.items() if isinstance(field, PointCloudField)]
    problems += [
        Problem(f"identifier.{name}", "a PointCloudHandler field must be named point_cloud")
        for name in clouds
        if name != "point_cloud"
    ]
    if clouds and "polygon" in fields:
        problems.append(Problem("identifier.polygon", "cannot be declared together with a PointCloudHandler field"))
