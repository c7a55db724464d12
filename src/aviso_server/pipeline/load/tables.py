"""Rows in columns, from CSV and Parquet: which column is which field, and what a cell means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from aviso_server.errors import InvalidRequest, MalformedRequest, PipelineError, RequestError
from aviso_server.model.columns import BOX, TIME_NS, columns_of
from aviso_server.model.json_value import loads
from aviso_server.model.schema import EventType, GenericType, payload_bytes
from aviso_server.model.timestamp import event_time
from aviso_server.pipeline.cells import cell_value
from aviso_server.pipeline.load.checking import Checker, Notices
from aviso_server.pipeline.load.envelope import Notice, check_event_type, check_identifier
from aviso_server.pipeline.load.taken import Outcome

__all__ = ["TableReader", "check_columns"]

_OWN = frozenset({"event_type", "identifier", "payload", "time", TIME_NS.name})
_UNREAD = frozenset({"sequence", "topic", *(column.name for column in BOX)})


def check_columns(columns: Sequence[str], event_type: EventType | GenericType, name: str) -> None:
    """PipelineError if a file has columns that mean nothing: a misspelt one must not be lost."""
    if isinstance(event_type, GenericType) or "identifier" in columns:
        return
    known = {column.name for column in columns_of(event_type)} | _OWN | _UNREAD
    for column in columns:
        if column not in known:
            accepted = ", ".join(sorted(known - _UNREAD - {TIME_NS.name}))
            raise PipelineError(
                f"'{name}': column '{column}' is no field of event type '{event_type.name}'; accepted: {accepted}"
            )


class TableReader:
    """Turns columns into rows for a checker. An empty payload is none."""

    def __init__(self, checker: Checker, event_type: EventType | GenericType, columns: Sequence[str]) -> None:
        self._checker = checker
        self._event_type = event_type
        self._columns = tuple(columns)
        shown = columns_of(event_type)
        self._column_of = {column.field: column.name for column in shown if column.field is not None}
        self._plain = (
            bool(checker.names)
            and "identifier" not in self._columns
            and all(self._column_of[name] in self._columns for name in checker.names)
        )

    def check(self, cells: Mapping[str, Sequence[Any]], count: int, refused: dict[int, RequestError]) -> Outcome:
        """What becomes of these rows; those in `refused` could not even be read."""
        payloads, others = self._payloads(cells.get("payload"), count)
        notices: dict[int, Notice | RequestError] = {**others, **refused}
        times = self._times(cells, count)
        for place, kind in enumerate(cells.get("event_type", ())):
            if kind and kind != self._event_type.name and place not in notices:
                notices[place] = _error(check_event_type, kind, self._event_type.name)
        if not self._plain:
            for place in range(count):
                if place not in notices:
                    notices[place] = self._row(cells, payloads, times, place)
            return self._checker.table([[]] * len(self._checker.names), [], None, notices)
        columns = [cells[self._column_of[name]] for name in self._checker.names]
        for column in columns:
            if not set(map(type, column)) <= _READY:
                for place, value in enumerate(column):
                    if type(value) not in _READY and place not in notices:
                        notices[place] = self._row(cells, payloads, times, place)
        if self._checker.needs_payload and b"null" in payloads:
            for place, payload in enumerate(payloads):
                if payload == b"null" and place not in notices:
                    notices[place] = self._row(cells, payloads, times, place)
        return self._checker.table(columns, payloads, times, notices)

    def _payloads(self, texts: Sequence[Any] | None, count: int) -> tuple[list[bytes], Notices]:
        """Payloads as they are stored, and why some are none."""
        if texts is None:
            return [b"null"] * count, {}
        found: list[bytes] = []
        others: dict[int, RequestError] = {}
        for place, text in enumerate(texts):
            try:
                found.append(_payload(text))
            except RequestError as error:
                others[place] = error
                found.append(b"null")
        return found, others

    def _times(self, cells: Mapping[str, Sequence[Any]], count: int) -> Sequence[Any] | None:
        """The time of each row: to the nanosecond where a column has it so."""
        exact, shown = cells.get(TIME_NS.name), cells.get("time")
        if exact is None:
            return shown if shown is not None else [None] * count
        return [_instant(time) for time in exact]

    def _row(
        self, cells: Mapping[str, Sequence[Any]], payloads: Sequence[bytes], times: Sequence[Any] | None, place: int
    ) -> Notice | RequestError:
        """A row as a whole."""
        try:
            identifier = self._identifier(cells, place)
            check_identifier(identifier)
        except RequestError as error:
            return error.with_traceback(None)
        return Notice(identifier, msgspec.json.decode(payloads[place]), None if times is None else times[place])

    def _identifier(self, cells: Mapping[str, Sequence[Any]], place: int) -> dict[str, Any]:
        if "identifier" in self._columns:
            text = cells["identifier"][place]
            found = _json("identifier", text) if isinstance(text, str) else text
            if not isinstance(found, dict):
                raise InvalidRequest("column 'identifier' must hold a JSON object", field="identifier")
            return found
        if isinstance(self._event_type, GenericType):
            named = {name: name for name in self._columns if name not in _OWN | _UNREAD}
        else:
            named = {field: column for field, column in self._column_of.items() if column in self._columns}
        values = {field: cells[column][place] for field, column in named.items()}
        return {field: cell_value(field, value) for field, value in values.items() if value is not None}


_READY = frozenset({str, int, float})  # cells that are values already


def _instant(time: Any) -> str | None:
    """Nanoseconds as text that is read back to the nanosecond."""
    if time is None or time == "":
        return None
    return event_time(int(time)) if str(time).isdigit() else str(time)


def _payload(text: Any) -> bytes:
    if text is None or text == "":
        return b"null"
    return payload_bytes(_json("payload", text) if isinstance(text, str) else text)


def _json(name: str, text: str) -> Any:
    try:
        return loads(text.encode())
    except (MalformedRequest, UnicodeEncodeError) as error:
        details = error.details if isinstance(error, MalformedRequest) else str(error)
        raise InvalidRequest(f"Column '{name}' is not JSON: {details}", field=name) from None


def _error(check: Any, *arguments: Any) -> RequestError:
    try:
        check(*arguments)
    except RequestError as error:
        return error.with_traceback(None)
    raise AssertionError("it was refused before")
