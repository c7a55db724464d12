"""Damage to a sqlite log: find it, refuse it, repair it.

Above the newest sequence that the log's own limits have removed, every sequence is there, but for those that an
administrator has removed, which the table `absent` knows. How far a stream must reach, the ledger says.

Commits in the write-ahead file can hide behind a damaged page: SQLite ends its recovery at the first frame (a page with
its header) whose checksum is wrong, without a word. After a power cut that is right for the commit that was being
written. Everything before it is on disk, because the writer begins a transaction only when the last one was forced
there. So a commit that another frame continues was on disk: if SQLite does not reach it, the file is damaged. The
format is described at https://sqlite.org/walformat.html.
"""

from __future__ import annotations

import contextlib
import sqlite3
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from aviso_server.errors import LogDamaged, LogUnavailable
from aviso_server.lockfile import replace_file
from aviso_server.log.sqlite.database import (
    DATABASE,
    FORMAT,
    QUICK_CHECK_BYTES,
    DirectoryLock,
    Entry,
    add_absent,
    as_log_error,
    check,
    connect,
    connect_to_read,
    create_stream,
    first_held,
    format_of,
    load_entries,
    save_entry,
    upgrade,
    wal_of,
)
from aviso_server.log.sqlite.ledger import (
    LEDGER,
    PACKED_BOX,
    START,
    Sums,
    chain,
    ledger_name,
    read_ledger,
    unpack_sums,
    write_ledger,
)
from aviso_server.model.notification import Box, Notification

__all__ = [
    "ROW",
    "Fetch",
    "Found",
    "Repaired",
    "Span",
    "StreamRepair",
    "acknowledged_of",
    "bring_back",
    "count_unread",
    "damaged",
    "expected",
    "gaps",
    "intact",
    "numbers",
    "refuse_damage",
    "refuse_unread",
    "repair",
    "spans",
]

Span = tuple[int, int]  # first and last sequence

ROW = "sequence, time, CAST(topic AS BLOB), CAST(identifier AS BLOB), CAST(payload AS BLOB), box, sums"
"""What `intact` needs of a row."""

_HIGHEST = 2**63 - 1
_NEWEST = 20_000  # sequences that are looked at when a large log starts
_NAMED = 5  # spans that a message lists
_FETCHED = 1000  # sequences that another store is asked for at once


class Found(msgspec.Struct, frozen=True):
    """What another store has of a range."""

    notifications: Sequence[Notification]
    removed: Sequence[Span] = ()  # it knows that these were deleted


Fetch = Callable[[str, int, int], Found]
"""Asks another store for the notifications of a stream from one sequence to another."""


class StreamRepair(msgspec.Struct, frozen=True):
    """What was wrong with a stream, and what became of it; sequences as pairs of first and last."""

    missing: Sequence[Span]
    altered: Sequence[Span]
    restored: Sequence[Span]
    lost: Sequence[Span]  # still damaged, or given up if that was asked for
    last: int


class Repaired(msgspec.Struct, frozen=True):
    """What a repair has found and done."""

    ledger: str  # "sound", "missing" or "damaged"
    streams: dict[str, StreamRepair]  # those with damage
    given_up: bool  # the lost are noted as absent: the log can be used
    commits: int = 0  # behind a damaged page of the write-ahead file, read again

    @property
    def usable(self) -> bool:
        """True if a server can use the log now."""
        return self.given_up or not any(each.lost for each in self.streams.values())


def expected(connection: sqlite3.Connection, stream: int, start: int, end: int) -> list[Span]:
    """List the sequences from `start` to `end` that a stream must hold."""
    (trimmed,) = connection.execute("SELECT trimmed FROM catalogue WHERE id = ?", (stream,)).fetchone()
    absent = connection.execute(
        "SELECT first, last FROM absent WHERE stream = ? AND last >= ? AND first <= ? ORDER BY first",
        (stream, start, end),
    ).fetchall()
    return list(_between([(0, trimmed), *absent], start, end))


