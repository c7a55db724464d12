"""Rows checked and made canonical, many at a time, with the outcome that `model` has for each of them.

The fast way only ever accepts: JSON is read straight into typed rows, and each field looks at its distinct values. What
is not plainly acceptable goes through the model's own check, row by row, so that every refusal is written in one place.
Where one thing alone is wrong with a row, what the model said of it is remembered for the rows to come.
"""

from __future__ import annotations

import datetime
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, compress
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from aviso_server.errors import InvalidRequest, MalformedRequest, RequestError
from aviso_server.model.event_type import MAX_PAYLOAD_DEPTH, Bulk, EventType, GenericType, places_of
from aviso_server.model.fields import Field, SpatialField
from aviso_server.model.json_text import MAX_DEPTH, compact, deeper_than, identifier_text, loads
from aviso_server.model.notification import Box
from aviso_server.model.times import SECOND, parse_instant

__all__ = [
    "INVALID",
    "NOTHING",
    "Checker",
    "Fault",
    "Notice",
    "Notices",
    "Outcome",
    "Taken",
    "TakenRow",
    "Times",
    "Wanted",
    "check_event_type",
    "check_identifier",
    "fault_of",
    "read_row",
    "rule_of",
]

INVALID = "INVALID_NOTIFICATION_REQUEST"
"""The code that the server gives to a notification that breaks a rule of its event type."""

_FIELD = re.compile(r"(?:Required |Unknown )?[Ff]ield '[^']*'")
_VALUE = re.compile(r"'.*'", re.DOTALL)
_NUMBER = re.compile(r"\b(value|got|length|at|pair|vertex|point) -?[0-9][^\s,;]*")


class Fault(msgspec.Struct, frozen=True):
    """Why a row was refused: as the server would say it."""

    code: str
    field: str | None
    reason: str


def fault_of(error: RequestError) -> Fault:
    """Return the fault that an error of the model stands for."""
    code = error.code if isinstance(error, MalformedRequest) else INVALID
    shown = error.message
    if isinstance(error, MalformedRequest) and error.details != error.message:
        shown = f"{error.message}: {error.details}"
    return Fault(code, error.field, shown)


def rule_of(fault: Fault) -> str:
    """Return the reason without the value at fault, so that rows which broke the same rule are counted together."""
    if fault.code != INVALID and fault.field is None:
        return fault.reason.partition(":")[0]
    field = _FIELD.match(fault.reason)
    named = "" if field is None else field[0]
    return named + _NUMBER.sub(r"\1 …", _VALUE.sub("'…'", fault.reason[len(named) :]))


class Wanted(msgspec.Struct, frozen=True):
    """What the next step needs to have of the rows that are taken."""

    history: bool = False  # canonical identifier, topic, box and time: rows become the past of a stream
    given: bool = False  # the identifier as it was given: rows are published, and the server makes it canonical


class TakenRow(msgspec.Struct, frozen=True):
    """One notification that was taken."""

    place: int  # among the rows that were checked together
    payload: bytes  # canonical
    given: bytes  # the identifier as it was given, if wanted
    identifier: bytes  # canonical
    topic: str
    box: Box | None
    time: int  # nanoseconds since 1970, for history


class Taken(msgspec.Struct, frozen=True):
    """The notifications that were taken, by place; columns that are not wanted are empty."""

    places: Sequence[int] = ()
    payloads: Sequence[bytes] = ()  # canonical
    given: Sequence[bytes] = ()
    identifiers: Sequence[bytes] = ()
    topics: Sequence[str] = ()
    boxes: Sequence[Box | None] = ()
    times: Sequence[int] = ()

    def joined(self, rows: Sequence[TakenRow], wanted: Wanted) -> Taken:
        """Return these and some more, in order."""
        if not rows:
            return self
        every = [*self.places, *(row.place for row in rows)]
        order = sorted(range(len(every)), key=every.__getitem__)

        def column(known: Sequence[Any], name: str) -> list[Any]:
            values = [*(known or [None] * len(self.places)), *map(attrgetter(name), rows)]
            return [values[at] for at in order]

        places, payloads = column(self.places, "place"), column(self.payloads, "payload")
        given = column(self.given, "given") if wanted.given else ()
        if not wanted.history:
            return Taken(places, payloads, given)
        identifiers, topics = column(self.identifiers, "identifier"), column(self.topics, "topic")
        return Taken(
            places, payloads, given, identifiers, topics, column(self.boxes, "box"), column(self.times, "time")
        )


NOTHING = Taken()


class Outcome(msgspec.Struct, frozen=True):
    """The rows that were taken, and the faults of the others by their place."""

    taken: Taken
    faults: dict[int, Fault]


MEMBERS = ("event_type", "identifier", "payload", "time")
_KNOWN = frozenset(MEMBERS)


