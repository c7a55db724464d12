"""Event types: which fields they have, how their topic is laid out, and what that means for a request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import repeat
from typing import Any, Literal

import msgspec

from aviso_server.errors import InvalidRequest, UnknownEventType
from aviso_server.model import geometry, topic
from aviso_server.model.bulk import Bulk
from aviso_server.model.constraint import Constraint
from aviso_server.model.fields import Field
from aviso_server.model.fields.point_cloud import PointCloudField
from aviso_server.model.fields.polygon import PolygonField, read_polygon
from aviso_server.model.filter import Area, Filter
from aviso_server.model.json_value import compact, compact_all, deeper_than, identifier_text
from aviso_server.model.notification import Draft
from aviso_server.model.publishing import Publishing, missing_field, unknown_field

__all__ = ["MAX_PAYLOAD_DEPTH", "TOPIC_BASE", "Catalogue", "EventType", "GenericType", "Operation", "read_point"]

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
    max_polygon_vertices: int = geometry.MAX_VERTICES
    generic: bool = False

    def check(self, identifier: dict[str, Any], payload: object = None) -> Draft:
        """A published notification in canonical form; InvalidRequest if it cannot be accepted."""
        wire, stored, box = self._publishing.canonical(identifier)
        if payload is None and self.payload_required:
            raise InvalidRequest(f"Payload is required for event type '{self.name}'", field="payload")
        return Draft(self.base, wire, stored, payload_bytes(payload), box)

    def check_all(self, identifiers: Sequence[dict[str, Any]], payloads: Sequence[object]) -> list[Draft] | None:
        """The same as `check` of each, many times faster; None if one of them has a shape or cannot be accepted."""
        found = self._bulk.of_objects(identifiers) if self.fields else None
        if found is None or found.refused or (self.payload_required and None in payloads):
            return None
        texts = compact_all(payloads, MAX_PAYLOAD_DEPTH)
        if texts is None:
            return None
        return list(map(Draft, repeat(self.base), found.topics, found.identifiers, texts))

    @cached_property
    def _bulk(self) -> Bulk:
        """Made with the first batch and not pickled."""
        return Bulk(self)

    @cached_property
    def _publishing(self) -> Publishing:
        """Made with the first publish and not pickled."""
        return Publishing(self.base, self.key_order, self.fields, self.max_polygon_vertices)

    def compile(
        self,
        identifier: dict[str, Any],
        operation: Operation,
        point: geometry.Point | None = None,
        lenient: bool = False,
    ) -> Filter:
        """The filter of a watch or replay request; InvalidRequest if it cannot mean anything.

        `point` is what `read_point` made of the same identifier. With `lenient`, required fields that are left out
        match everything, like the others.
        """
        area: Area | None = point
        clouds = any(isinstance(field, PointCloudField) for field in self.fields.values())
        for name in identifier:
            if clouds and name in ("point_cloud", "point"):
                raise point_cloud_refusal(name)
            if name not in self.fields and name not in ("polygon", "point"):
                raise unknown_field(name, operation, self.fields)
        equals: dict[str, str] = {}
        tests: dict[str, Constraint] = {}
        if "polygon" in identifier and isinstance(self.fields.get("polygon", _ANY_POLYGON), PolygonField):
            if isinstance(identifier["polygon"], dict):
                _ANY_POLYGON.constraint("polygon", identifier["polygon"])
            area = read_polygon("polygon", identifier["polygon"], self.max_polygon_vertices)
        for name, field in self.fields.items():
            if name not in identifier:
                if field.required and not lenient and not (area is not None and name in ("polygon", "point_cloud")):
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
        )

    def describe(self) -> dict[str, Any]:
        """The event type as the schema route shows it."""
        payload = None if self.payload_required is None else {"required": self.payload_required}
        return {"payload": payload, "identifier": {name: field.describe() for name, field in self.fields.items()}}


_ANY_POLYGON = PolygonField(required=False)


class GenericType(msgspec.Struct, frozen=True):
    """An event type that nobody configured: any keys, matched by the tokens of the topic."""

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
        """The stream: named like the event type."""
        return self.name

    def check(self, identifier: dict[str, Any], payload: object = None) -> Draft:
        """A published notification; every value must be a non-empty scalar."""
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
        """None: there is nothing that would make many faster than one by one."""
        return None

    def compile(
        self,
        identifier: dict[str, Any],
        operation: Operation,
        point: geometry.Point | None = None,
        lenient: bool = False,
    ) -> Filter:
        """The filter of a watch or replay request: as many tokens as there are keys, `*` for any.

        With `lenient`, no keys at all match everything.
        """
        if lenient and not identifier:
            return Filter(event_type=self.name, stream=self.name, topic=self.name, positional=True)
        area: Area | None = point
        if "polygon" in identifier:
            area = read_polygon("polygon", identifier["polygon"])
        tokens = [self.name]
        for name in sorted(identifier):
            value = identifier[name]
            spatial = name in ("polygon", "point") and isinstance(value, list)
            tokens.append(compact(value).decode() if spatial else identifier_text(name, value))
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
        """The event type of that name; a schema-less one if the server is not strict."""
        found = self.event_types.get(name)
        if found is not None:
            return found
        if self.strict:
            raise UnknownEventType(name, sorted(self.event_types))
        return GenericType(name)

    def of_stream(self, name: str) -> EventType | None:
        """The event type that an event type name, a topic base or a stream name in any case stands for."""
        folded = name.lower()
        for event_type in self.event_types.values():
            if event_type.name == name:
                return event_type
        for event_type in self.event_types.values():
            if event_type.name.lower() == folded:
                return event_type
        for event_type in self.event_types.values():
            if event_type.base.lower() == folded:
                return event_type
        return None


def read_point(identifier: dict[str, Any]) -> geometry.Point | None:
    """The point of a watch or replay request; InvalidRequest if it is malformed or a polygon is there too."""
    if "point" not in identifier:
        return None
    if "polygon" in identifier:
        raise InvalidRequest("Cannot specify both identifier.polygon and identifier.point", field="point")
    value = identifier["point"]
    try:
        if isinstance(value, list):
            return geometry.point_from_pair(value)
        return geometry.parse_point(identifier_text("point", value))
    except geometry.ShapeError as error:
        raise InvalidRequest(f"field 'point' must be a valid point: {error}", str(error), field="point") from None


def payload_bytes(payload: object) -> bytes:
    """The payload as it is stored and delivered."""
    text = compact(payload)
    if deeper_than(text, MAX_PAYLOAD_DEPTH):
        raise InvalidRequest(f"Field 'payload' nests deeper than {MAX_PAYLOAD_DEPTH} levels", field="payload")
    return text


def point_cloud_refusal(name: str) -> InvalidRequest:
    """The refusal of a spatial key that readers of point clouds cannot use."""
    if name == "point":
        return InvalidRequest("identifier.point is not supported for point-cloud schemas", field=name)
    return InvalidRequest("identifier.point_cloud is only supported for notify", field=name)
