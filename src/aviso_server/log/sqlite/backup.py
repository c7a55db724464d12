"""Back up a sqlite log while a server runs, and restore it where there is none."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path

import msgspec

from aviso_server.errors import LogDamaged, LogUnavailable
from aviso_server.lockfile import move_into_place
from aviso_server.log.sqlite.database import (
    DATABASE,
    DirectoryLock,
    add_absent,
    as_log_error,
    check,
    check_copy,
    create_stream,
    load_entries,
    save_entry,
    upgrade,
)
from aviso_server.log.sqlite.ledger import ledger_name, read_ledger, write_ledger

__all__ = ["Copy", "back_up", "restore"]

Progress = Callable[[int, int], None]
"""Called with the pages that are done and the pages there are."""

_PAGES_AT_ONCE = 2048
_COMPANIONS = ("-wal", "-shm", "-journal")


class Copy(msgspec.Struct, frozen=True):
    """A copy, and what is in it."""

    file: str
    bytes: int
    streams: dict[str, int]  # with the last sequence of each
    notifications: int
    seconds: float


def back_up(directory: Path, target: Path, progress: Progress | None = None) -> Copy:
    """Copy the log of a directory to a file, as of one moment; a server may go on writing to it.

    LogError if there is no log, or if something is at the target already.
    """
    source = directory / DATABASE
    if not source.is_file():
        raise LogUnavailable(f"there is no log in '{directory}': '{DATABASE}' is missing")
    if target.exists():
        raise LogUnavailable(f"'{target}' exists already; name a file that does not")
    if not target.absolute().parent.is_dir():
        raise LogUnavailable(f"the directory of '{target}' does not exist")

    def fill(draft: Path) -> None:
        with closing(
            sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        ) as reading:
            # One moment for the whole copy: without it, every write of the server would make the copy begin anew.
            reading.execute("BEGIN")
            reading.execute("SELECT count(*) FROM catalogue").fetchone()
            _copy(reading, draft, progress)
            reading.execute("COMMIT")

    return _made(target, fill, "the copy")


def restore(source: Path, directory: Path, advance: int = 0, progress: Progress | None = None) -> Copy:
    """Restore a log from a copy into a directory that has none; numbering continues `advance` further than in the copy.

    It goes on further still where a ledger in the directory says that more was acknowledged.
    LogError if the copy is not sound, if the directory holds a log already or if a server uses it.
    """
    if not source.is_file():
        raise LogUnavailable(f"there is no file '{source}'")
    check_copy(source)
    target = directory / DATABASE

    def fill(draft: Path) -> None:
        _refuse_to_overwrite(target)
        with closing(_open(source)) as reading:
            _copy(reading, draft, progress)
        with closing(sqlite3.connect(draft, isolation_level=None)) as writing:
            upgrade(writing)
            _advance(writing, advance, acknowledged)
            writing.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    try:
        directory.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LogUnavailable(f"'{directory}' cannot be used: {error}") from error
    lock = DirectoryLock(directory)
    lock.take()
    try:
        acknowledged = read_ledger(directory) or {}
        copied = _made(target, fill, "the log")
        with closing(_open(target)) as reading:
            entries = load_entries(reading).values()
        write_ledger(directory, {entry.id: (entry.name, entry.last) for entry in entries})
        return copied
    finally:
        lock.release()


def _advance(writing: sqlite3.Connection, advance: int, acknowledged: Mapping[str, int]) -> None:
    """Continue numbering further up; note what lies between as absent."""
    entries = load_entries(writing)
    known = {ledger_name(name) for name in entries}
    for name in acknowledged.keys() - known:
        entries[name] = create_stream(writing, name)
    for entry in entries.values():
        last = max(entry.last + advance, acknowledged.get(ledger_name(entry.name), 0))
        if last > entry.last:
            add_absent(writing, entry.id, entry.last + 1, last)
            save_entry(writing, msgspec.structs.replace(entry, last=last))


def _made(target: Path, fill: Callable[[Path], None], name: str) -> Copy:
    """Fill a draft and, if it is sound, move it into place; a draft that fails is removed."""
    began = time.monotonic()
    draft = target.with_name(f"{target.name}.{os.getpid()}.new")
    try:
        fill(draft)
        check(draft)
        copied = _described(draft, target, began)
        _remove(draft, _COMPANIONS)
        move_into_place(draft, target)
        return copied
    except sqlite3.Error as error:
        raise as_log_error(error, "copying") from error
    except OSError as error:
        raise LogUnavailable(f"{name} could not be written: {error}") from error
    finally:
        _remove(draft, ("", *_COMPANIONS))


def _open(file: Path) -> sqlite3.Connection:
    # a copy at rest may lie where nothing can be written, not even the files that SQLite puts beside it
    at_rest = not any(file.with_name(file.name + end).exists() for end in _COMPANIONS)
    mode = "immutable=1" if at_rest else "mode=ro"
    return sqlite3.connect(f"{file.absolute().as_uri()}?{mode}", uri=True, isolation_level=None, timeout=30)


def _copy(reading: sqlite3.Connection, draft: Path, progress: Progress | None) -> None:
    def report(_status: int, remaining: int, total: int) -> None:
        if progress is not None:
            progress(total - remaining, total)

    # made by us alone: a log is nobody else's business
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with closing(sqlite3.connect(draft, isolation_level=None)) as writing:
        reading.backup(writing, pages=_PAGES_AT_ONCE, progress=report, sleep=0.0)


def _described(draft: Path, target: Path, began: float) -> Copy:
    with closing(_open(draft)) as reading:
        entries = sorted(load_entries(reading).values(), key=lambda entry: entry.name)
    return Copy(
        str(target),
        draft.stat().st_size,
        {entry.name: entry.last for entry in entries},
        sum(entry.count for entry in entries),
        round(time.monotonic() - began, 3),
    )


def _remove(draft: Path, ends: Iterable[str]) -> None:
    for end in ends:
        draft.with_name(draft.name + end).unlink(missing_ok=True)


def _refuse_to_overwrite(target: Path) -> None:
    for end in ("", *_COMPANIONS):
        found = target.with_name(target.name + end)
        if found.exists():
            raise LogDamaged(f"'{found}' exists: restore only into a directory without a log, or move it away first")
