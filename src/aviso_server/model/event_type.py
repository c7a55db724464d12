"""Event types: check identifiers, make their canonical form, and build filters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import repeat
from operator import itemgetter
from types import UnionType
from typing import Any, AnyStr, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from aviso_server.errors import InvalidRequest, Problem, UnknownEventType
from aviso_server.model import shapes, topic
from aviso_server.model.fields import (
    FIELD_TYPES,
    Constraint,
    Field,
    PointCloudField,
    PolygonField,
    SpatialField,
    read_polygon,
)
from aviso_server.model.filter import Area, Filter
from aviso_server.model.json_text import compact, compact_all, deeper_than, identifier_text
from aviso_server.model.notification import Box, Draft
from aviso_server.model.shapes import PointCloud

__all__ = [
    "MAX_PAYLOAD_DEPTH",
    "TOPIC_BASE",
    "Bulk",
    "Catalogue",
    "EventType",
    "GenericType",
    "Operation",
    "Publishing",
    "build_event_type",
    "missing_field",
    "places_of",
    "read_point",
    "unknown_field",
]

_CACHE_SIZE = 4096  # values per field; a full cache is emptied
_BULK_CACHE_SIZE = 50_000  # the same for columns, which should fit in whole
_LONGEST_CACHED = 64  # characters
_TEXTS_AND_INTEGERS = frozenset({str, int})  # never equal to one another; 1.0 and true equal an integer
_LARGEST = 2**63  # integers beyond are read as floats
_part_of = dict.__getitem__

Part = tuple[str, bytes, Box | None]
"""A token of the topic, a member of the identifier (none if the value is the wildcard), and the box of a shape."""

Canonical = tuple[str, bytes, Box | None]
"""A topic, an identifier and the box around its shape."""


class _FieldValues:
    """A field, and a cache of what its values contribute: most come again and again.

    Every rule of `Publishing` and `Bulk` is here, and a property test holds them equal.
    """

    __slots__ = ("_field", "_max_vertices", "_most", "_refused", "members", "name", "parts", "tokens")

    def __init__(self, name: str, field: Field, max_vertices: int, most: int) -> None:
        self.name = name
        self.parts: dict[str | int, Part] = {}
        self.tokens: dict[str | int, str] = {}  # the same by what they are joined to
        self.members: dict[str | int, bytes] = {}
        self._refused: set[str | int] = set()
        self._field = field
        self._max_vertices = max_vertices
        self._most = most

    def part(self, value: Any) -> Part:
        """Return what a value contributes; InvalidRequest if it is not acceptable."""
        if type(value) in _TEXTS_AND_INTEGERS and (known := self.parts.get(value)) is not None:
            return known
        if isinstance(self._field, SpatialField):
            given, shape = self._field.locate(self.name, value, self._max_vertices)
            token = "" if isinstance(shape, PointCloud) else topic.encode(given.decode())
            return token, compact(self.name) + b":" + given, shape.box
        text = self._field.accept(self.name, value)
        if text == topic.WILDCARD:
            return topic.encode(text), b"", None
        part = topic.encode(text), compact(self.name) + b":" + compact(text), None
        if _is_cacheable(value):
            if len(self.parts) >= self._most:
                self.parts.clear()
                self.tokens.clear()
                self.members.clear()
            self.parts[value] = part
            self.tokens[value], self.members[value] = part[0], part[1]
        return part

    def plain_part(self, value: Any) -> Part | None:
        """Return what a value of a column contributes; None for one to ask `check` about."""
        cacheable = _is_cacheable(value)
        if (cacheable and value in self._refused) or (type(value) is int and not cacheable):
            return None
        try:
            part = self.part(value)
        except InvalidRequest:
            if cacheable:
                if len(self._refused) >= self._most:
                    self._refused.clear()
                self._refused.add(value)
            return None
        return part if part[1] else None  # the wildcard has no place in an identifier

    def plain_parts(self, column: Sequence[Any]) -> list[Part | None]:
        if not _TEXTS_AND_INTEGERS.issuperset(map(type, column)):
            return [self.plain_part(value) for value in column]
        found = list(map(self.parts.get, column))
        if None in found:
            found = [self.plain_part(column[place]) if one is None else one for place, one in enumerate(found)]
        return found

    def learn(self, column: Sequence[Any]) -> bool:
        """Cache the values of a column of texts and integers; False if one is not plainly acceptable."""
        return None not in map(self.plain_part, set(column).difference(self.parts))


def _is_cacheable(value: Any) -> bool:
    if type(value) is str:
        return len(value) <= _LONGEST_CACHED
    return type(value) is int and -_LARGEST <= value < 2 * _LARGEST


class _Layout:
    """The fields of an event type in the order of an identifier, and where they stand in its topic."""

    def __init__(self, event_type: EventType, most: int) -> None:
        fields = event_type.fields
        self.names = tuple(sorted(fields))
        self._base = topic.encode(event_type.base)
        self._order = [self.names.index(name) for name in event_type.key_order]
        self._values = [_FieldValues(name, fields[name], event_type.max_polygon_vertices, most) for name in self.names]
        shapes = [place for place, name in enumerate(self.names) if isinstance(fields[name], SpatialField)]
        shapes.sort(key=lambda place: self.names[place] != "polygon")  # its box wins over that of another field
        self._shape = shapes[0] if shapes else None


class Publishing(_Layout):
    """Makes the canonical form of one identifier at a time: topic, stored identifier and box."""

    def __init__(self, event_type: EventType) -> None:
        super().__init__(event_type, _CACHE_SIZE)
        self._fields: Mapping[str, Field] = event_type.fields
        self._tokens = [self._values[place].tokens for place in self._order]
        self._members = [values.members for values in self._values]
        # an itemgetter of one name does not make a tuple
        self._at_once = self._shape is None and min(len(self.names), len(event_type.key_order)) > 1
        if self._at_once:
            self._by_name = itemgetter(*self.names)
            self._by_order = itemgetter(*event_type.key_order)

    def canonical(self, identifier: dict[str, Any]) -> Canonical:
        """Return the canonical form of an identifier; InvalidRequest if it cannot be accepted."""
        if self._at_once and len(identifier) == len(self._members):
            # All fields in a few calls and without a line for each: this is the busiest place of a busy server.
            try:
                values = self._by_name(identifier)
                if _TEXTS_AND_INTEGERS.issuperset(map(type, values)):
                    wire = ".".join(map(_part_of, self._tokens, self._by_order(identifier)))
                    stored = b",".join(map(_part_of, self._members, values))
                    return f"{self._base}.{wire}", b"{" + stored + b"}", None
            except KeyError:  # a field is not there, or a value is new
                pass
        return self._by_field(identifier)

    def _by_field(self, identifier: dict[str, Any]) -> Canonical:
        if identifier.keys() != self._fields.keys():
            raise next(self.faults(identifier))
        parts = [values.part(identifier[values.name]) for values in self._values]
        wire = ".".join([self._base, *[parts[place][0] for place in self._order]])
        stored = b",".join([part[1] for part in parts if part[1]])
        return wire, b"{" + stored + b"}", None if self._shape is None else parts[self._shape][2]

    def faults(self, identifier: dict[str, Any]) -> Iterator[InvalidRequest]:
        """Yield unknown fields first, then what is wrong field by field as they are declared."""
        for name in identifier:
            if name not in self._fields:
                yield unknown_field(name, "notify", self._fields)
        known = dict(zip(self.names, self._values, strict=True))
        for name, field in self._fields.items():
            if name not in identifier:
                yield missing_field(name, "notify", getattr(field, "default", None))
                continue
            try:
                known[name].part(identifier[name])
            except InvalidRequest as error:
                yield error


def missing_field(name: str, operation: str, default: str | None = None) -> InvalidRequest:
    hint = f"; send it empty to get its default '{default}'" if default else ""
    return InvalidRequest(f"Required field '{name}' is missing for {operation} operation{hint}", field=name)


def unknown_field(name: str, operation: str, fields: Iterable[str]) -> InvalidRequest:
    known = ", ".join(sorted(fields))
    return InvalidRequest(
        f"Unknown field '{name}' provided for {operation} operation; known fields: {known}", field=name
    )


class Columns(msgspec.Struct, frozen=True):
    """The canonical form of some rows; those that were refused are left out."""

    refused: list[int]  # their places, ascending
    identifiers: list[bytes]
    topics: list[str]
    boxes: list[Box | None] | None  # None if the event type has no shapes


class Bulk(_Layout):
    """The canonical form of columns of values, one column for each of `names`."""

    def __init__(self, event_type: EventType) -> None:
        super().__init__(event_type, _BULK_CACHE_SIZE)

    def refused(self, values: Mapping[int, Sequence[Any]]) -> list[int]:
        """Return the places of rows to ask `check` about; all others are acceptable as far as these fields go.

        `values` has columns of the same length, by the places of their fields in `names`.
        """
        found: set[int] = set()
        for place, column in values.items():
            if _TEXTS_AND_INTEGERS.issuperset(map(type, column)):
                found.update(self.bad_places(place, column))
            else:
                plain = self._values[place].plain_part
                found.update([at for at, value in enumerate(column) if plain(value) is None])
        return sorted(found)

    def bad_places(self, place: int, column: Sequence[Any], absent: Set[Any] = frozenset()) -> list[int]:
        """Return where texts and integers stand that the field in this place of `names` does not plainly accept.

        Values that are `absent`, which may be of other types, count as not accepted.
        """
        values = self._values[place]
        unknown = places_of(False, list(map(values.parts.__contains__, column)))
        return [at for at in unknown if column[at] in absent or values.plain_part(column[at]) is None]

    def of_objects(self, identifiers: Sequence[dict[str, Any]]) -> Columns | None:
        """Return the canonical form of identifiers; None if one has a shape, lacks a field or has an unknown one."""
        if self._shape is not None or set(map(len, identifiers)) != {len(self.names)}:
            return None
        try:
            return self.canonical([list(map(itemgetter(name), identifiers)) for name in self.names])
        except KeyError:
            return None

    def canonical(self, values: Sequence[Sequence[Any]]) -> Columns:
        """Return the canonical form of the rows that are acceptable."""
        if self._shape is None and (found := self._all_plain(values)) is not None:
            return found
        parts = [field.plain_parts(column) for field, column in zip(self._values, values, strict=True)]
        refused = {place for column in parts if None in column for place, one in enumerate(column) if one is None}
        kept = [
            [one for place, one in enumerate(column) if one is not None and place not in refused] for column in parts
        ]
        tokens = [[part[0] for part in kept[place]] for place in self._order]
        members = [[part[1] for part in column] for column in kept]
        return Columns(
            sorted(refused),
            [b"{%b}" % joined for joined in map(b",".join, zip(*members, strict=True))],
            list(map(".".join, zip(repeat(self._base, len(kept[0])), *tokens, strict=True))),
            None if self._shape is None else [part[2] for part in kept[self._shape]],
        )

    def _all_plain(self, values: Sequence[Sequence[Any]]) -> Columns | None:
        """Do the same for rows that are all acceptable; None if they are not."""
        rows = len(values[0])
        columns = [_once_if_alike(column) for column in values] if rows else []
        if not rows or not all(_TEXTS_AND_INTEGERS.issuperset(map(type, column)) for column in columns):
            return None
        try:
            return self._joined(columns, rows)
        except KeyError:  # at least one value is new
            if not all(field.learn(column) for field, column in zip(self._values, columns, strict=True)):
                return None
        try:
            return self._joined(columns, rows)
        except KeyError:  # a cache was emptied in between
            return None

    def _joined(self, columns: Sequence[Sequence[Any]], rows: int) -> Columns:
        """Join the parts of values that are all known, else KeyError."""
        tokens = [_looked_up(self._values[place].tokens, columns[place]) for place in self._order]
        members = [_looked_up(field.members, column) for field, column in zip(self._values, columns, strict=True)]
        topics = list(_joined(".", [self._base, *tokens], rows))
        identifiers = b"}\n{".join(_joined(b",", members, rows))
        return Columns([], (b"{%b}" % identifiers).split(b"\n"), topics, None)


def _once_if_alike(column: Sequence[Any]) -> Sequence[Any]:
    """Return one value for a column whose values are all the same text; not so for integers, since 1 equals true."""
    first = column[0]
    return column[:1] if type(first) is str and column.count(first) == len(column) else column


def _looked_up(parts: dict[str | int, AnyStr], column: Sequence[Any]) -> AnyStr | Iterable[AnyStr]:
    return parts[column[0]] if len(column) == 1 else map(parts.__getitem__, column)


def _joined(separator: AnyStr, columns: Sequence[AnyStr | Iterable[AnyStr]], rows: int) -> Iterable[AnyStr]:
    """Join what stands in each row; a column that is one text is the same in all rows, and joined only once."""
    pieces: list[Iterable[AnyStr]] = []
    alike: list[AnyStr] = []
    for column in columns:
        if isinstance(column, str | bytes):
            alike.append(column)
            continue
        pieces += [repeat(separator.join(alike), rows), column] if alike else [column]
        alike = []
    if alike:
        pieces.append(repeat(separator.join(alike), rows))
    return map(separator.join, zip(*pieces, strict=True))


def places_of(value: object, column: Sequence[object]) -> list[int]:
    """Return where a rare value stands in a column; fast if all are of its type."""
    found: list[int] = []
    at = -1
    try:
        while True:
            at = column.index(value, at + 1)
            found.append(at)
    except ValueError:
        return found


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
            if clouds and name == "point":
                raise InvalidRequest("identifier.point is not supported for point-cloud schemas", field=name)
            if name == "point_cloud":
                raise InvalidRequest("identifier.point_cloud is only supported for notify operations", field=name)
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
        return None

    def publishing_faults(self, identifier: dict[str, Any], payload: object) -> Iterator[InvalidRequest]:
        for name, value in identifier.items():
            try:
                self.check({name: value})
            except InvalidRequest as error:
                yield error

    def reading_faults(
        self, identifier: dict[str, Any], operation: Operation, lenient: bool = False
    ) -> Iterator[InvalidRequest]:
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
