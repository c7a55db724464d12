"""Many identifiers at once, column by column: what millions of rows need, with the rules of `publishing`.

A field looks at each distinct value once. The result of a row is the same as that of `EventType.check`; a row that is
not plainly acceptable is left out here, and whoever wants to know why asks `EventType.check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, AnyStr

import msgspec

from aviso_server.errors import InvalidRequest
from aviso_server.model import topic
from aviso_server.model.fields import SpatialField
from aviso_server.model.notification import Box
from aviso_server.model.publishing import Part, _Values  # the one place that knows what a value contributes

if TYPE_CHECKING:
    from aviso_server.model.schema import EventType

__all__ = ["Bulk", "Columns", "places_of"]

_MOST_REMEMBERED = 50_000  # values per field; then it starts anew
_LONGEST_REMEMBERED = 64  # characters
_TEXTS_AND_INTEGERS = frozenset({str, int})  # never equal to one another; floats and truth values equal some integers
_LARGEST = 2**63  # integers beyond are read as floats


class Columns(msgspec.Struct, frozen=True):
    """The canonical form of some rows; those that were refused are left out."""

    refused: list[int]  # their places, ascending
    identifiers: list[bytes]
    topics: list[str]
    boxes: list[Box | None] | None  # None if the event type has no shapes


class Bulk:
    """The publisher's side of an event type for columns of values."""

    def __init__(self, event_type: EventType) -> None:
        self.names = tuple(sorted(event_type.fields))
        fields = event_type.fields
        self._base = topic.encode(event_type.base)
        self._order = [self.names.index(name) for name in event_type.key_order]
        self._fields = [
            _FieldColumn(_Values(name, fields[name], event_type.max_polygon_vertices)) for name in self.names
        ]
        shapes = [place for place, name in enumerate(self.names) if isinstance(fields[name], SpatialField)]
        shapes.sort(key=lambda place: self.names[place] != "polygon")
        self._shape = shapes[0] if shapes else None

    def refused(self, values: Mapping[int, Sequence[Any]]) -> list[int]:
        """The places of rows to ask `check` about; all others are acceptable as far as these fields go.

        `values` has columns of the same length, by the places of their fields in `names`.
        """
        found: set[int] = set()
        for place, column in values.items():
            if set(map(type, column)) <= _TEXTS_AND_INTEGERS:
                found.update(self.bad_places(place, column))
            else:
                find = self._fields[place].part
                found.update([at for at, value in enumerate(column) if find(value) is None])
        return sorted(found)

    def bad_places(self, place: int, column: Sequence[Any], absent: Set[Any] = frozenset()) -> list[int]:
        """Where texts and integers stand that the field in this place of `names` does not plainly accept.

        The same is true of values that are `absent`, which may be others.
        """
        return self._fields[place].bad(column, absent)

    def of_objects(self, identifiers: Sequence[dict[str, Any]]) -> Columns | None:
        """The canonical form of identifiers; None if one has a shape, lacks a field or has one that is not known."""
        if self._shape is not None or set(map(len, identifiers)) != {len(self.names)}:
            return None
        try:
            return self.canonical([list(map(itemgetter(name), identifiers)) for name in self.names])
        except KeyError:
            return None

    def canonical(self, values: Sequence[Sequence[Any]]) -> Columns:
        """The canonical form of the rows that are acceptable."""
        if self._shape is None and (found := self._all_plain(values)) is not None:
            return found
        parts = [field.parts(column) for field, column in zip(self._fields, values, strict=True)]
        refused, kept = _without_refused(parts)
        tokens = [[part[0] for part in kept[place]] for place in self._order]
        bases = [self._base] * len(kept[0])
        members = [[part[1] for part in column] for column in kept]
        return Columns(
            refused,
            [b"{%b}" % joined for joined in map(b",".join, zip(*members, strict=True))],
            list(map(".".join, zip(bases, *tokens, strict=True))),
            None if self._shape is None else [part[2] for part in kept[self._shape]],
        )

    def _all_plain(self, values: Sequence[Sequence[Any]]) -> Columns | None:
        """The same for rows that are all acceptable, without a line of Python for any of them; None if they are not."""
        rows = len(values[0])
        if not rows:
            return None
        fields = list(zip(self._fields, map(_once_if_alike, values), strict=True))
        if not all(field.takes(column) for field, column in fields):
            return None
        try:
            identifiers, topics = self._written(fields, rows)
        except KeyError:  # at least one value is new
            if not all(field.learns(column) for field, column in fields):
                return None
            try:
                identifiers, topics = self._written(fields, rows)
            except KeyError:  # a field has started anew in between
                return None
        return Columns([], identifiers, topics, None)

    def _written(
        self, fields: Sequence[tuple[_FieldColumn, Sequence[Any]]], rows: int
    ) -> tuple[list[bytes], list[str]]:
        """Identifiers and topics of rows whose values are all known, else KeyError."""
        tokens = [fields[place][0].tokens(fields[place][1]) for place in self._order]
        topics = list(_joined(".", [self._base, *tokens], rows))
        members = [field.members(column) for field, column in fields]
        identifiers = b"}\n{".join(_joined(b",", members, rows))
        return (b"{%b}" % identifiers).split(b"\n"), topics