def gaps(held: Iterable[int], within: Sequence[Span]) -> list[Span]:
    """List the sequences of `within` that are not among those held, which rise."""
    missing: list[Span] = []
    holding = spans(held)
    for start, end in within:
        missing += _between(holding, start, end)
    return missing


def spans(sequences: Iterable[int]) -> list[Span]:
    """Join rising sequences to spans."""
    return _merged((sequence, sequence) for sequence in sequences)


def intact(row: tuple[Any, ...], checked: bool) -> Notification | None:
    """Return the notification of a row with the columns `ROW`; None if it is not what was stored."""
    sequence, time, topic, identifier, payload, packed, sums = row
    try:
        box = None if packed is None else Box(*PACKED_BOX.unpack(packed))
        found = Notification(sequence, time, topic.decode(), identifier, payload, box)
        if checked and chain(unpack_sums(sums, sequence)[0], [found])[0][0] != sums:
            return None
    except (TypeError, ValueError, AttributeError, struct.error):  # it is not even of the right kind
        return None
    return found


def acknowledged_of(directory: Path) -> dict[str, int]:
    """Return how far each stream must reach; LogDamaged if nobody can say, though somebody should."""
    acknowledged = read_ledger(directory)
    if acknowledged is None:
        if format_of(directory / DATABASE) == FORMAT:
            raise LogDamaged(
                f"'{directory / LEDGER}' is missing. It tells how far the log must reach, so nobody knows whether "
                "notifications are missing. Nothing was changed. Bring it back, or let 'aviso-server log repair' make "
                "a new one from the log"
            )
        return {}
    return acknowledged


def refuse_damage(file: Path, acknowledged: Mapping[str, int]) -> None:
    """Raise LogDamaged if the log lacks something that it must hold; of a large log only the newest is looked at.

    Reads only: the write-ahead file stays as it is, whatever is wrong with it.
    """
    at_most = _HIGHEST if file.stat().st_size <= QUICK_CHECK_BYTES else _NEWEST
    with contextlib.closing(connect_to_read(file)) as connection:
        connection.execute("BEGIN")
        missing = _find_missing(connection, load_entries(connection), acknowledged, at_most)
    if missing:
        raise damaged(file, missing, "missing")
    refuse_unread(file)


def numbers(missing: Sequence[Span]) -> str:
    """Describe sequences: how many, and which."""
    count = sum(last - first + 1 for first, last in missing)
    listed = [f"{first}" if first == last else f"{first}-{last}" for first, last in missing[:_NAMED]]
    more = " and more" if len(missing) > _NAMED else ""
    return f"{count} notification{'s' if count != 1 else ''} (sequence {', '.join(listed)}{more})"


def damaged(file: Path, what: Mapping[str, Sequence[Span]], words: str) -> LogDamaged:
    """Build the error that names damaged notifications; `words` says what is wrong with them."""
    named = "; ".join(f"stream '{stream}': {numbers(which)}" for stream, which in sorted(what.items()))
    return LogDamaged(
        f"the log in '{file}' is damaged, acknowledged notifications are {words}: {named}. "
        "'aviso-server log repair' restores what the archive holds"
    )


def repair(directory: Path, fetch: Fetch | None, accept_loss: bool) -> Repaired:
    """Restore what `fetch` finds of what is missing or altered; with `accept_loss`, go on without the rest.

    No sequence that was acknowledged is given out again. LogError if there is no log, if a server uses it, or if
    SQLite itself cannot read it.
    """
    file = directory / DATABASE
    if not file.is_file():
        raise LogUnavailable(f"there is no log in '{directory}': '{DATABASE}' is missing")
    lock = DirectoryLock(directory)
    lock.take()
    try:
        commits = count_unread(file)
        bring_back(file)
        check(file)
        state, acknowledged = _ledger(directory)
        with contextlib.closing(connect(file)) as connection:
            upgrade(connection)
            connection.execute("BEGIN IMMEDIATE")
            done = _repair(connection, acknowledged, fetch, accept_loss)
            connection.execute("COMMIT")
            entries = load_entries(connection).values()
            repaired = Repaired(state, done, accept_loss, commits)
            if repaired.usable:
                write_ledger(directory, {entry.id: (entry.name, entry.last) for entry in entries})
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return repaired
    except sqlite3.Error as error:
        raise as_log_error(error, "repairing") from error
    except OSError as error:
        raise LogUnavailable(f"the log in '{directory}' could not be repaired: {error}") from error
    finally:
        lock.release()


