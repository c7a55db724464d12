"""The files of a sqlite log: who owns the directory, and whether the database is ours and sound.

Everything here looks before it writes: a database that is foreign, newer or broken is refused and left byte for byte
as it was.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import sqlite3
import stat
import threading
from pathlib import Path

import msgspec

from aviso_server.errors import LogDamaged, LogError, LogInUse, LogUnavailable
from aviso_server.lockfile import Lockfile, LockHeld, move_into_place
from aviso_server.log.base import StreamState
from aviso_server.log.sqlite.ledger import LEDGER, START, Ledger, Sums, read_ledger, unpack_sums, write_ledger

__all__ = [
    "DATABASE",
    "FORMAT",
    "PAGE_SIZE",
    "QUICK_CHECK_BYTES",
    "WAL_PAGES",
    "Checkpoints",
    "DirectoryLock",
    "Entry",
    "WriteAheadFile",
    "add_absent",
    "as_log_error",
    "check",
    "check_copy",
    "connect",
    "connect_to_read",
    "connect_without_sync",
    "create_stream",
    "first_held",
    "format_of",
    "is_full",
    "load_entries",
    "preallocate_wal",
    "prepare",
    "save_entry",
    "upgrade",
    "wal_of",
]

logger = logging.getLogger(__name__)

DATABASE = "log.sqlite"
LOCK = "lock"

APPLICATION_ID = 0x41564953  # "AVIS"
FORMAT = 2
_FIRST_FORMAT = 1  # without checksums and ledger; brought up to date when it is opened
PAGE_SIZE = 8192
WAL_PAGES = 2000  # that commits are ahead of the database as a rule, and that all readers look through
_MOST_WAL_PAGES = 4 * WAL_PAGES  # where a commit moves them itself, because nobody did it beside
_RESTART_PAGES = WAL_PAGES // 2
CHECKPOINT_SECONDS = 0.1
_FRAME_HEADER = 24  # bytes before each page there
QUICK_CHECK_BYTES = 256 * 1024 * 1024  # larger databases are not walked at start: it would take too long

CATALOGUE = """
CREATE TABLE catalogue (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    last_sequence INTEGER NOT NULL,
    last_time INTEGER NOT NULL,
    trimmed INTEGER NOT NULL,
    count INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    largest INTEGER NOT NULL,
    boxed INTEGER NOT NULL,
    checked_from INTEGER NOT NULL DEFAULT 1
)
"""
ABSENT = """
CREATE TABLE absent (
    stream INTEGER NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    PRIMARY KEY (stream, first)
) WITHOUT ROWID
"""

_MAGIC = b"SQLite format 3\x00"
_OWNER_ONLY = 0o600
_LITTLE_ROOM = 64 * 1024  # bytes
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class DirectoryLock(Lockfile):
    """One process at a time owns a log directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / LOCK)
        self._directory = directory

    def take(self) -> None:
        try:
            super().take()
        except LockHeld as held:
            raise LogInUse(
                f"the log directory '{self._directory}' is in use by the process with pid {held.owner}; "
                "stop that server or set notification_backend.sqlite.path to another directory"
            ) from None


