"""Event types: which fields they have, how their topic is laid out, and what that means for a request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from aviso_server.errors import InvalidRequest, Problem, UnknownEventType
from aviso_server.model import shapes, topic
from aviso_server.model.constraint import Constraint
from aviso_server.model.fields import FIELD_TYPES, Field, SpatialField
from aviso_server.model.fields.areas import PointCloudField, PolygonField, read_polygon
from aviso_server.model.filter import Area, Filter
from aviso_server.model.json_text import compact, compact_all, deeper_than, identifier_text
from aviso_server.model.notification import Draft
from aviso_server.model.publishing import Bulk, Publishing, missing_field, unknown_field

__all__ = [
    "MAX_PAYLOAD_DEPTH",
    "TOPIC_BASE",
    "Catalogue",
    "EventType",
    "GenericType",
    "Operation",
    "build_event_type",
    "read_point",
]


Operation = Literal["watch", "replay"]

TOPIC_BASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
MAX_PAYLOAD_DEPTH = 125  # the published client reads 127 levels of an event, two of which are ours


class EventType(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A configured event type."""

    name: str
    fields: dict[str, Field]
    base: str
    key_order: tuple[str, ...]
    payload_required: bool | None = None  # None: the configuration has no payload section
    max_historical_notifications: int | None = None
    max_polygon_vertices: int = shapes.MAX_VERTICES
    generic: bool = False

    def check(self, identifier: dict[str, Any], payload: object = None) -> Draft:
        """Bring a published notification into canonical form; InvalidRequest if it cannot be accepted."""
        wire, stored, box = self._publishing.canonical(identifier)
        if payload is None and self.payload_required:
            raise missing_payload(self.name)
        return Draft(self.base, wire, stored, payload_bytes(payload), box)

    def check_all(self, identifiers: Sequence[dict[str, Any]], payloads: Sequence[object]) -> list[Draft] | None:
        """Do what `check` does for many, much faster; None if one has a shape or cannot be accepted."""
        found = self._bulk.of_objects(identifiers) if self.fields else None
        if found is None or found.refused or (self.payload_required and None in payloads):
            return None
        texts = compact_all(payloads, MAX_PAYLOAD_DEPTH)
        if texts is None:
            return None
        return list(map(Draft, repeat(self.base), found.topics, found.identifiers, texts))

    def publishing_faults(self, identifier: dict[str, Any], payload: object) -> Iterator[InvalidRequest]:
        """Yield everything for which `check` refuses a notification."""
        yield from self._publishing.faults(identifier)
        if payload is None and self.payload_required:
            yield missing_payload(self.name)

    @cached_property
    def _bulk(self) -> Bulk:
        return Bulk(self)

    @cached_property
    def _publishing(self) -> Publishing:
        return Publishing(self)

    def compile(
        self, identifier: dict[str, Any], operation: Operation, point: shapes.Point | None = None, lenient: bool = False
    ) -> Filter:
        """Compile the filter of a watch or replay request; InvalidRequest if it cannot mean anything.

        `point` is what `read_point` made of the same identifier. With `lenient`, required fields that are left out
        match everything, like the others.
        """
        area: Area | None = point
        self._check_keys(identifier, operation)
        equals: dict[str, str] = {}
        tests: dict[str, Constraint] = {}
        if "polygon" in identifier and isinstance(self.fields.get("polygon", _ANY_POLYGON), PolygonField):
            if isinstance(identifier["polygon"], dict):
                _ANY_POLYGON.constraint("polygon", identifier["polygon"])
            area = read_polygon("polygon", identifier["polygon"], self.max_polygon_vertices)
        for name, field in self.fields.items():
            if name not in identifier:
                if field.required and not lenient and not (area is not None and name in _AREAS):
                    raise missing_field(name, operation)
            elif area is not None and name == "polygon":
                continue
            elif isinstance(value := identifier[name], dict):
                tests[name] = field.constraint(name, value)
            elif (text := field.accept(name, value)) != topic.WILDCARD or not field.wildcard:
                equals[name] = text
        return Filter(
            event_type=self.name,
            stream=self.base,
            topic=".".join([self.base, *[equals.get(name, topic.WILDCARD) for name in self.key_order]]),
            equals=tuple(sorted(equals.items())),
            tests=tuple(sorted(tests.items(), key=lambda item: item[0])),
            area=area,
            shaped=self.shaped,
        )

    def reading_faults(
        self, identifier: dict[str, Any], operation: Operation, lenient: bool = False
    ) -> Iterator[InvalidRequest]:
        """Yield everything for which `compile` refuses a filter."""
        for name, value in identifier.items():
            try:
                self.compile({name: value}, operation, lenient=True)
            except InvalidRequest as error:
                yield error
        given = {*identifier, *(() if identifier.keys().isdisjoint(("polygon", "point")) else _AREAS)}
        for name, field in self.fields.items():
            if field.required and not lenient and name not in given:
                yield missing_field(name, operation)

    @property
    def shaped(self) -> bool:
        """True if notifications have a polygon or a point cloud."""
        return any(isinstance(field, SpatialField) for field in self.fields.values())

    def _check_keys(self, identifier: dict[str, Any], operation: Operation) -> None:
        """Refuse keys that a reader of this event type cannot use."""
        clouds = any(isinstance(field, PointCloudField) for field in self.fields.values())
        known = {*self.fields}
        if clouds:
            known.add("polygon")
        elif isinstance(self.fields.get("polygon"), PolygonField):
            known.add("point")
        for name in identifier:
            if name == "point_cloud" or (clouds and name == "point"):
                raise point_cloud_refusal(name)
            if name not in known:
                raise unknown_field(name, operation, known)

    def describe(self) -> dict[str, Any]:
        """Return the event type as the schema route shows it."""
        payload = None if self.payload_required is None else {"required": self.payload_required}
        return {"payload": payload, "identifier": {name: field.describe() for name, field in self.fields.items()}}