def _ledger(directory: Path) -> tuple[str, dict[str, int]]:
    try:
        acknowledged = read_ledger(directory)
    except LogDamaged:
        return "damaged", {}
    return ("missing", {}) if acknowledged is None else ("sound", acknowledged)


def _repair(
    connection: sqlite3.Connection, acknowledged: dict[str, int], fetch: Fetch | None, accept_loss: bool
) -> dict[str, StreamRepair]:
    entries = load_entries(connection)
    missing = _find_missing(connection, entries, acknowledged, _HIGHEST)
    known = {ledger_name(name) for name in entries}
    for name in missing.keys() - entries.keys() - known:
        entries[name] = create_stream(connection, name)
    done: dict[str, StreamRepair] = {}
    for name, entry in entries.items():
        lacking, altered = missing.get(name, []), _find_altered(connection, entry)
        if not lacking and not altered:
            continue
        last = max(entry.last, acknowledged.get(ledger_name(name), 0))
        wrong = _merged([*lacking, *altered])
        restored: list[Span] = []
        for found in _fetched(fetch, name, wrong):
            _put_back(connection, entry, found.notifications)
            restored += spans(each.sequence for each in found.notifications)
            for removed in found.removed:
                _remove(connection, entry, removed)
            restored += found.removed
        lost = gaps((each for span in _merged(restored) for each in range(span[0], span[1] + 1)), wrong)
        if accept_loss:
            for span in lost:
                _remove(connection, entry, span)
        save_entry(connection, _counted(connection, entry, entry.last if lost and not accept_loss else last))
        done[name] = StreamRepair(lacking, altered, _merged(restored), lost, last)
    return done


def _find_missing(
    connection: sqlite3.Connection, entries: Mapping[str, Entry], acknowledged: Mapping[str, int], at_most: int
) -> dict[str, list[Span]]:
    """List the sequences that streams lack; only the newest `at_most` of each are looked at."""
    missing: dict[str, list[Span]] = {}
    lasts = {ledger_name(name): (name, entry.last) for name, entry in entries.items()}
    for noted, last in sorted(acknowledged.items()):
        name, held = lasts.get(noted, (noted, 0))
        if last > held:
            missing[name] = [(held + 1, last)]
    if connection.execute("PRAGMA user_version").fetchone()[0] != FORMAT:
        return missing
    for name, entry in entries.items():
        for start, end in expected(connection, entry.id, max(1, entry.last - at_most + 1), entry.last):
            query = f"FROM {entry.table} WHERE sequence BETWEEN ? AND ?"
            (count,) = connection.execute(f"SELECT count(*) {query}", (start, end)).fetchone()
            if count != end - start + 1:
                rows = connection.execute(f"SELECT sequence {query} ORDER BY sequence", (start, end))
                lacking = gaps((sequence for (sequence,) in rows), [(start, end)])
                missing[name] = lacking + missing.get(name, [])
    return missing


def _find_altered(connection: sqlite3.Connection, entry: Entry) -> list[Span]:
    """List the notifications of a stream that are not as they were stored."""
    rows = connection.execute(
        f"SELECT {ROW} FROM {entry.table} WHERE sequence >= ? ORDER BY sequence", (entry.checked_from,)
    )
    return spans(row[0] for row in rows if intact(row, checked=True) is None)


