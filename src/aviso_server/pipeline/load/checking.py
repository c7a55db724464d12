"""Rows checked and made canonical, many at a time, with the outcome that `model` has for each of them.

The fast way only ever accepts: JSON is read straight into typed rows, and each field looks at its distinct values. What
is not plainly acceptable goes through the model's own check, row by row, so that every refusal is written in one place.
Where one thing alone is wrong with a row, what the model said of it is remembered for the rows to come.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, compress
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from aviso_server.errors import InvalidRequest, RequestError
from aviso_server.model.bulk import Bulk, places_of
from aviso_server.model.fields import Field, SpatialField
from aviso_server.model.json_value import MAX_DEPTH, compact, deeper_than
from aviso_server.model.schema import MAX_PAYLOAD_DEPTH, EventType, GenericType
from aviso_server.pipeline.load.envelope import Notice, read_row
from aviso_server.pipeline.load.faults import Fault, fault_of
from aviso_server.pipeline.load.taken import NOTHING, Outcome, Taken, TakenRow, Wanted
from aviso_server.pipeline.load.times import Times

__all__ = ["Checker", "Notices"]

Item = TypeVar("Item")

Notices = Mapping[int, Notice | RequestError]
"""Rows as a whole, or why they cannot be read, by place."""

# Integers of 19 digits and more: beyond 64 bits the two readers of JSON take them differently.
_DIGITS = bytes(0x30 if 0x30 <= each <= 0x39 else 0 for each in range(256))
_LONG = b"0" * 19
_SHORTEST_DEEP = 2 * MAX_PAYLOAD_DEPTH  # bytes: a shorter text cannot nest too deep

_MOST_FAULTS = 10_000  # bad values that are remembered
_LONGEST_VALUE = 64  # characters of these

_Cause = tuple[int, str | int | msgspec.UnsetType | None]
"""The one thing that a row is refused for: the place of a field and its value, or one of the following."""

_OTHER_TYPE = -1  # with the name of another event type
_NO_PAYLOAD: _Cause = (-2, "null")
_DEEP_PAYLOAD: _Cause = (-2, "deep")
_ABSENT = frozenset((None, msgspec.UNSET))

_identifier, _payload, _event_type = attrgetter("identifier"), attrgetter("payload"), attrgetter("event_type")


class Checker:
    """Checks rows against one event type."""

    def __init__(self, event_type: EventType | GenericType, wanted: Wanted, latest: int) -> None:
        self._event_type = event_type
        self._wanted = wanted
        self._times = Times(latest)
        self._bulk: Bulk | None = None
        self._needs_payload = False
        self._faults: dict[_Cause | None, Fault] = {}  # of rows in which all but this value is plainly acceptable
        if isinstance(event_type, EventType) and event_type.fields:
            self._bulk = Bulk(event_type)
            self._needs_payload = bool(event_type.payload_required)
            self._decode = msgspec.json.Decoder(_row_type(event_type, lenient=not wanted.history)).decode
            self._values = [attrgetter(f"f{place}") for place in range(len(self._bulk.names))]
            self._mixed = [place for place, name in enumerate(self._bulk.names) if _is_mixed(event_type.fields[name])]

    def lines(self, lines: Sequence[bytes]) -> Outcome:
        """What becomes of rows that are JSON texts."""
        if self._bulk is None:
            return self._slowly(NOTHING, range(len(lines)), lines)
        rows, slow = self._decoded(lines)
        places: Sequence[int] = range(len(rows))
        if slow:
            kept = _others(slow, len(rows))
            places, rows = _kept(places, kept), _kept(rows, kept)
        payloads = list(map(compact, map(_payload, rows)))
        odd = self._odd(rows, payloads)
        if gone := {at for at, why in odd.items() if why is None or self._wanted.history}:
            slow += [places[at] for at in sorted(gone)]
            odd = _moved(odd, gone)
            kept = _others(gone, len(places))
            places, rows, payloads = _kept(places, kept), _kept(rows, kept), _kept(payloads, kept)
        identifiers = list(map(_identifier, rows))
        if self._wanted.history:
            columns = [list(map(value, identifiers)) for value in self._values]
            taken, refused = self._whole(places, columns, payloads, [row.time for row in rows])
            return self._slowly(taken, slow + refused, lines) if slow or refused else Outcome(taken, {})
        given = list(map(msgspec.json.encode, identifiers)) if self._wanted.given else None
        bad = self._refused(identifiers)
        for at, why in odd.items():
            bad[at] = None if at in bad else why
        taken, _ = _taken(places, payloads, given, sorted(bad))
        known = {at: fault for at, value in bad.items() if (fault := self._faults.get(value)) is not None}
        slow += [places[at] for at in bad if at not in known]
        outcome = self._slowly(taken, slow, lines) if slow else Outcome(taken, {})
        for at, value in bad.items():
            if value is not None and (fault := known.get(at) or outcome.faults.get(places[at])) is not None:
                outcome.faults[places[at]] = fault
                if len(self._faults) < _MOST_FAULTS:
                    self._faults[value] = fault
        return outcome

    def _refused(self, identifiers: Sequence[Any]) -> dict[int, _Cause | None]:
        """The places of identifiers that are not plainly acceptable, and why if it is a single short value."""
        assert self._bulk is not None
        found: dict[int, _Cause | None] = {}
        for place, value in enumerate(self._values):
            if place in self._mixed:
                continue
            column = list(map(value, identifiers))
            for at in self._bulk.bad_places(place, column, _ABSENT):
                it = column[at]
                found[at] = None if at in found or len(str(it)) > _LONGEST_VALUE else (place, it)
        if self._mixed:
            columns = {place: list(map(self._values[place], identifiers)) for place in self._mixed}
            found.update(dict.fromkeys(self._bulk.refused(columns)))
        return found

    def _decoded(self, lines: Sequence[bytes]) -> tuple[list[Any], list[int]]:
        """Plain rows with None in the place of those that are not plain, and where these are."""
        rows: list[Any] = []
        others: list[int] = []
        left = iter(lines)
        while len(rows) < len(lines):
            try:
                rows.extend(map(self._decode, left))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                others.append(len(rows))  # those before it have been added
                rows.append(None)
        return rows, others

    def _odd(self, rows: Sequence[Any], payloads: Sequence[bytes]) -> dict[int, _Cause | None]:
        """The places of rows that need a closer look, and why if it is one thing that can be told without it."""
        odd: dict[int, list[_Cause | None]] = {}
        named = {None, self._event_type.name}
        names = list(map(_event_type, rows))
        for at in places_of(False, list(map(named.__contains__, names))):
            odd.setdefault(at, []).append((_OTHER_TYPE, names[at]) if len(names[at]) <= _LONGEST_VALUE else None)
        if self._needs_payload:
            for at in places_of(b"null", payloads):
                odd.setdefault(at, []).append(_NO_PAYLOAD)
        if max(map(len, payloads), default=0) > _SHORTEST_DEEP:
            for at in [at for at, size in enumerate(map(len, payloads)) if size > _SHORTEST_DEEP]:
                if deeper_than(payloads[at], MAX_PAYLOAD_DEPTH):
                    # one level is the row itself
                    odd.setdefault(at, []).append(None if deeper_than(payloads[at], MAX_DEPTH - 1) else _DEEP_PAYLOAD)
        for at in _with_long_numbers(payloads):
            odd.setdefault(at, []).append(None)
        return {at: why[0] if len(why) == 1 else None for at, why in odd.items()}

    def table(
        self, columns: Sequence[Sequence[Any]], payloads: Sequence[bytes], times: Sequence[Any] | None, others: Notices
    ) -> Outcome:
        """What becomes of rows in columns, one for each field by name; rows in `others` are not plain: see there.

        Payloads are canonical already.
        """
        if self._bulk is None:
            return self._each(NOTHING, others)
        names, count = self._bulk.names, len(payloads)
        if others:
            kept = [place for place in range(count) if place not in others]
            columns = [[column[place] for place in kept] for column in columns]
            payloads = [payloads[place] for place in kept]
            times = None if times is None else [times[place] for place in kept]
        else:
            kept = list(range(count))
        given = _objects(names, columns) if self._wanted.given else None
        taken, refused = self._quickly(kept, columns, payloads, given, times)
        if not refused and not others:
            return Outcome(taken, {})
        at = {place: number for number, place in enumerate(kept)} if refused else {}
        again = {
            place: Notice(
                {name: column[at[place]] for name, column in zip(names, columns, strict=True)},
                msgspec.json.decode(payloads[at[place]]),
                None if times is None else times[at[place]],
            )
            for place in refused
        }
        return self._each(taken, {**again, **others})

    @property
    def names(self) -> tuple[str, ...]:
        """The fields that `table` wants columns for, in order; none if it takes rows as a whole only."""
        return () if self._bulk is None else self._bulk.names

    @property
    def needs_payload(self) -> bool:
        """True if rows without a payload are refused."""
        return self._needs_payload

    def _quickly(
        self,
        places: Sequence[int],
        columns: Sequence[Sequence[Any]],
        payloads: Sequence[bytes],
        given: Sequence[bytes] | None,
        times: Sequence[Any] | None,
    ) -> tuple[Taken, list[int]]:
        """The rows that are plainly acceptable, and the places of the others."""
        if not places:
            return NOTHING, []
        assert self._bulk is not None
        if self._wanted.history:
            return self._whole(places, columns, payloads, times or [None] * len(places))
        return _taken(places, payloads, given, self._bulk.refused(dict(enumerate(columns))))

    def _whole(
        self, places: Sequence[int], columns: Sequence[Sequence[Any]], payloads: Sequence[bytes], times: Sequence[Any]
    ) -> tuple[Taken, list[int]]:
        """The same with all that the archive keeps."""
        assert self._bulk is not None
        moments = self._times.read(times)
        refused: list[int] = []
        if gone := [at for at, moment in enumerate(moments) if moment is None]:
            refused = _picked(places, gone)
            kept = _others(gone, len(places))
            places, payloads, moments = _kept(places, kept), _kept(payloads, kept), _kept(moments, kept)
            columns = [_kept(column, kept) for column in columns]
        found = self._bulk.canonical(columns)
        if found.refused:
            refused += _picked(places, found.refused)
            kept = _others(found.refused, len(places))
            places, payloads, moments = _kept(places, kept), _kept(payloads, kept), _kept(moments, kept)
        times_taken = [time for time in moments if time is not None]
        taken = Taken(places, payloads, (), found.identifiers, found.topics, found.boxes or (), times_taken)
        return taken, refused

    def _slowly(self, taken: Taken, places: Iterable[int], lines: Sequence[bytes]) -> Outcome:
        return self._each(taken, {place: self._read(lines[place]) for place in places})

    def _read(self, line: bytes) -> Notice | RequestError:
        try:
            return read_row(line, self._event_type.name)
        except RequestError as error:
            return error.with_traceback(None)  # which leads to all rows, and would keep them

    def _each(self, taken: Taken, notices: Notices) -> Outcome:
        """One by one, by the model's own check."""
        rows: list[TakenRow] = []
        faults: dict[int, Fault] = {}
        for place, notice in notices.items():
            if isinstance(notice, RequestError):
                faults[place] = fault_of(notice)
                continue
            try:
                rows.append(self._check(place, notice))
            except RequestError as error:
                faults[place] = fault_of(error)
        return Outcome(taken.joined(rows, self._wanted), faults)

    def _check(self, place: int, notice: Notice) -> TakenRow:
        try:
            draft = self._event_type.check(notice.identifier, notice.payload)
        except RecursionError:
            raise InvalidRequest(
                f"Field 'payload' nests deeper than {MAX_PAYLOAD_DEPTH} levels", field="payload"
            ) from None
        time = self._times.read_one(notice.time) if self._wanted.history else 0
        given = compact(notice.identifier) if self._wanted.given else b""
        return TakenRow(place, draft.payload, given, draft.identifier, draft.topic, draft.box, time)