def _joined(separator: AnyStr, columns: Sequence[AnyStr | Iterable[AnyStr]], rows: int) -> Iterable[AnyStr]:
    """What stands in each row, joined; a column that is one text is the same in all rows, and joined only once."""
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


def _without_refused(columns: list[list[Part | None]]) -> tuple[list[int], list[list[Part]]]:
    """The places where a column has None, and the columns without them."""
    places = {place for column in columns if None in column for place, one in enumerate(column) if one is None}
    return sorted(places), [
        [one for place, one in enumerate(column) if one is not None and place not in places] for column in columns
    ]


class _FieldColumn:
    """A field, and what the distinct values that it has seen lately contribute."""

    __slots__ = ("_known", "_members", "_tokens", "_unacceptable", "_values")

    def __init__(self, values: _Values) -> None:
        self._values = values
        self._known: dict[str | int, Part] = {}
        self._tokens: dict[str | int, str] = {}  # the parts once more
        self._members: dict[str | int, bytes] = {}
        self._unacceptable: set[str | int] = set()

    def takes(self, column: Sequence[Any]) -> bool:
        """True if all are texts and integers."""
        return _TEXTS_AND_INTEGERS.issuperset(map(type, column))

    def learns(self, column: Sequence[Any]) -> bool:
        """True if all of some texts and integers are acceptable; what they contribute is known from now on."""
        return None not in map(self.part, set(column).difference(self._known))

    def tokens(self, column: Sequence[Any]) -> str | Iterable[str]:
        """What each value contributes to its topic, at once if there is one; KeyError if it is not known."""
        return _looked_up(self._tokens, column)

    def members(self, column: Sequence[Any]) -> bytes | Iterable[bytes]:
        """The same for identifiers."""
        return _looked_up(self._members, column)

    def parts(self, column: Sequence[Any]) -> list[Part | None]:
        """What each value contributes; None for those to ask `check` about."""
        if not set(map(type, column)) <= _TEXTS_AND_INTEGERS:
            return [self.part(value) for value in column]
        found = list(map(self._known.get, column))
        if None in found:
            for place, one in enumerate(found):
                if one is None:
                    found[place] = self.part(column[place])
        return found

    def bad(self, column: Sequence[Any], absent: Set[Any]) -> list[int]:
        """Where texts and integers to ask `check` about stand, and values that are absent."""
        unknown = places_of(False, list(map(self._known.__contains__, column)))
        return [at for at in unknown if column[at] in absent or self.part(column[at]) is None]

    def part(self, value: Any) -> Part | None:
        """What one value contributes."""
        kind = type(value)
        if kind is not str and kind is not int:
            return self._part(value)
        known = self._known.get(value)
        return known or (None if value in self._unacceptable else self._part(value))

    def _part(self, value: Any) -> Part | None:
        if type(value) is int and not -_LARGEST <= value < 2 * _LARGEST:
            return None
        remembered = type(value) is int or (type(value) is str and len(value) <= _LONGEST_REMEMBERED)
        try:
            part = self._values.part(value)
        except InvalidRequest:
            if remembered:
                if len(self._unacceptable) >= _MOST_REMEMBERED:
                    self._unacceptable.clear()
                self._unacceptable.add(value)
            return None
        if not part[1]:  # the wildcard has no place in an identifier
            return None
        if remembered:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
                self._tokens.clear()
                self._members.clear()
            self._known[value] = part
            self._tokens[value], self._members[value] = part[0], part[1]
        return part


def places_of(value: object, column: Sequence[object]) -> list[int]:
    """Where a rare value stands in a column. Fast if all are of its type: comparing others with it takes longer."""
    found: list[int] = []
    at = -1
    try:
        while True:
            at = column.index(value, at + 1)
            found.append(at)
    except ValueError:
        return found


def _once_if_alike(column: Sequence[Any]) -> Sequence[Any]:
    """A column of which all values are the same text has only one; 1 is the same as true."""
    first = column[0]
    return column[:1] if type(first) is str and column.count(first) == len(column) else column


def _looked_up(parts: dict[str | int, AnyStr], column: Sequence[Any]) -> AnyStr | Iterable[AnyStr]:
    return parts[column[0]] if len(column) == 1 else map(parts.__getitem__, column)