_ANY_POLYGON = PolygonField(required=False)
_AREAS = ("polygon", "point_cloud")  # a reader's area stands for them


class GenericType(msgspec.Struct, frozen=True):
    """An event type that is not configured: any keys, matched by the tokens of the topic."""

    name: str
    max_historical_notifications: None = None
    generic: bool = True

    def __post_init__(self) -> None:
        if not TOPIC_BASE.fullmatch(self.name):
            raise InvalidRequest(
                f"event type '{self.name}' is not acceptable: expected ASCII letters, digits, '_' and '-', "
                "starting with a letter or a digit",
                field="event_type",
            )

    @property
    def base(self) -> str:
        return self.name

    def check(self, identifier: dict[str, Any], payload: object = None) -> Draft:
        """Check a published notification: every value must be a non-empty scalar."""
        values = {name: identifier_text(name, value) for name, value in identifier.items()}
        for name, text in values.items():
            if not text:
                raise InvalidRequest(f"Field '{name}' must not be empty", field=name)
        return Draft(
            stream=self.name,
            topic=topic.build([self.name, *[values[name] for name in sorted(values)]]),
            identifier=compact({name: text for name, text in values.items() if text != topic.WILDCARD}),
            payload=payload_bytes(payload),
        )

    def check_all(self, identifiers: Sequence[dict[str, Any]], payloads: Sequence[object]) -> list[Draft] | None:
        """Return None: nothing would make many faster than one by one."""
        return None

    def publishing_faults(self, identifier: dict[str, Any], payload: object) -> Iterator[InvalidRequest]:
        """Yield everything for which `check` refuses a notification."""
        for name, value in identifier.items():
            try:
                self.check({name: value})
            except InvalidRequest as error:
                yield error

    def reading_faults(
        self, identifier: dict[str, Any], operation: Operation, lenient: bool = False
    ) -> Iterator[InvalidRequest]:
        """Yield everything for which `compile` refuses a filter."""
        for name, value in identifier.items():
            try:
                self.compile({name: value}, operation)
            except InvalidRequest as error:
                yield error

    def compile(
        self, identifier: dict[str, Any], operation: Operation, point: shapes.Point | None = None, lenient: bool = False
    ) -> Filter:
        """Compile the filter of a watch or replay request: as many tokens as there are keys, `*` for any.

        With `lenient`, no keys at all match everything.
        """
        if lenient and not identifier:
            return Filter(event_type=self.name, stream=self.name, topic=self.name, positional=True)
        tokens = [self.name]
        for name in sorted(identifier):
            value = identifier[name]
            if isinstance(value, list):
                raise InvalidRequest(f"Field '{name}' must be a scalar value; got an array", field=name)
            tokens.append(identifier_text(name, value))
        area: Area | None = point
        if "polygon" in identifier:
            area = read_polygon("polygon", identifier["polygon"])
        equals = {str(place): token for place, token in enumerate(tokens) if place and token != topic.WILDCARD}
        return Filter(
            event_type=self.name,
            stream=self.name,
            topic=".".join(tokens),
            equals=tuple(sorted({**equals, "#": str(len(tokens))}.items())),
            area=area,
            positional=True,
        )