class Notice(msgspec.Struct, frozen=True):
    """A row, well-formed but not yet checked against its event type."""

    identifier: dict[str, Any]
    payload: Any
    time: Any


def read_row(line: bytes, event_type: str) -> Notice:
    """Read the notification in a JSON text; RequestError says what is wrong with its form."""
    members = loads(line)
    if not isinstance(members, dict):
        raise _shape("a notification must be a JSON object")
    if "specversion" in members and isinstance(members.get("data"), dict):
        return _event(members, event_type)
    if not members.keys() <= _KNOWN:
        unknown = min(members.keys() - _KNOWN)
        raise MalformedRequest("UNKNOWN_FIELD", f"Unknown member '{unknown}'; allowed members: {', '.join(MEMBERS)}")
    if "event_type" in members:
        check_event_type(members["event_type"], event_type)
    identifier = members.get("identifier")
    if not isinstance(identifier, dict):
        raise _shape("'identifier' must be present and an object")
    check_identifier(identifier)
    return Notice(identifier, members.get("payload"), members.get("time"))


def check_event_type(given: object, event_type: str) -> None:
    """Refuse rows of another event type than the one that is loaded."""
    if given is not None and given != event_type:
        raise InvalidRequest(f"The row is of another event type; this load is about '{event_type}'", field="event_type")


def check_identifier(identifier: dict[str, Any]) -> None:
    """Refuse what only readers may say."""
    if "point" in identifier:
        raise InvalidRequest("identifier.point is only supported for watch and replay, not for notify", field="point")


def _event(members: dict[str, Any], event_type: str) -> Notice:
    """Read a CloudEvent as `aviso-server replay --json` prints it."""
    kind = members.get("type")
    if isinstance(kind, str):
        check_event_type(kind.removeprefix("int.ecmwf.aviso."), event_type)
    data = members["data"]
    identifier = data.get("identifier")
    if not isinstance(identifier, dict):
        raise _shape("'data.identifier' must be present and an object")
    check_identifier(identifier)
    return Notice(identifier, data.get("payload"), members.get("time"))


def _shape(reason: str) -> MalformedRequest:
    return MalformedRequest("INVALID_REQUEST_SHAPE", f"Invalid row: {reason}")


_PLAIN_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z$"
_TIME = "time"


class Times:
    """Reads times, which must not be later than a moment: what comes after the past must have a later time."""

    def __init__(self, latest: int) -> None:
        self._latest = latest

    def read(self, values: Sequence[Any]) -> list[int | None]:
        """Return nanoseconds since 1970; None for those to ask `read_one` about."""
        plain = self._plain(values)
        if plain is not None:
            return plain
        return [self._one(value) for value in values]

    def read_one(self, value: Any) -> int:
        """Return nanoseconds since 1970; InvalidRequest says what is accepted."""
        time = read_time(value)
        if not 0 <= time <= self._latest:
            raise InvalidRequest(
                f"Field 'time' must lie between 1970 and the moment of the import; got '{value}'", field=_TIME
            )
        return time

    def _one(self, value: Any) -> int | None:
        try:
            return self.read_one(value)
        except InvalidRequest:
            return None

    def _plain(self, values: Sequence[Any]) -> list[int | None] | None:
        """Read all of them, if they are written as most programs write them and are acceptable."""
        try:
            texts = pa.array(values, pa.string())
            if texts.null_count or not pc.all(pc.match_substring_regex(texts, _PLAIN_TIME)).as_py():
                return None
            times = pc.cast(pc.cast(texts, pa.timestamp("ns", tz="UTC")), pa.int64())
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return None
        limits = pc.min_max(times)
        if not (limits["min"].as_py() or 0) >= 0 or (limits["max"].as_py() or 0) > self._latest:
            return None
        found: list[int | None] = times.to_pylist()
        return found


