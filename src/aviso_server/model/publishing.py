"""The publisher's side of an event type, made for speed: what a value was turned into once is remembered.

Most values come again and again (the same class, date, time and stream for thousands of steps), so each field keeps
the parts that its values contribute to a topic and to an identifier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from aviso_server.errors import InvalidRequest
from aviso_server.model import topic
from aviso_server.model.fields import Field, SpatialField
from aviso_server.model.json_value import compact
from aviso_server.model.notification import Box

__all__ = ["Canonical", "Publishing", "missing_field", "unknown_field"]

_MOST_REMEMBERED = 4096  # values per field; then it starts anew
_LONGEST_REMEMBERED = 64  # characters
_PLAIN = frozenset({str, int})  # types of values that are remembered; others equal some integers, like 1.0 and true
_part_of = dict.__getitem__

Part = tuple[str, bytes, Box | None]
"""A token of the topic, a member of the identifier (none if the value is the wildcard), and the box of a shape."""

Canonical = tuple[str, bytes, Box | None]
"""A topic, an identifier and the box around its shape."""


class Publishing:
    """Turns published identifiers of one event type into their canonical form."""

    def __init__(self, base: str, key_order: tuple[str, ...], fields: Mapping[str, Field], max_vertices: int) -> None:
        names = sorted(fields)
        self._fields = fields
        self._base = topic.encode(base)
        self._order = [names.index(name) for name in key_order]
        self._seen: set[type] = set()
        self._values = [_Values(name, fields[name], max_vertices, self._seen) for name in names]
        self._shapes = [place for place, name in enumerate(names) if isinstance(fields[name], SpatialField)]
        self._shapes.sort(key=lambda place: names[place] != "polygon")  # its box wins over that of another field
        self._known = None if self._shapes else _known(self._values, key_order)

    def canonical(self, identifier: dict[str, Any]) -> Canonical:
        """The canonical form of an identifier; InvalidRequest if it cannot be accepted."""
        known = self._known
        if known is not None and len(identifier) == len(known.members):
            # All fields in a few calls and without a line for each: this is the busiest place of a busy server.
            try:
                values = known.values(identifier)
                if int not in self._seen or _PLAIN.issuperset(map(type, values)):
                    wire = ".".join(map(_part_of, known.tokens, known.ordered(identifier)))
                    stored = b",".join(map(_part_of, known.members, values))
                    return f"{self._base}.{wire}", b"{" + stored + b"}", None
            except (KeyError, TypeError):  # a field is not there, or a value is new or no scalar
                pass
        return self._by_field(identifier)

    def _by_field(self, identifier: dict[str, Any]) -> Canonical:
        if identifier.keys() != self._fields.keys():
            raise self._wrong_fields(identifier)
        parts = [values.find(identifier[values.name]) for values in self._values]
        wire = ".".join([self._base, *[parts[place][0] for place in self._order]])
        stored = b",".join([part[1] for part in parts if part[1]])
        box = parts[self._shapes[0]][2] if self._shapes else None
        return wire, b"{" + stored + b"}", box

    def _wrong_fields(self, identifier: dict[str, Any]) -> InvalidRequest:
        """What to say of it: unknown fields first, then field by field as they are declared."""
        for name in identifier:
            if name not in self._fields:
                return unknown_field(name, "notify", self._fields)
        known = {values.name: values for values in self._values}
        missing = next(name for name in self._fields if name not in identifier)
        for name in self._fields:
            if name == missing:
                break
            known[name].find(identifier[name])  # a bad value of a field before it is reported first
        return missing_field(missing, "notify")


class _Values:
    """A field, and the parts of the values seen lately."""

    __slots__ = ("_field", "_max_vertices", "_seen", "known", "members", "name", "tokens")

    def __init__(self, name: str, field: Field, max_vertices: int, seen: set[type] | None = None) -> None:
        self.name = name
        # texts and integers, which are never equal; booleans and floats equal some integers and are kept out
        self.known: dict[str | int, Part] = {}
        self.tokens: dict[str | int, str] = {}  # the parts once more, without those that have no member
        self.members: dict[str | int, bytes] = {}
        self._seen = set() if seen is None else seen  # types of what is remembered, here and by whoever shares it
        self._field = field
        self._max_vertices = max_vertices

    def find(self, value: Any) -> Part:
        """What a value contributes, remembered or not."""
        kind = type(value)
        known = self.known.get(value) if kind is str or kind is int else None
        return self.part(value) if known is None else known

    def part(self, value: object) -> Part:
        """What a value contributes; short texts and integers are remembered."""
        if isinstance(self._field, SpatialField):
            given, shape = self._field.locate(self.name, value, self._max_vertices)
            return topic.encode(given) if isinstance(given, str) else "", _member(self.name, given), shape.box
        text = self._field.accept(self.name, value)
        part = topic.encode(text), b"" if text == topic.WILDCARD else _member(self.name, text), None
        if type(value) is int or (type(value) is str and len(value) <= _LONGEST_REMEMBERED):
            if len(self.known) >= _MOST_REMEMBERED:
                self.known.clear()
                self.tokens.clear()
                self.members.clear()
            self._seen.add(type(value))
            self.known[value] = part
            if part[1]:
                self.tokens[value], self.members[value] = part[0], part[1]
        return part


class _Known:
    """What all fields remember, laid out for lookups of a whole identifier."""

    __slots__ = ("members", "ordered", "tokens", "values")

    def __init__(self, values: list[_Values], key_order: tuple[str, ...]) -> None:
        by_name = {each.name: each for each in values}
        self.values: Callable[[dict[str, Any]], tuple[Any, ...]] = itemgetter(*by_name)
        self.members = [each.members for each in values]
        self.ordered: Callable[[dict[str, Any]], tuple[Any, ...]] = itemgetter(*key_order)
        self.tokens = [by_name[name].tokens for name in key_order]


def _known(values: list[_Values], key_order: tuple[str, ...]) -> _Known | None:
    """None if there are too few fields for it: an itemgetter of one name does not make a tuple."""
    return _Known(values, key_order) if len(values) > 1 and len(key_order) > 1 else None


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