class WriteAheadFile:
    """The file that commits go to before they go into the database; exists once a connection has read something."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(wal_of(file), os.O_RDWR | os.O_CLOEXEC)

    def force(self) -> None:
        """Return when all that was committed is on disk; OSError if that cannot be said. Blocks."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class Checkpoints:
    """A thread that moves commits from the write-ahead file into the database, beside the commits.

    SQLite would do that in the middle of a later commit, and all publishers would wait for it: tens of milliseconds,
    about once a second. When the thread has caught up but for the last moment, the writer moves that rest, so that
    SQLite starts the file from its front again. What cannot be done now is tried again later; nothing depends on it.
    """

    def __init__(self, file: Path, ledger: Ledger) -> None:
        self._file = file
        self._ledger = ledger
        self._committed = threading.Event()
        self._stopping = threading.Event()
        self._restart_due = False
        self._thread = threading.Thread(target=self._run, name="aviso-log-checkpoints", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def note_commit(self) -> None:
        """Hear of a commit; the writer calls this after each."""
        if not self._committed.is_set():
            self._committed.set()

    def restart(self, writing: sqlite3.Connection) -> None:
        """Move the rest, if it is small, over the connection that nobody else can write with meanwhile."""
        if self._restart_due:
            self._restart_due = False
            with contextlib.suppress(sqlite3.Error):
                writing.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def stop(self) -> None:
        """End the thread and wait for it. Blocks."""
        self._stopping.set()
        self._committed.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(connect(self._file)) as connection:
            while True:
                self._committed.wait()
                if self._stopping.wait(CHECKPOINT_SECONDS):
                    return
                if self._restart_due:  # the writer is about to do it
                    continue
                self._committed.clear()
                if self._stopping.is_set():  # it may be `stop` whose call was cleared
                    return
                self._force_ledger()
                with contextlib.suppress(sqlite3.Error):  # no room, say: the commits stay where they are
                    _, ahead, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                    self._restart_due = ahead >= _RESTART_PAGES

    def _force_ledger(self) -> None:
        try:
            self._ledger.force()
        except OSError as error:
            logger.error(
                "the ledger of the log may not be on disk: %s", error, extra={"event": "backend.sqlite.ledger.failed"}
            )


def wal_of(file: Path) -> Path:
    """Return the path of a database's write-ahead file."""
    return file.with_name(f"{file.name}-wal")


def connect(file: Path) -> sqlite3.Connection:
    """Open a prepared database in autocommit mode, with every commit forced to disk."""
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False, cached_statements=512)
    try:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint={_MOST_WAL_PAGES}")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_without_sync(file: Path) -> sqlite3.Connection:
    """Open it so that whoever commits has to force the commit to disk with `WriteAheadFile`."""
    connection = connect(file)
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def connect_to_read(file: Path) -> sqlite3.Connection:
    """Open a database that nobody has open, and change nothing.

    A read-only connection neither repairs nor checkpoints, and an immutable one makes no files beside the database: a
    broken one stays as it is.
    """
    ahead = wal_of(file)
    mode = "mode=ro" if ahead.exists() and ahead.stat().st_size > 0 else "immutable=1"
    return sqlite3.connect(f"{file.absolute().as_uri()}?{mode}", uri=True, isolation_level=None)


def preallocate_wal(file: Path) -> None:
    """Give the file that commits go to its full size at once.

    Forcing bytes to disk takes half as long, and seldom very long, where the file need not grow. Zeros are no valid
    frame to SQLite, which overwrites them. A disk without room for it is no reason not to start.
    """
    room = WAL_PAGES * (PAGE_SIZE + _FRAME_HEADER)
    with contextlib.suppress(OSError), wal_of(file).open("r+b", buffering=0) as stream:
        before = stream.seek(0, os.SEEK_END)
        try:
            if before < room:
                os.posix_fallocate(stream.fileno(), before, room - before)
                stream.write(bytes(room - before))
                os.fsync(stream.fileno())
        except OSError:
            stream.truncate(before)
            raise


def prepare(directory: Path) -> Path:
    """Check the database of this directory, or make a new one if there is none; return its path."""
    file = directory / DATABASE
    ahead = wal_of(file)
    written_ahead = ahead.exists() and ahead.stat().st_size > 0
    if file.exists():
        check(file)
    elif written_ahead:
        # SQLite would play the changes of the lost database into the new one.
        raise _damaged(
            file, f"it is missing, but its companion '{ahead.name}' is there; bring it back or move both away"
        )
    elif any((read_ledger(directory) or {}).values()):
        raise LogDamaged(
            f"'{file}' is missing, but '{LEDGER}' beside it says that notifications were acknowledged. Nothing was "
            "changed. Bring it back, restore a copy of it with 'aviso-server restore', or move the ledger away to "
            "start with an empty log"
        )
    else:
        write_ledger(directory, {})  # first: a database without one counts as damaged
        _create(file)
    for each in (file, ahead, file.with_name(f"{file.name}-shm")):
        if each.exists() and stat.S_IMODE(each.stat().st_mode) != _OWNER_ONLY:
            each.chmod(_OWNER_ONLY)  # as an earlier version made it
    return file


def check(file: Path) -> None:
    """Raise LogDamaged unless the file is a log of ours and sound; nothing is changed."""
    if (reason := _fault(file)) is not None:
        raise _damaged(file, reason)


