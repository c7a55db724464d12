"""Deletes and wipes on their way to the archive: written down before anybody is told that they are done.

One line of JSON each, appended and forced to disk; another line when the archive has confirmed it. What a crash has cut
off is a line that nobody has relied on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from aviso_server.errors import LogUnavailable
from aviso_server.lake.removal_journal import Removal, read_removals
from aviso_server.lockfile import move_into_place
from aviso_server.model.notification import Notification, Run

__all__ = ["Journal", "View"]


class View:
    """What one reader of the archive must not see, whatever is confirmed while it reads."""

    def __init__(self, pending: set[int], through: int) -> None:
        self._deleted = set(pending)
        self._through = through

    def add(self, removal: Removal) -> None:
        if removal.kind == "wipe":
            self._through = max(self._through, removal.sequence)
        else:
            self._deleted.add(removal.sequence)

    def visible(self, notifications: Sequence[Notification]) -> Sequence[Notification]:
        if not self._deleted and not self._through:
            return notifications
        if isinstance(notifications, Run):
            return notifications.without(self._through, self._deleted)
        return [each for each in notifications if each.sequence > self._through and each.sequence not in self._deleted]


class Journal:
    """The removals that the archive has not confirmed yet, in a file of their own."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._pending: dict[Removal, None] = {}  # in the order in which they came
        self._wiped: dict[str, int] = {}  # over the life of this process
        self._views: dict[str, list[View]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="archive-journal")
        self._handle: int | None = None

    @property
    def pending(self) -> Sequence[Removal]:
        """Return those that the archive still has to hear of."""
        return list(self._pending)

    async def open(self) -> None:
        """Read what the last run left; LogUnavailable if that is not possible."""
        await self._in_thread(self._open)

    async def close(self) -> None:
        await self._in_thread(self._close)
        self._thread.shutdown(wait=False)

    async def add(self, removal: Removal) -> None:
        await self._in_thread(partial(self._append, removal, False))
        self._pending[removal] = None
        if removal.kind == "wipe":
            self._wiped[removal.stream] = max(self._wiped.get(removal.stream, 0), removal.sequence)
        for view in self._views.get(removal.stream, ()):
            view.add(removal)

    async def settle(self, removal: Removal) -> None:
        """Forget a removal that the archive has confirmed, or that is taken back."""
        if removal not in self._pending:
            return
        del self._pending[removal]
        await self._in_thread(partial(self._append, removal, True))

    def hides(self, stream: str, sequence: int) -> bool:
        return sequence <= self._wiped.get(stream, 0) or Removal("delete", stream, sequence) in self._pending

    def hidden(self, stream: str) -> tuple[int, Sequence[int]]:
        """Return what nobody may see of a stream as of now: everything up to a sequence, and these."""
        deleted = [each.sequence for each in self._pending if each.kind == "delete" and each.stream == stream]
        return self._wiped.get(stream, 0), deleted

    @contextmanager
    def view(self, stream: str) -> Iterator[View]:
        """Keep what a reader of the stream must not see up to date while it reads."""
        through, deleted = self.hidden(stream)
        view = View(set(deleted), through)
        views = self._views.setdefault(stream, [])
        views.append(view)
        try:
            yield view
        finally:
            views.remove(view)
            if not views:
                self._views.pop(stream, None)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except OSError as error:
            raise LogUnavailable(f"'{self._file}' cannot be written: {error}") from None

    def _open(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._pending |= dict.fromkeys(read_removals(self._file))
        for each in self._pending:
            if each.kind == "wipe":
                self._wiped[each.stream] = max(self._wiped.get(each.stream, 0), each.sequence)
        draft = self._file.with_name(f"{self._file.name}.new")
        self._handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        for each in self._pending:
            os.write(self._handle, each.line(done=False))
        move_into_place(draft, self._file)

    def _append(self, removal: Removal, done: bool) -> None:
        if self._handle is None:
            raise OSError("it is not open")
        text = removal.line(done)
        if os.write(self._handle, text) != len(text):
            os.write(self._handle, b"\n")  # the half line is no line
            raise OSError("there is no room")
        if not done:
            os.fsync(self._handle)

    def _close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
