"""Proof of what a log must hold: the ledger beside the database, and the checksums in its rows.

Rows carry running Adler-32 sums, one for each column, each continued from row to row: a row has their values before
and after it. To verify rows that follow each other, one pass over each joined column must lead from the values before
the first row to those after the last one, however many rows lie between. A single row is verified in the same way.
Adler-32 notices every altered byte, as CRC-32 does, and takes half the time on texts as short as these.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from zlib import adler32, crc32

import msgspec

from aviso_server.errors import LogDamaged
from aviso_server.lockfile import replace_file
from aviso_server.model.notification import Box, Notification

__all__ = [
    "LEDGER",
    "PACKED_BOX",
    "SEPARATOR",
    "START",
    "SUMS_SIZE",
    "Ledger",
    "Sums",
    "chain",
    "has_time",
    "ledger_name",
    "read_ledger",
    "unpack_sums",
    "write_ledger",
]

SEPARATOR = "\x1f"  # after each value that SQLite joins: JSON cannot contain it
PACKED_BOX = struct.Struct("<4d")

_SUMS = struct.Struct("<10I")
SUMS_SIZE = _SUMS.size
_PACK = _SUMS.pack
_END = SEPARATOR.encode()
_LOW = 0xFFFFFFFF


class Sums(NamedTuple):
    """Running checksums of the columns."""

    topic: int
    identifier: int
    payload: int
    time: int  # decimal
    box: int  # hexadecimal, empty without one


START = Sums(1, 1, 1, 1, 1)


def chain(before: Sums, notifications: Sequence[Notification]) -> tuple[list[bytearray], Sums]:
    """Return the checksums of consecutive rows as they are stored, and those after the last row."""
    topic, identifier, payload, time, box = before
    written, text = 0, b""
    stored = []
    for one in notifications:
        if one.time != written:
            written, text = one.time, b"%d\x1f" % one.time
        number = one.sequence & _LOW  # ties them to the place of the row
        next_topic = adler32(one.topic.encode() + _END, topic)
        next_identifier = adler32(one.identifier + _END, identifier)
        next_payload = adler32(one.payload + _END, payload)
        next_time = adler32(text, time)
        next_box = adler32(_END if one.box is None else _hex(one.box), box)
        sums = _PACK(
            topic, identifier, payload, time ^ number, box,
            next_topic, next_identifier, next_payload, next_time ^ number, next_box,
        )  # fmt: skip
        stored.append(bytearray(sums))
        topic, identifier, payload, time, box = next_topic, next_identifier, next_payload, next_time, next_box
    return stored, Sums(topic, identifier, payload, time, box)


def unpack_sums(stored: object, sequence: int) -> tuple[Sums, Sums]:
    """Return the checksums before and after a row; ValueError if the bytes are none."""
    if not isinstance(stored, bytes) or len(stored) != SUMS_SIZE:
        raise ValueError("not the checksums of a row")
    numbers = list(_SUMS.unpack(stored))
    numbers[3] ^= sequence & _LOW
    numbers[8] ^= sequence & _LOW
    return Sums(*numbers[:5]), Sums(*numbers[5:])


def has_time(sequence: int, time: int, stored: object) -> bool:
    """Return whether a row was stored at this time, by its checksums."""
    try:
        before, after = unpack_sums(stored, sequence)
        return adler32(b"%d\x1f" % time, before.time) == after.time
    except (TypeError, ValueError):  # not even a number, or no checksums
        return False


def _hex(box: Box) -> bytes:
    return b"%b\x1f" % PACKED_BOX.pack(*box).hex().upper().encode()


LEDGER = "log.ledger"

_MAGIC = b"aviso ledger 1\n"
_RECORD = 512
_NAME = struct.Struct("<HI")  # length and checksum, then the name
_NAME_ROOM = 448
_SLOT = struct.Struct("<QI")
_SLOTS = (480, 496)
_SPARE = 64  # records for streams that are still to come


class _Record(msgspec.Struct):
    name: str
    last: int
    slot: int = 0  # written last


class Ledger:
    """The ledger of an open log; used by the writer's thread, and forced to disk by any."""

    def __init__(self, directory: Path, lasts: Mapping[int, tuple[str, int]]) -> None:
        """Write the ledger anew; `lasts` has the name and the newest sequence of each stream by its id."""
        self._file = directory / LEDGER
        write_ledger(directory, lasts)
        self._descriptor = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
        self._records = {number: _Record(ledger_name(name), last) for number, (name, last) in lasts.items()}
        self._room = os.fstat(self._descriptor).st_size
        self._dirty = False

    def make_room(self, number: int, name: str) -> None:
        """Reserve the record of a stream before anything is committed to it; OSError if there is no room."""
        record = _Record(ledger_name(name), 0)
        if number in self._records and self._records[number].name == record.name:
            return
        if (number + 1) * _RECORD > self._room:
            os.pwrite(self._descriptor, bytes((number + _SPARE) * _RECORD - self._room), self._room)
            self._room = (number + _SPARE) * _RECORD
        os.pwrite(self._descriptor, _encode(record), number * _RECORD)
        self._records[number] = record

    def note(self, number: int, last: int) -> None:
        """Record that a stream is acknowledged up to `last`."""
        record = self._records[number]
        if last > record.last:
            record.last, record.slot = last, 1 - record.slot
            os.pwrite(self._descriptor, _slot(record.name, last), number * _RECORD + _SLOTS[record.slot])
            self._dirty = True

    def force(self) -> None:
        """Force all records to disk. Blocks."""
        if self._dirty:
            self._dirty = False
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Force the records to disk and close the file."""
        try:
            self.force()
        finally:
            os.close(self._descriptor)


def write_ledger(directory: Path, lasts: Mapping[int, tuple[str, int]]) -> None:
    """Write a ledger, in place of one that may be there."""
    content = bytearray(_RECORD * (max(lasts, default=0) + _SPARE))
    content[: len(_MAGIC)] = _MAGIC
    for number, (name, last) in lasts.items():
        content[number * _RECORD : (number + 1) * _RECORD] = _encode(_Record(ledger_name(name), last))
    replace_file(directory / LEDGER, bytes(content), mode=0o600)


def read_ledger(directory: Path) -> dict[str, int] | None:
    """Read the newest acknowledged sequence of each stream; None if there is no ledger.

    LogDamaged if it cannot be told.
    """
    file = directory / LEDGER
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    if not content.startswith(_MAGIC):
        raise _damaged(file, "it does not begin as a ledger does")
    lasts: dict[str, int] = {}
    for start in range(_RECORD, len(content), _RECORD):
        record = content[start : start + _RECORD]
        if not any(record):
            continue
        try:
            name, last = _decode(record)
        except ValueError as error:
            raise _damaged(file, f"the record at byte {start} is broken ({error})") from None
        lasts[name] = max(last, lasts.get(name, 0))
    return lasts


def ledger_name(stream: str) -> str:
    """Return the name of a stream in the ledger: a very long one is shortened."""
    if len(stream.encode()) <= _NAME_ROOM:
        return stream
    return f"{stream[:64]}...{sha256(stream.encode()).hexdigest()}"


def _encode(record: _Record) -> bytes:
    name = record.name.encode()
    content = bytearray(_RECORD)
    content[: _NAME.size] = _NAME.pack(len(name), crc32(name))
    content[_NAME.size : _NAME.size + len(name)] = name
    for slot in _SLOTS:
        content[slot : slot + _SLOT.size] = _slot(record.name, record.last)
    return bytes(content)


def _slot(name: str, last: int) -> bytes:
    return _SLOT.pack(last, crc32(b"%d" % last, crc32(name.encode())))


def _decode(record: bytes) -> tuple[str, int]:
    if len(record) < _RECORD:
        raise ValueError("it is cut off")
    length, checksum = _NAME.unpack_from(record)
    name = record[_NAME.size : _NAME.size + length]
    if length > _NAME_ROOM or crc32(name) != checksum:
        raise ValueError("its name")
    lasts = []
    for slot in _SLOTS:
        last, checksum = _SLOT.unpack_from(record, slot)
        if crc32(b"%d" % last, crc32(name)) == checksum:
            lasts.append(last)
    if not lasts:
        raise ValueError("both its slots")
    return name.decode(), max(lasts)


def _damaged(file: Path, reason: str) -> LogDamaged:
    return LogDamaged(
        f"'{file}' is damaged: {reason}. It tells how far the log must reach, so nobody knows whether notifications "
        "are missing. Nothing was changed. 'aviso-server log repair' makes a new one from the log"
    )
