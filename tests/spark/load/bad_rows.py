"""Rows to load, one per cent of every kind of bad row among them, and what must become of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from aviso_server.model.event_type import EventType, build_event_type

__all__ = ["DEFINITION", "KINDS", "MARS", "Kind", "good_row", "is_good", "kind_of", "rows", "write_rows"]

_INVALID = "INVALID_NOTIFICATION_REQUEST"
_SHAPE = "INVALID_REQUEST_SHAPE"
_JSON = "INVALID_JSON"

DEFINITION: dict[str, Any] = {
    "payload": {"required": True},
    "topic": {"base": "mars", "key_order": ["class", "expver", "domain", "date", "time", "stream", "step"]},
    "identifier": {
        "class": {"type": "StringHandler", "max_length": 2, "required": True},
        "expver": {"type": "ExpverHandler", "default": "0001", "required": False},
        "domain": {"type": "EnumHandler", "values": ["a", "b", "g"], "required": False},
        "date": {"type": "DateHandler", "required": False},
        "time": {"type": "TimeHandler", "required": False},
        "stream": {"type": "StringHandler", "required": False},
        "step": {"type": "IntHandler", "range": [0, 100000], "required": False},
    },
}


def _mars() -> EventType:
    built, problems = build_event_type("mars", DEFINITION)
    assert built is not None, problems
    return built


MARS = _mars()

Row = dict[str, Any]


class Kind(NamedTuple):
    """A way in which a row can be bad, and what is said of it."""

    name: str
    spoil: Callable[[Row], bytes]
    code: str
    field: str | None


def _identifier(**values: Any) -> Callable[[Row], bytes]:
    return lambda row: _line({**row, "identifier": {**row["identifier"], **values}})


def _member(**members: Any) -> Callable[[Row], bytes]:
    return lambda row: _line({**row, **members})


def _text(spoil: Callable[[bytes], bytes]) -> Callable[[Row], bytes]:
    return lambda row: spoil(_line(row))


def _line(row: Row) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode()


def _without_step(row: Row) -> bytes:
    return _line({**row, "identifier": {name: value for name, value in row["identifier"].items() if name != "step"}})


_DEEP = b'{"deep":%b,"size"' % (b"[" * 125 + b"]" * 125)

KINDS = (
    Kind("not JSON", _text(lambda line: b"nope " + line), _JSON, None),
    Kind("cut off", _text(lambda line: line[: len(line) // 2]), _JSON, None),
    Kind("not UTF-8", _text(lambda line: line.replace(b"oper", b"\xff").replace(b"enfo", b"\xff")), _JSON, None),
    Kind("not a number", _text(lambda line: line.replace(b'"size":', b'"size":NaN,"more":')), _JSON, None),
    Kind("half a character", _text(lambda line: line.replace(b"s3:", b"\\ud800")), _JSON, None),
    Kind("no object", lambda row: b"[1]", _SHAPE, None),
    Kind("no identifier", lambda row: _line({"payload": row["payload"]}), _SHAPE, None),
    Kind("unknown member", _member(identifer={}), "UNKNOWN_FIELD", None),
    Kind("other event type", _member(event_type="flood"), _INVALID, "event_type"),
    Kind("unknown field", _identifier(klass="od"), _INVALID, "klass"),
    Kind("missing field", _without_step, _INVALID, "step"),
    Kind("no payload", lambda row: _line({"identifier": row["identifier"]}), _INVALID, "payload"),
    Kind("deep payload", _text(lambda line: line.replace(b"{\"size\"", _DEEP)), _INVALID, "payload"),
    Kind("too long", _identifier(**{"class": "odd"}), _INVALID, "class"),
    Kind("empty", _identifier(stream=""), _INVALID, "stream"),
    Kind("null", _identifier(stream=None), _INVALID, "stream"),
    Kind("array", _identifier(domain=["a"]), _INVALID, "domain"),
    Kind("no such choice", _identifier(domain="z"), _INVALID, "domain"),
    Kind("no such day", _identifier(date="20250230"), _INVALID, "date"),
    Kind("no time of day", _identifier(time="noon"), _INVALID, "time"),
    Kind("no such hour", _identifier(time="2500"), _INVALID, "time"),
    Kind("no integer", _identifier(step="3.5"), _INVALID, "step"),
    Kind("out of range", _identifier(step=100001), _INVALID, "step"),
    Kind("point", _identifier(point="1,2"), _INVALID, "point"),
)  # fmt: skip
"""Every kind of bad row; the n-th of each hundred rows is of the n-th kind."""


def kind_of(number: int, sparse: bool = False) -> Kind | None:
    """The kind of the row of this number; None if it is good. With `sparse`, one row of a hundred is bad."""
    if sparse:
        return None if number % 100 else KINDS[number // 100 % len(KINDS)]
    place = number % 100
    return KINDS[place] if place < len(KINDS) else None


def is_good(number: int) -> bool:
    """True for rows that must be taken."""
    return number % 100 >= len(KINDS)


def good_row(number: int) -> Row:
    """A good row; its payload says which."""
    mixed = number * 2654435761 % 2**32  # like chance, but the same each time
    return {
        "identifier": {
            "class": "od",
            "expver": ("1", "0001")[mixed >> 5 & 1],
            "domain": "abG"[mixed % 3],
            "date": f"2025-06-{mixed % 30 + 1:02d}" if mixed & 1 else f"202506{mixed % 30 + 1:02d}",
            "time": ("0", "06:00", "1200", 18)[mixed >> 3 & 3],
            "stream": ("oper", "enfo")[mixed >> 7 & 1],
            "step": mixed >> 9 & 255,
        },
        "payload": {"size": number, "location": f"s3://bucket/{mixed:08x}/{number}"},
        "time": f"2025-06-01T{mixed % 24:02d}:{mixed % 60:02d}:00.{mixed % 1000:03d}Z",
    }


def rows(first: int, last: int, sparse: bool = False) -> Iterator[bytes]:
    """The rows of these numbers as lines, good and bad."""
    for number in range(first, last + 1):
        kind = kind_of(number, sparse)
        yield _line(good_row(number)) if kind is None else kind.spoil(good_row(number))


def write_rows(file: Path, first: int, last: int, sparse: bool = False) -> None:
    """A file with the rows of these numbers, one per line."""
    with file.open("wb") as lines:
        for line in rows(first, last, sparse):
            lines.write(line + b"\n")
