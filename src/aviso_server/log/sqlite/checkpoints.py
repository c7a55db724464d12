"""Bringing commits from the file they went to into the database, beside the commits instead of within them.

A commit is on disk once it is in the write-ahead log. SQLite would move it into the database in the middle of a later
commit, and all publishers would wait for that: tens of milliseconds, about once a second. Here a thread does it, a
little at a time. Only when it has caught up but for the last moment does the writer move that rest, which takes one
write or two, so that SQLite begins the file from its front again.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path

from aviso_server.log.sqlite.files import PAGES_AHEAD, connect

__all__ = ["Checkpoints"]

INTERVAL = 0.1
_BEGIN_AGAIN = PAGES_AHEAD // 2


class Checkpoints:
    """A thread with a connection of its own. What it cannot do now it tries again later; nothing depends on it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._committed = threading.Event()
        self._stopping = threading.Event()
        self.rest_is_small = False  # and the writer should call `finish`
        self._thread = threading.Thread(target=self._run, name="aviso-log-checkpoints", daemon=True)

    def start(self) -> None:
        """Begin to look after the commits."""
        self._thread.start()

    def note_commit(self) -> None:
        """The writer says so after each commit."""
        if not self._committed.is_set():
            self._committed.set()

    def finish(self, writing: sqlite3.Connection) -> None:
        """Move the rest, if it is small, over the connection that nobody else can write with meanwhile."""
        if self.rest_is_small:
            self.rest_is_small = False
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
                if self._stopping.wait(INTERVAL):
                    return
                if self.rest_is_small:  # the writer is about to do it
                    continue
                self._committed.clear()
                if self._stopping.is_set():  # it may be `stop` whose call was cleared
                    return
                with contextlib.suppress(sqlite3.Error):  # no room, say: the commits stay where they are
                    _, ahead, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                    self.rest_is_small = ahead >= _BEGIN_AGAIN