def _fetched(fetch: Fetch | None, stream: str, wanted: Sequence[Span]) -> Iterator[Found]:
    if fetch is None:
        return
    for first, last in wanted:
        for start in range(first, last + 1, _FETCHED):
            yield fetch(stream, start, min(last, start + _FETCHED - 1))


def _put_back(connection: sqlite3.Connection, entry: Entry, notifications: Sequence[Notification]) -> None:
    """Store notifications at their sequences, in place of what is there."""
    for one in notifications:
        values = (
            one.sequence,
            one.time,
            len(one.topic.encode()) + len(one.identifier) + len(one.payload),
            chain(_sums_after(connection, entry, one.sequence - 1), [one])[0][0],
            one.topic,
            one.identifier.decode(),
            one.payload.decode(),
            None if one.box is None else PACKED_BOX.pack(*one.box),
        )
        connection.execute(
            f"INSERT OR REPLACE INTO {entry.table} "
            "(sequence, time, size, sums, topic, identifier, payload, box) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            values,
        )


def _sums_after(connection: sqlite3.Connection, entry: Entry, sequence: int) -> Sums:
    """Return the checksums after a row; without such a row, those to begin with."""
    row = connection.execute(f"SELECT sums FROM {entry.table} WHERE sequence = ?", (sequence,)).fetchone()
    try:
        return START if row is None else unpack_sums(row[0], sequence)[1]
    except ValueError:
        return START


def _remove(connection: sqlite3.Connection, entry: Entry, span: Span) -> None:
    connection.execute(f"DELETE FROM {entry.table} WHERE sequence BETWEEN ? AND ?", span)
    add_absent(connection, entry.id, *span)


def _counted(connection: sqlite3.Connection, entry: Entry, last: int) -> Entry:
    """Make the stream's line of the catalogue from its rows."""
    newest, time, count, size, largest, boxed = connection.execute(
        "SELECT ifnull(max(sequence), 0), ifnull(max(time), 0), count(*), ifnull(sum(size), 0), ifnull(max(size), 0), "
        f"ifnull(max(box IS NOT NULL), 0) FROM {entry.table}"
    ).fetchone()
    last = max(last, newest)
    return msgspec.structs.replace(
        entry,
        first=first_held(connection, entry.table, last),
        last=last,
        last_time=max(entry.last_time, time),
        count=count,
        bytes=size,
        largest=max(entry.largest, largest),
        boxed=bool(entry.boxed or boxed),
    )


def _merged(several: Iterable[Span]) -> list[Span]:
    """Sort spans and join those that touch."""
    found: list[Span] = []
    for first, last in sorted(several):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def _between(taken: Iterable[Span], start: int, end: int) -> Iterable[Span]:
    for first, last in taken:
        if first > start:
            yield start, min(end, first - 1)
        start = max(start, last + 1)
        if start > end:
            return
    if start <= end:
        yield start, end


_HEADER = struct.Struct(">8I")  # magic, version, page size, checkpoints, two salts, two checksums
_FRAME = struct.Struct(">6I")  # page, pages of the database after a commit or 0, two salts, two checksums
_MAGIC = {"little": 0x377F0682, "big": 0x377F0683}
_VERSION = 3_007_000
_FRAMES_READ = struct.Struct("=16xI")  # of the index that SQLite keeps beside the file
_LOW = 0xFFFFFFFF

_Pair = tuple[int, int]


def refuse_unread(file: Path) -> None:
    """Raise LogDamaged if commits lie behind a damaged page; nothing is changed."""
    if count := count_unread(file):
        raise LogDamaged(
            f"'{wal_of(file)}' is damaged: {count} commits behind the damage cannot be read. Nothing was changed. "
            "'aviso-server log repair' brings back what can be read of them"
        )


def count_unread(file: Path) -> int:
    """Count the commits that were on disk and that SQLite does not reach; nothing is changed."""
    found = _load(file)
    return 0 if found is None else len(found.unread)


