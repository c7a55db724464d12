"""Reading the definition of an event type from a configuration file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from aviso_server.errors import Problem
from aviso_server.model.fields import FIELD_TYPES, Field
from aviso_server.model.fields.point_cloud import PointCloudField
from aviso_server.model.schema import EventType

__all__ = ["build_event_type"]

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

_COMMON = Field.__struct_fields__
S = TypeVar("S", bound=msgspec.Struct)


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
    topic = _section("topic", definition.get("topic"), Topic, problems)
    payload = _section("payload", definition.get("payload"), Payload, problems)
    limit = _value("max_historical_notifications", definition.get("max_historical_notifications"), int | None, problems)
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


def _section(key: str, value: object, kind: type[S], problems: list[Problem]) -> S | None:
    """The section as a value of this type; None if it is not there, or after reporting all that is wrong with it."""
    if value is None:
        return None
    before = len(problems)
    members = _members(key, value, kind, problems)
    return kind(**members) if len(problems) == before else None


def _members(
    key: str, value: object, kind: type[msgspec.Struct], problems: list[Problem], beside: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The members that can be used; all others are reported. `beside` names keys that are read elsewhere."""
    if not isinstance(value, Mapping):
        problems.append(Problem(key, "has the wrong form", _accepted(kind)))
        return {}
    hints = get_type_hints(kind)
    members: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        hint, place = hints[field.name], f"{key}.{field.name}"
        if field.name in value:
            converted = _value(place, value[field.name], hint, problems)
            if converted is not None:
                members[field.name] = converted
        elif field.required:
            problems.append(Problem(place, "must be present", _accepted(hint)))
    if kind.__struct_config__.forbid_unknown_fields:
        known = (*beside, *kind.__struct_fields__)
        unknown = [name for name in value if name not in known]
        problems += [Problem(f"{key}.{name}", "unknown key", ", ".join(known)) for name in unknown]
    return members


def _value(key: str, value: object, hint: Any, problems: list[Problem]) -> Any:
    """The value as its annotation asks for it, or None after reporting why it is not acceptable."""
    try:
        converted = msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as error:
        place = found[1] if (found := _PLACE.search(str(error))) is not None else ""
        problems.append(Problem(f"{key}{place}", _reason(value, hint), _accepted(hint)))
        return None
    if any(type(number) is int and not -(2**63) <= number < 2**63 for number in _numbers(converted)):
        problems.append(Problem(key, "is out of range", f"{_accepted(hint)}, each of at most 64 bits"))
        return None
    return converted


def _numbers(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def _reason(value: object, hint: Any) -> str:
    if isinstance(value, Mapping | list) or value is None:
        return "has the wrong form"
    if hint is bool:
        return f"'{value}' is neither true nor false"
    return f"'{value}' is not {_accepted(hint)}"


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
        field = _field(key, definition, problems)
        if field is not None:
            fields[name] = field
    return fields


def _field(key: str, definition: Mapping[str, Any], problems: list[Problem]) -> Field | None:
    before = len(problems)
    type_name = definition.get("type")
    kind = FIELD_TYPES.get(type_name) if isinstance(type_name, str) else None
    if kind is None:
        message = "must be present" if type_name is None else f"unknown field type {type_name!r}"
        problems.append(Problem(f"{key}.type", message, ", ".join(FIELD_TYPES)))
        _members(key, {name: definition[name] for name in _COMMON if name in definition}, Field, problems)
        return None
    members = _members(key, definition, kind, problems, beside=("type",))
    # what the members mean together is looked at even if one of them has to be mended first
    members.setdefault("required", False)
    if any(each.required and each.name not in members for each in msgspec.structs.fields(kind)):
        return None
    field = kind(**members)
    if (problem := field.problem()) is not None:
        problems.append(Problem(f"{key}.{problem.key}", problem.message, problem.accepted))
    return field if len(problems) == before else None


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
