"""What the writer of a sqlite log is asked for, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from aviso_server.errors import LogError
from aviso_server.log.sqlite.keys import KeyedAppend
from aviso_server.log.sqlite.stream import Entry
from aviso_server.model.notification import Draft, Notification

__all__ = ["Advance", "Append", "Outcome", "Remove", "Wipe", "Work", "drafts_of", "failed", "is_small"]

SMALL_COMMIT = 128  # notifications
SMALL_BYTES = 128 * 1024  # of payload


class Append(msgspec.Struct, gc=False):
    """Store these, all or none; the answer is one notification or the list of them."""

    drafts: Sequence[Draft]
    future: asyncio.Future[Any]
    single: bool


class Remove(msgspec.Struct, gc=False):
    """Remove one notification; the answer is whether it was there."""

    stream: str
    sequence: int
    future: asyncio.Future[Any]


class Wipe(msgspec.Struct, gc=False):
    """Remove all notifications of a stream; the answer is how many, or None if there is no such stream."""

    stream: str
    future: asyncio.Future[Any]


class Advance(msgspec.Struct, gc=False):
    """Go on numbering a stream after `last`; the answer is None."""

    stream: str
    last: int
    future: asyncio.Future[Any]


Work = Append | KeyedAppend | Remove | Wipe | Advance


class Outcome(msgspec.Struct, gc=False):
    """What one transaction did: streams as they are now, what is new, and the answers that are due."""

    entries: dict[str, Entry]
    added: list[tuple[str, Sequence[Notification]]]
    answers: list[tuple[asyncio.Future[Any], Any]]
    drafts: int = 0  # so many no longer wait
    error: LogError | None = None  # nothing was stored, all of `answers` get this
    number: int = 0  # rises from one transaction to the next


def failed(work: Sequence[Work], error: LogError) -> Outcome:
    """Nothing of this was stored."""
    return Outcome({}, [], [(one.future, None) for one in work], drafts_of(work), error)


def is_small(work: Sequence[Work]) -> bool:
    """True for single notifications that are written in a moment."""
    if len(work) > SMALL_COMMIT or not all(isinstance(one, Append) and one.single for one in work):
        return False
    return sum([len(one.drafts[0].payload) for one in work if isinstance(one, Append)]) < SMALL_BYTES


def drafts_of(work: Sequence[Work]) -> int:
    """How many notifications this is about."""
    return sum(
        len(one.drafts) if isinstance(one, Append) else len(one.entries)
        for one in work
        if isinstance(one, Append | KeyedAppend)
    )