def bring_back(file: Path) -> None:
    """Make SQLite read all commits: damaged pages are taken as they are, and rows find out by their own checksums."""
    found = _load(file)
    if found is not None and found.unread:
        replace_file(wal_of(file), found.with_new_checksums(), mode=0o600)
        file.with_name(f"{file.name}-shm").unlink(missing_ok=True)


def _load(file: Path) -> _Frames | None:
    with contextlib.suppress(FileNotFoundError):
        content = wal_of(file).read_bytes()
        if len(content) > _HEADER.size and any(content):
            return _Frames(content, _page_size(file), _frames_read(file))
    return None


def _page_size(file: Path) -> int:
    with file.open("rb") as stream:
        return int.from_bytes(stream.read(18)[16:18], "big")


def _frames_read(file: Path) -> int:
    """Return how many frames SQLite takes for sound, up to the last commit among them."""
    uri = f"{file.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        with file.with_name(f"{file.name}-shm").open("rb") as index:
            return int(_FRAMES_READ.unpack(index.read(_FRAMES_READ.size))[0])


class _Frames:
    """The frames of a write-ahead file."""

    def __init__(self, content: bytes, page_size: int, read: int) -> None:
        self._content = content
        self._page_size = page_size
        self._size = _FRAME.size + page_size
        self._read = read
        self._count = (len(content) - _HEADER.size) // self._size
        magic, _, _, _, *rest = _HEADER.unpack_from(content)
        self._order = "big" if magic == _MAGIC["big"] else "little" if magic == _MAGIC["little"] else sys.byteorder
        self._sound = self._sum((0, 0), content[: _HEADER.size - 8]) == tuple(rest[2:])
        self._salts: list[int] = rest[:2] if self._sound or not self._count else list(self._head(0)[2:4])
        self.unread = [place for place in self._commits() if self._continues(place + 1)]

    def with_new_checksums(self) -> bytes:
        """Return the file up to its last commit, with checksums as if everything in it were sound."""
        last = max([*self.unread, *(place for place in self._commits() if self._continues(place))])
        header = self._content[: _HEADER.size]
        if not self._sound:
            start = struct.pack(">6I", _MAGIC[self._order], _VERSION, self._page_size, 0, *self._salts)
            header = start + struct.pack(">2I", *self._sum((0, 0), start))
        sums: _Pair = _HEADER.unpack(header)[6:]
        made = bytearray(header)
        for place in range(last + 1):
            page, size, *_, first, second = self._head(place)
            if place < self._read:
                sums = first, second
            else:
                sums = self._sum(sums, struct.pack(">2I", page, size) + self._page(place))
            made += _FRAME.pack(page, size, *self._salts, *sums) + self._page(place)
        return bytes(made)

    def _commits(self) -> list[int]:
        """List the frames behind those that are read which end a commit of this turn of the file."""
        heads = ((place, self._head(place)) for place in range(self._read, self._count))
        return [place for place, head in heads if head[1] and list(head[2:4]) == self._salts]

    def _continues(self, place: int) -> bool:
        """Return whether a frame was written after the one before it."""
        if not 0 < place < self._count or list(self._head(place)[2:4]) != self._salts:
            return False
        start = _HEADER.size + place * self._size
        sums = self._sum(self._head(place - 1)[4:], self._content[start : start + 8] + self._page(place))
        return sums == self._head(place)[4:]

    def _head(self, place: int) -> tuple[int, ...]:
        return _FRAME.unpack_from(self._content, _HEADER.size + place * self._size)

    def _page(self, place: int) -> bytes:
        start = _HEADER.size + place * self._size + _FRAME.size
        return self._content[start : start + self._page_size]

    def _sum(self, before: tuple[int, ...], content: bytes) -> _Pair:
        first, second = before
        for one, other in struct.iter_unpack("<2I" if self._order == "little" else ">2I", content):
            first = (first + one + second) & _LOW
            second = (second + other + first) & _LOW
        return first, second
