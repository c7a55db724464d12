"""A part of history, ready to be sent."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aviso_server.delivery.forms import Render
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Notification
from aviso_server.model.run import Rendered

__all__ = ["FIRST_BATCH", "LARGEST_BATCH", "Piece", "next_batch", "select_and_render"]

FIRST_BATCH = 100  # notifications: few, so that the first one is out soon
LARGEST_BATCH = 2048  # notifications: what a batch costs in any case is little beside them


class Piece(msgspec.Struct, frozen=True):
    """Some notifications as their reader gets them."""

    data: Rendered
    count: int  # notifications in it
    next: int  # the sequence to go on from
    more: bool = False  # there was at least one more than there was room for


def next_batch(size: int, largest: int = LARGEST_BATCH) -> int:
    """How many notifications to read after so many."""
    return min(size * 4, largest)


def select_and_render(
    notifications: Sequence[Notification], wanted: Filter, render: Render, room: int | None
) -> tuple[Rendered, int, bool]:
    """The bytes of those that match, how many, and whether there were more than there was room for."""
    matching = wanted.choose(notifications)
    more = room is not None and len(matching) > room
    if more:
        matching = matching[:room]
    return render(matching), len(matching), more