def check_copy(file: Path) -> None:
    """Raise LogDamaged unless the file is a sound copy of a log of ours; nothing is changed."""
    if (reason := _fault(file)) is not None:
        raise LogDamaged(
            f"'{file}' is no copy of a log that can be restored: {reason}. Nothing was changed. Name a file that "
            "'aviso-server backup' has made"
        )


def _fault(file: Path) -> str | None:
    return _header_fault(file) or _content_fault(file)


def format_of(file: Path) -> int:
    """Return the format of a checked database, as far as it has reached the database itself."""
    with file.open("rb") as stream:
        return int.from_bytes(stream.read(64)[60:64], "big")


def as_log_error(error: Exception, doing: str) -> LogError:
    """Build the LogError for an error of SQLite or the file system."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in _BROKEN:
        return LogDamaged(f"the log's database is broken, {doing} failed: {error}; restore it from a copy")
    if is_full(error):
        return LogUnavailable(f"the log's disk is full, {doing} failed: {error}")
    return LogUnavailable(f"the log's database cannot be used now, {doing} failed: {error}")


def is_full(error: Exception, directory: Path | None = None) -> bool:
    """Return whether the disk is full (that of this directory, where SQLite does not say so)."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF == sqlite3.SQLITE_IOERR and directory is not None:
        return shutil.disk_usage(directory).free < _LITTLE_ROOM
    return bool(code == sqlite3.SQLITE_FULL)


def _header_fault(file: Path) -> str | None:
    with file.open("rb") as stream:
        header = stream.read(100)
    if len(header) < 100 or not header.startswith(_MAGIC):
        return "it is not an SQLite database"
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        return "it is an SQLite database of another application"
    if not _FIRST_FORMAT <= (version := int.from_bytes(header[60:64], "big")) <= FORMAT:
        return f"it has format {version} and this version reads only formats {_FIRST_FORMAT} to {FORMAT}"
    return None


def _content_fault(file: Path) -> str | None:
    try:
        connection = connect_to_read(file)
        try:
            if file.stat().st_size <= QUICK_CHECK_BYTES:
                finding = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if finding != "ok":
                    return f"SQLite's check says: {finding}"
            for (number,) in connection.execute("SELECT id FROM catalogue").fetchall():
                connection.execute(f"SELECT max(sequence) FROM stream_{number:d}").fetchone()
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in _BROKEN or code == sqlite3.SQLITE_ERROR:
            return f"SQLite says: {error}"
        raise as_log_error(error, "opening it") from error
    return None


def _create(file: Path) -> None:
    # Built beside its place and moved there, so that a crash never leaves half a database.
    draft = file.with_name(f"{file.name}.new")
    for leftover in (draft, *(draft.with_name(f"{draft.name}{end}") for end in ("-wal", "-shm", "-journal"))):
        leftover.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY))
    connection = sqlite3.connect(draft, isolation_level=None)
    try:
        connection.execute(f"PRAGMA page_size={PAGE_SIZE}")
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={FORMAT}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(CATALOGUE)
        connection.execute(ABSENT)
    finally:
        connection.close()
    move_into_place(draft, file)


def _damaged(file: Path, reason: str) -> LogDamaged:
    return LogDamaged(
        f"'{file}' cannot be used as a log: {reason}. Nothing was changed. Move the file and its ledger away to start "
        "with an empty log, restore it from a copy, or set notification_backend.sqlite.path to another directory"
    )


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A stream's line in the catalogue, plus the oldest sequence it holds."""

    id: int
    name: str
    first: int
    last: int
    last_time: int
    trimmed: int
    count: int
    bytes: int
    largest: int  # the biggest notification it ever held: bounds the memory one read may take
    boxed: bool  # it ever held a notification with a box
    checked_from: int = 1  # notifications from here on have checksums
    sums: Sums = START  # checksums that the next row continues

    @property
    def table(self) -> str:
        return f"stream_{self.id:d}"

    def state(self) -> StreamState:
        return StreamState(self.first, self.last, self.count, self.bytes, self.trimmed)


