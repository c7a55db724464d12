"""Turn published identifiers into their canonical form: topic, stored identifier and box.

Most values come again and again (the same class, date and stream for thousands of steps), so each field caches what
its values contribute. `Publishing` serves one request, `Bulk` whole columns, which it joins without a line of Python
per row: several times as fast. Both take every rule from `_FieldValues`, and a property test holds them equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, AnyStr

import msgspec

from aviso_server.errors import InvalidRequest
from aviso_server.model import topic
from aviso_server.model.fields import Field, SpatialField
from aviso_server.model.json_text import compact
from aviso_server.model.notification import Box
from aviso_server.model.shapes import PointCloud

if TYPE_CHECKING:
    from aviso_server.model.event_type import EventType

__all__ = ["Bulk", "Publishing", "missing_field", "places_of", "unknown_field"]

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
    """A field, and a cache of what its values contribute."""

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
    """The canonical form of one identifier at a time."""

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
