"""The Archive protocol: where history goes on when the log has let go of it, and what it promises.

- What it covers it answers for: every notification from `first` to `last` of a coverage that was neither deleted nor
  wiped comes out of `read`, once and in order of sequences, byte for byte as it was in the log.
- A notification whose delete or wipe was answered never comes out again, whatever crashes and whenever.
- What it cannot read now is an error (LogUnavailable), never a gap.

All methods are called from the event loop's thread. Nothing here blocks it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import msgspec

from aviso_server.model.filter import Filter
from aviso_server.model.notification import Notification
from aviso_server.model.tally import Tally

__all__ = ["NOTHING", "Archive", "Coverage", "Deletion"]


class Coverage(msgspec.Struct, frozen=True):
    """The sequences of a stream that an archive answers for; what was deleted is among them."""

    first: int
    last: int  # lower than `first` if there are none

    def includes(self, start: int, end: int) -> bool:
        """True if every sequence of the range is covered."""
        return self.first <= start and end <= self.last


NOTHING = Coverage(1, 0)
"""The coverage of a stream that has never been archived."""


class Deletion(Protocol):
    """A delete that was noted."""

    async def archived(self) -> bool:
        """True if the archive held the notification, or may have held it and cannot be asked."""


class Archive(Protocol):
    """History without end, in files."""

    def watermark(self, stream: str) -> int:
        """The newest sequence that is known to be archived, 0 if none is: what the log may let go of.

        The only method that is called from other threads too.
        """

    async def coverage(self, stream: str, through: int = 0) -> Coverage:
        """What is archived of a stream; looked up afresh if what is known ends before `through`."""

    async def streams(self) -> Sequence[str]:
        """The streams that are archived, sorted."""

    def read(self, wanted: Filter, start: int, end: int) -> AsyncGenerator[Sequence[Notification], None]:
        """What passes the filter with start <= sequence <= end, in runs of ascending sequence.

        Closing the generator ends the work behind it.
        """

    @property
    def reachable(self) -> bool:
        """True if it can be read at once; False if it is away, or has not started yet."""

    async def count(self, wanted: Filter, start: int, end: int, unit: int) -> Tally:
        """How many `read` would bring, by place and by interval of `unit` nanoseconds; start and end are covered.

        Cancelling it ends the work behind it.
        """

    async def first_since(self, stream: str, time: int) -> int:
        """The lowest archived sequence stored at or after `time`; one more than the last if there is none."""

    async def last_until(self, stream: str, time: int) -> int:
        """The highest archived sequence stored at or before `time`; one less than the first if there is none."""

    def deleting(self, stream: str, sequence: int) -> AbstractAsyncContextManager[Deletion]:
        """Take one notification out of history for good.

        It is durably noted, and hidden, when the context is entered: then the log is to forget it. If that fails and
        the context is left by an error, the note is taken back.
        """

    def wiping(self, stream: str, through: int) -> AbstractAsyncContextManager[None]:
        """Take everything up to a sequence out of history for good; as with `deleting`."""

    async def describe(self) -> dict[str, Any]:
        """How it is doing, for people: ready for JSON."""
