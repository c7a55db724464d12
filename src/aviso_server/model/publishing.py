"""The publisher's side of an event type, made for speed: what a value was turned into once is remembered.

Most values come again and again (the same class, date, time and stream for thousands of steps), so each field keeps
the parts that its values contribute to a topic and to an identifier.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aviso_server.errors import InvalidRequest
from aviso_server.model import topic
from aviso_server.model.fields import Field, SpatialField
from aviso_server.model.json_value import compact
from aviso_server.model.notification import Box

__all__ = ["Canonical", "Publishing", "missing_field", "unknown_field"]

_MOST_REMEMBERED = 4096  # values per field; then it starts anew
_LONGEST_REMEMBERED = 64  # characters

Part = tuple[str, bytes]
"""A token of the topic and a member of the identifier; no member if the value is the wildcard."""

Canonical = tuple[str, bytes, Box | None]
"""A topic, an identifier and the box around its shape."""


class Publishing:
    """Turns published identifiers of one event type into their canonical form."""

    def __init__(self, base: str, key_order: tuple[str, ...], fields: Mapping[str, Field], max_vertices: int) -> None:
        self._base = topic.encode(base)
        self._key_order = key_order
        self._fields = fields
        self._max_vertices = max_vertices
        self._sorted = sorted(fields)
        self._scalar = [_Scalar(name, field) for name, field in fields.items() if not isinstance(field, SpatialField)]
        self._spatial = [(name, field) for name, field in fields.items() if isinstance(field, SpatialField)]

    def canonical(self, identifier: dict[str, Any]) -> Canonical:
        """The canonical form of an identifier; InvalidRequest if it cannot be accepted."""
        if identifier.keys() != self._fields.keys():
            raise self._wrong_fields(identifier)
        tokens: dict[str, str] = {}
        members: dict[str, bytes] = {}
        for scalar in self._scalar:
            name = scalar.name
            tokens[name], members[name] = scalar.part(identifier[name])
        box: Box | None = None
        for name, field in self._spatial:
            value, shape = field.locate(name, identifier[name], self._max_vertices)
            tokens[name], members[name] = topic.encode(value) if isinstance(value, str) else "", _member(name, value)
            if box is None or name == "polygon":
                box = shape.box
        wire = ".".join([self._base, *[tokens[name] for name in self._key_order]])
        stored = b",".join([member for name in self._sorted if (member := members[name])])
        return wire, b"{" + stored + b"}", box

    def _wrong_fields(self, identifier: dict[str, Any]) -> InvalidRequest:
        for name in identifier:
            if name not in self._fields:
                return unknown_field(name, "notify", self._fields)
        return missing_field(next(name for name in self._fields if name not in identifier), "notify")


class _Scalar:
    """A field whose values are text, and the parts of the values seen lately."""

    __slots__ = ("_field", "_numbers", "_texts", "name")

    def __init__(self, name: str, field: Field) -> None:
        self.name = name
        self._field = field
        self._texts: dict[object, Part] = {}
        self._numbers: dict[object, Part] = {}  # floats and booleans equal some of them: never here

    def part(self, value: object) -> Part:
        """What a value contributes."""
        kind = type(value)
        known = self._texts if kind is str else self._numbers if kind is int else None
        if known is not None and (part := known.get(value)) is not None:
            return part
        text = self._field.accept(self.name, value)
        part = topic.encode(text), b"" if text == topic.WILDCARD else _member(self.name, text)
        if known is not None and (not isinstance(value, str) or len(value) <= _LONGEST_REMEMBERED):
            if len(known) >= _MOST_REMEMBERED:
                known.clear()
            known[value] = part
        return part


def _member(name: str, value: object) -> bytes:
    return compact(name) + b":" + compact(value)


def missing_field(name: str, operation: str) -> InvalidRequest:
    """The refusal of a request that lacks a field."""
    return InvalidRequest(f"Required field '{name}' is missing for {operation} operation", field=name)


def unknown_field(name: str, operation: str, fields: Mapping[str, Field]) -> InvalidRequest:
    """The refusal of a field that the event type does not have."""
    known = ", ".join(sorted(fields))
    return InvalidRequest(
        f"Unknown field '{name}' provided for {operation} operation; known fields: {known}", field=name
    )