def read_time(value: Any) -> int:
    """Return nanoseconds since 1970 of a time in a row; InvalidRequest says what is accepted."""
    if value is None or value == "":
        raise InvalidRequest("Field 'time' is missing: history needs the time of each notification", field=_TIME)
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
        elapsed = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        return (elapsed.days * 86_400 + elapsed.seconds) * SECOND + elapsed.microseconds * 1000
    return parse_instant(_TIME, identifier_text(_TIME, value))


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
        self.wanted = wanted
        self._event_type = event_type
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
        """Check rows that are JSON texts."""
        if self._bulk is None:
            return self._slowly(NOTHING, range(len(lines)), lines)
        rows, slow = self._decoded(lines)
        places: Sequence[int] = range(len(rows))
        if slow:
            kept = _others(slow, len(rows))
            places, rows = _kept(places, kept), _kept(rows, kept)
        payloads = list(map(compact, map(_payload, rows)))
        odd = self._odd(rows, payloads)
        if gone := {at for at, why in odd.items() if why is None or self.wanted.history}:
            slow += [places[at] for at in sorted(gone)]
            odd = _moved(odd, gone)
            kept = _others(gone, len(places))
            places, rows, payloads = _kept(places, kept), _kept(rows, kept), _kept(payloads, kept)
        identifiers = list(map(_identifier, rows))
        if self.wanted.history:
            columns = [list(map(value, identifiers)) for value in self._values]
            taken, refused = self._whole(places, columns, payloads, [row.time for row in rows])
            return self._slowly(taken, slow + refused, lines) if slow or refused else Outcome(taken, {})
        given = list(map(msgspec.json.encode, identifiers)) if self.wanted.given else None
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
        """Find identifiers that are not plainly acceptable, and why if it is a single short value."""
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
        """Decode plain rows, with None in the place of the others, and say where these are."""
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
        """Find rows that need a closer look, and why if it is one thing that can be told without it."""
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
        """Check rows in columns, one for each field by name; rows in `others` are not plain: see there.

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
        given = _objects(names, columns) if self.wanted.given else None
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
        """Return the fields that `table` wants columns for, in order; none if it takes rows as a whole only."""
        return () if self._bulk is None else self._bulk.names

    @property
    def needs_payload(self) -> bool:
        """Return True if rows without a payload are refused."""
        return self._needs_payload

    def _quickly(
        self,
        places: Sequence[int],
        columns: Sequence[Sequence[Any]],
        payloads: Sequence[bytes],
        given: Sequence[bytes] | None,
        times: Sequence[Any] | None,
    ) -> tuple[Taken, list[int]]:
        """Return the rows that are plainly acceptable, and the places of the others."""
        if not places:
            return NOTHING, []
        assert self._bulk is not None
        if self.wanted.history:
            return self._whole(places, columns, payloads, times or [None] * len(places))
        return _taken(places, payloads, given, self._bulk.refused(dict(enumerate(columns))))

    def _whole(
        self, places: Sequence[int], columns: Sequence[Sequence[Any]], payloads: Sequence[bytes], times: Sequence[Any]
    ) -> tuple[Taken, list[int]]:
        """Do the same with all that the archive keeps."""
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
        """Check one by one, by the model's own check."""
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
        return Outcome(taken.joined(rows, self.wanted), faults)

    def _check(self, place: int, notice: Notice) -> TakenRow:
        try:
            draft = self._event_type.check(notice.identifier, notice.payload)
        except RecursionError:
            raise InvalidRequest(
                f"Field 'payload' nests deeper than {MAX_PAYLOAD_DEPTH} levels", field="payload"
            ) from None
        time = self._times.read_one(notice.time) if self.wanted.history else 0
        given = compact(notice.identifier) if self.wanted.given else b""
        return TakenRow(place, draft.payload, given, draft.identifier, draft.topic, draft.box, time)


def _taken(
    places: Sequence[int], payloads: Sequence[bytes], given: Sequence[bytes] | None, refused: Sequence[int]
) -> tuple[Taken, list[int]]:
    """Return the rows without those that were refused, and where these are."""
    if not refused:
        return Taken(places, payloads, given or ()), []
    kept = _others(refused, len(places))
    taken = Taken(_kept(places, kept), _kept(payloads, kept), () if given is None else _kept(given, kept))
    return taken, _picked(places, refused)


def _others(places: Iterable[int], count: int) -> bytearray:
    """Mark, of so many places, all but these."""
    kept = bytearray(b"\1") * count
    for place in places:
        kept[place] = 0
    return kept


def _kept(column: Iterable[Item], kept: bytearray) -> list[Item]:
    return list(compress(column, kept))


def _moved(odd: Mapping[int, Item], gone: set[int]) -> dict[int, Item]:
    """Return what is known of places, after some are gone."""
    before = sorted(gone)
    return {at - bisect_right(before, at): why for at, why in odd.items() if at not in gone}


def _picked(column: Sequence[Item], places: Sequence[int]) -> list[Item]:
    return [column[place] for place in places]


def _objects(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[bytes]:
    """Write the identifiers in columns as JSON objects."""
    members = [
        [name + b":" + compact(value) for value in column]
        for name, column in zip(map(compact, names), columns, strict=True)
    ]
    return [b"{" + b",".join(row) + b"}" for row in zip(*members, strict=True)]


def _is_mixed(field: Field) -> bool:
    """Return True if plain values may be other than texts and integers."""
    return isinstance(field, SpatialField) or field.kind == "number"


def _row_type(event_type: EventType, lenient: bool) -> Any:
    """Make the type of a plain row; what does not fit is looked at slowly. If lenient, values may lack."""
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
    """Find payloads with so many digits in a row that they may be an integer beyond 64 bits."""
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
