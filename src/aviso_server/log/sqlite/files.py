"""The files of a sqlite log: who owns the directory, and whether the database is ours and sound.

Everything here looks before it writes: a database that is foreign, newer or broken is refused and left byte for byte
as it was.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from aviso_server.disk import move_into_place
from aviso_server.errors import LogDamaged, LogError, LogInUse, LogUnavailable
from aviso_server.hold import Held, Hold

__all__ = [
    "DATABASE",
    "Ahead",
    "DirectoryLock",
    "as_log_error",
    "check",
    "check_copy",
    "connect",
    "connect_unforced",
    "make_room_ahead",
    "prepare",
]

DATABASE = "log.sqlite"
LOCK = "lock"

APPLICATION_ID = 0x41564953  # "AVIS"
FORMAT = 1
PAGE_SIZE = 8192
PAGES_AHEAD = 2000  # that commits are ahead of the database as a rule, and that all readers look through
_MOST_PAGES_AHEAD = 4 * PAGES_AHEAD  # where a commit moves them itself, because nobody did it beside
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
    boxed INTEGER NOT NULL
)
"""

_MAGIC = b"SQLite format 3\x00"
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class DirectoryLock(Hold):
    """One process at a time owns a log directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / LOCK)
        self._directory = directory

    def take(self) -> None:
        """Take the directory or raise LogInUse naming its owner."""
        try:
            super().take()
        except Held as held:
            raise LogInUse(
                f"the log directory '{self._directory}' is in use by the process with pid {held.owner}; "
                "stop that server or set notification_backend.sqlite.path to another directory"
            ) from None


class Ahead:
    """The file that commits go to before they go into the database; exists once a connection has read something."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(_ahead_of(file), os.O_RDWR | os.O_CLOEXEC)

    def force(self) -> None:
        """Return when all that was committed is on disk; OSError if that cannot be said. Blocks."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)


def connect(file: Path) -> sqlite3.Connection:
    """A connection to a prepared database, in autocommit mode, with every commit forced to disk."""
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False, cached_statements=512)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint={_MOST_PAGES_AHEAD}")
    return connection


def connect_unforced(file: Path) -> sqlite3.Connection:
    """The same, but whoever commits has to force it to disk with `Ahead`."""
    connection = connect(file)
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def make_room_ahead(file: Path) -> None:
    """Give the file that commits go to its full size at once.

    Forcing bytes to disk takes half as long, and seldom very long, where the file need not grow. Zeros are no valid
    frame to SQLite, which overwrites them. A disk without room for it is no reason not to start.
    """
    room = PAGES_AHEAD * (PAGE_SIZE + _FRAME_HEADER)
    with contextlib.suppress(OSError), _ahead_of(file).open("r+b") as stream:
        missing = room - stream.seek(0, os.SEEK_END)
        if missing > 0:
            stream.write(bytes(missing))
            stream.flush()
            os.fsync(stream.fileno())


def prepare(directory: Path) -> Path:
    """Check the database of this directory, or make a new one if there is none; return its path."""
    file = directory / DATABASE
    ahead = _ahead_of(file)
    written_ahead = ahead.exists() and ahead.stat().st_size > 0
    if file.exists():
        check(file)
    elif written_ahead:
        # SQLite would play the changes of the lost database into the new one.
        raise _damaged(
            file, f"it is missing, but its companion '{ahead.name}' is there; bring it back or move both away"
        )
    else:
        _create(file)
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
    ahead = _ahead_of(file)
    return _header_fault(file) or _content_fault(file, ahead.exists() and ahead.stat().st_size > 0)


def as_log_error(error: Exception, doing: str) -> LogError:
    """The error a caller of the log gets for an error of SQLite or the file system."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in _BROKEN:
        return LogDamaged(f"the log's database is broken, {doing} failed: {error}; restore it from a copy")
    return LogUnavailable(f"the log's database cannot be used now, {doing} failed: {error}")


def _ahead_of(file: Path) -> Path:
    return file.with_name(f"{file.name}-wal")


def _header_fault(file: Path) -> str | None:
    with file.open("rb") as stream:
        header = stream.read(100)
    if len(header) < 100 or not header.startswith(_MAGIC):
        return "it is not an SQLite database"
    if int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        return "it is an SQLite database of another application"
    if (version := int.from_bytes(header[60:64], "big")) != FORMAT:
        return f"it has format {version} and this version reads only format {FORMAT}"
    return None


def _content_fault(file: Path, written_ahead: bool) -> str | None:
    # A read-only connection neither repairs nor checkpoints, and an immutable one makes no files beside the database:
    # a broken one stays as it is.
    mode = "mode=ro" if written_ahead else "immutable=1"
    try:
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?{mode}", uri=True, isolation_level=None)
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
    connection = sqlite3.connect(draft, isolation_level=None)
    try:
        connection.execute(f"PRAGMA page_size={PAGE_SIZE}")
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={FORMAT}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(CATALOGUE)
    finally:
        connection.close()
    move_into_place(draft, file)


def _damaged(file: Path, reason: str) -> LogDamaged:
    return LogDamaged(
        f"'{file}' cannot be used as a log: {reason}. Nothing was changed. Move the file away to start with an empty "
        "log, restore it from a copy, or set notification_backend.sqlite.path to another directory"
    )