def _taken(
    places: Sequence[int], payloads: Sequence[bytes], given: Sequence[bytes] | None, refused: Sequence[int]
) -> tuple[Taken, list[int]]:
    """The rows without those that were refused, and where these are."""
    if not refused:
        return Taken(places, payloads, given or ()), []
    kept = _others(refused, len(places))
    taken = Taken(_kept(places, kept), _kept(payloads, kept), () if given is None else _kept(given, kept))
    return taken, _picked(places, refused)


def _others(places: Iterable[int], count: int) -> bytearray:
    """For each of so many places whether it is another one than these."""
    kept = bytearray(b"\1") * count
    for place in places:
        kept[place] = 0
    return kept


def _kept(column: Iterable[Item], kept: bytearray) -> list[Item]:
    return list(compress(column, kept))


def _moved(odd: Mapping[int, Item], gone: set[int]) -> dict[int, Item]:
    """What is known of places, after some are gone."""
    before = sorted(gone)
    return {at - bisect_right(before, at): why for at, why in odd.items() if at not in gone}


def _picked(column: Sequence[Item], places: Sequence[int]) -> list[Item]:
    return [column[place] for place in places]


def _objects(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[bytes]:
    """The identifiers in columns as JSON objects."""
    members = [
        [name + b":" + compact(value) for value in column]
        for name, column in zip(map(compact, names), columns, strict=True)
    ]
    return [b"{" + b",".join(row) + b"}" for row in zip(*members, strict=True)]


def _is_mixed(field: Field) -> bool:
    """True if plain values may be other than texts and integers."""
    return isinstance(field, SpatialField) or field.kind == "number"


def _row_type(event_type: EventType, lenient: bool) -> Any:
    """The type of a plain row of an event type; what does not fit is looked at slowly. If lenient, values may lack."""
    fields: list[Any] = []
    for place, name in enumerate(sorted(event_type.fields)):
        field = event_type.fields[name]
        kind: Any = Any if isinstance(field, SpatialField) else str | int | float if _is_mixed(field) else str | int
        default: Any = msgspec.NODEFAULT
        if lenient and not _is_mixed(field):
            kind, default = kind | None | msgspec.UnsetType, msgspec.UNSET
        fields.append((f"f{place}", kind, msgspec.field(name=name, default=default)))
    identifier = msgspec.defstruct("Identifier", fields, forbid_unknown_fields=True, gc=False, kw_only=True)
    members: list[Any] = [
        ("identifier", identifier),
        ("payload", Any, None),
        ("time", str | int | float | None, None),
        ("event_type", str | None, None),
    ]
    return msgspec.defstruct("PlainRow", members, forbid_unknown_fields=True, gc=False)


def _with_long_numbers(payloads: Sequence[bytes]) -> set[int]:
    """The places of payloads that have so many digits in a row that they may be an integer beyond 64 bits."""
    found: set[int] = set()
    digits = b" ".join(payloads).translate(_DIGITS)
    place = digits.find(_LONG)
    ends: list[int] = []
    while place >= 0:  # hardly ever
        ends = ends or list(accumulate([len(payload) + 1 for payload in payloads]))
        at = bisect_right(ends, place)
        found.add(at)
        place = digits.find(_LONG, ends[at])
    return found