class Catalogue(msgspec.Struct, frozen=True):
    """All configured event types."""

    event_types: dict[str, EventType]
    strict: bool = True

    def find(self, name: str) -> EventType | GenericType:
        """Return the event type of that name; a schema-less one if the server is not strict."""
        found = self.event_types.get(name)
        if found is not None:
            return found
        if self.strict:
            raise UnknownEventType(name, sorted(self.event_types))
        return GenericType(name)

    def of_stream(self, name: str) -> EventType | None:
        """Find the event type of an event type name, topic base or stream name, in any letter case."""
        folded = name.lower()
        found = self.event_types.values()
        return (
            next((each for each in found if each.name == name), None)
            or next((each for each in found if each.name.lower() == folded), None)
            or next((each for each in found if each.base.lower() == folded), None)
        )


def read_point(identifier: dict[str, Any]) -> shapes.Point | None:
    """Read the point of a watch or replay request; InvalidRequest if it is malformed or a polygon is there too."""
    if "point" not in identifier:
        return None
    if "polygon" in identifier:
        raise InvalidRequest("Cannot specify both identifier.polygon and identifier.point", field="point")
    value = identifier["point"]
    try:
        return shapes.point_of(value if isinstance(value, list) else identifier_text("point", value))
    except shapes.ShapeError as error:
        raise InvalidRequest(f"field 'point' must be a valid point: {error}", str(error), field="point") from None


def payload_bytes(payload: object) -> bytes:
    text = compact(payload)
    if deeper_than(text, MAX_PAYLOAD_DEPTH):
        raise InvalidRequest(f"Field 'payload' nests deeper than {MAX_PAYLOAD_DEPTH} levels", field="payload")
    return text


def missing_payload(event_type: str) -> InvalidRequest:
    return InvalidRequest(f"Payload is required for event type '{event_type}'", field="payload")


def point_cloud_refusal(name: str) -> InvalidRequest:
    if name == "point":
        return InvalidRequest("identifier.point is not supported for point-cloud schemas", field=name)
    return InvalidRequest("identifier.point_cloud is only supported for notify operations", field=name)


_PLACE = re.compile(r" - at `\$([^`]*)`$")
_FORMS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    str: "text",
    tuple[str, ...]: "a list of texts",
    tuple[int, int]: "[min, max], two whole numbers",
    tuple[float, float]: "[min, max], two numbers",
}
"""The accepted values of a definition, in words."""

_COMMON = Field.__struct_fields__
_RESERVED: Mapping[str, type[Field]] = {"polygon": PolygonField, "point_cloud": PointCloudField}
S = TypeVar("S", bound=msgspec.Struct)


class Topic(msgspec.Struct, frozen=True):
    """The layout of an event type's topics."""

    base: str
    key_order: tuple[str, ...]


class Payload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rule for payloads."""

    required: bool


def build_event_type(name: str, definition: Mapping[str, Any]) -> tuple[EventType | None, list[Problem]]:
    """Build the event type that a `notification_schema` entry defines, or list everything that is wrong with it.

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
    """Convert a section to a struct; None if it is absent, or after reporting all that is wrong with it."""
    if value is None:
        return None
    before = len(problems)
    members = _members(key, value, kind, problems)
    return kind(**members) if len(problems) == before else None


def _members(
    key: str, value: object, kind: type[msgspec.Struct], problems: list[Problem], beside: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the members that can be used and report all others. `beside` names keys that are read elsewhere."""
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
    """Convert a value to its annotated type, or return None after reporting why it is not acceptable."""
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
    """Describe a value of this type in the words of a configuration file."""
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
    if topic and not topic.key_order:
        problems.append(Problem("topic.key_order", "names no field", f"at least one of {declared}"))
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
    for reserved, kind in _RESERVED.items():
        for name, field in fields.items():
            if isinstance(field, kind) and name != reserved:
                problems.append(
                    Problem(f"identifier.{name}", f"a {kind.type_name} field must be named {reserved}", reserved)
                )
            elif name == reserved and not isinstance(field, kind):
                message = f"this name is reserved for the {kind.type_name}"
                problems.append(Problem(f"identifier.{name}", message, f"another name, or type: {kind.type_name}"))
    clouds = [name for name, field in fields.items() if isinstance(field, PointCloudField)]
    if clouds and "polygon" in fields:
        message = "cannot be declared together with a PointCloudHandler field"
        problems.append(Problem("identifier.polygon", message, "one of the two"))