def upgrade(connection: sqlite3.Connection) -> None:
    """Bring a database of the first format up to date; nothing is said about what it holds already."""
    if connection.execute("PRAGMA user_version").fetchone()[0] == FORMAT:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("ALTER TABLE catalogue ADD COLUMN checked_from INTEGER NOT NULL DEFAULT 1")
        connection.execute(ABSENT)
        for entry in load_entries(connection).values():
            connection.execute(f"ALTER TABLE {entry.table} ADD COLUMN sums BLOB")
            connection.execute("UPDATE catalogue SET checked_from = ? WHERE id = ?", (entry.last + 1, entry.id))
            # what was removed from it nobody has noted
            add_absent(connection, entry.id, 1, entry.last)
        connection.execute(f"PRAGMA user_version={FORMAT}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def add_absent(connection: sqlite3.Connection, stream: int, first: int, last: int) -> None:
    """Record that a stream need not hold these sequences."""
    if first <= last:
        connection.execute(
            "INSERT INTO absent VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET last = max(last, excluded.last)",
            (stream, first, last),
        )


def load_entries(connection: sqlite3.Connection) -> dict[str, Entry]:
    """Load all streams of the database by name.

    The catalogue may be behind: rows that were only added since it was last saved are counted here.
    """
    entries = {}
    current = connection.execute("PRAGMA user_version").fetchone()[0] == FORMAT
    rows = connection.execute(
        "SELECT id, name, last_sequence, last_time, trimmed, count, bytes, largest, boxed, "
        f"{'checked_from' if current else 'last_sequence + 1'} FROM catalogue"
    )
    for number, name, last, last_time, trimmed, count, size, largest, boxed, checked_from in rows.fetchall():
        table = f"stream_{number:d}"
        newest, newest_time, more, more_bytes, more_largest, more_boxed = connection.execute(
            "SELECT ifnull(max(sequence), 0), ifnull(max(time), 0), count(*), ifnull(sum(size), 0), "
            f"ifnull(max(size), 0), ifnull(max(box IS NOT NULL), 0) FROM {table} WHERE sequence > ?",
            (last,),
        ).fetchone()
        last, last_time = max(last, newest), max(last_time, newest_time)
        largest, boxed = max(largest, more_largest), bool(boxed or more_boxed)
        first = first_held(connection, table, last)
        entries[name] = Entry(
            number, name, first, last, last_time, trimmed, count + more, size + more_bytes, largest, boxed,
            checked_from, _newest_sums(connection, table) if current else START,
        )  # fmt: skip
    return entries


def _newest_sums(connection: sqlite3.Connection, table: str) -> Sums:
    """Return the checksums after the newest row; without a sound one the next row begins anew."""
    row = connection.execute(f"SELECT sequence, sums FROM {table} ORDER BY sequence DESC LIMIT 1").fetchone()
    try:
        return START if row is None else unpack_sums(row[1], row[0])[1]
    except ValueError:
        return START


def save_entry(connection: sqlite3.Connection, entry: Entry) -> None:
    connection.execute(
        "UPDATE catalogue SET last_sequence = ?, last_time = ?, trimmed = ?, count = ?, bytes = ?, largest = ?, "
        "boxed = ? WHERE id = ?",
        (entry.last, entry.last_time, entry.trimmed, entry.count, entry.bytes, entry.largest, entry.boxed, entry.id),
    )


def first_held(connection: sqlite3.Connection, table: str, last: int) -> int:
    """Return the oldest sequence in the table, or last + 1 if it is empty."""
    first: int | None = connection.execute(f"SELECT min(sequence) FROM {table}").fetchone()[0]
    return last + 1 if first is None else first


def create_stream(connection: sqlite3.Connection, name: str) -> Entry:
    """Make the table and the catalogue line of a new stream."""
    number = connection.execute(
        "INSERT INTO catalogue (name, last_sequence, last_time, trimmed, count, bytes, largest, boxed) "
        "VALUES (?, 0, 0, 0, 0, 0, 0, 0)",
        (name,),
    ).lastrowid
    assert number is not None  # an INSERT that did not raise has a row id
    # Small columns first: tests on them need not walk the overflow pages of a large payload.
    connection.execute(
        f"CREATE TABLE stream_{number:d} (sequence INTEGER PRIMARY KEY, time INTEGER NOT NULL, size INTEGER NOT NULL, "
        "sums BLOB, box BLOB, topic TEXT NOT NULL, identifier TEXT NOT NULL, payload TEXT NOT NULL)"
    )
    return Entry(number, name, 1, 0, 0, 0, 0, 0, 0, False)
