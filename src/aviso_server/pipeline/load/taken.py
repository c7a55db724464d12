"""What became of some rows: the notifications that were taken, in columns, and why the others were not."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aviso_server.model.notification import Box
from aviso_server.pipeline.load.faults import Fault

__all__ = ["NOTHING", "Outcome", "Taken", "TakenRow", "Wanted"]


class Wanted(msgspec.Struct, frozen=True):
    """What the next step needs to have of the rows that are taken."""

    history: bool = False  # canonical identifier, topic, box and time: rows become the past of a stream
    given: bool = False  # the identifier as it was given: rows are published, and the server makes it canonical


class TakenRow(msgspec.Struct, frozen=True):
    """One notification that was taken."""

    place: int  # among the rows that were checked together
    payload: bytes  # canonical
    given: bytes  # the identifier as it was given, if wanted
    identifier: bytes  # canonical
    topic: str
    box: Box | None
    time: int  # nanoseconds since 1970, for history


class Taken(msgspec.Struct, frozen=True):
    """The notifications that were taken, by place; columns that are not wanted are empty."""

    places: Sequence[int] = ()
    payloads: Sequence[bytes] = ()  # canonical
    given: Sequence[bytes] = ()
    identifiers: Sequence[bytes] = ()
    topics: Sequence[str] = ()
    boxes: Sequence[Box | None] = ()
    times: Sequence[int] = ()

    def joined(self, rows: Sequence[TakenRow], wanted: Wanted) -> Taken:
        """These and some more, in order."""
        if not rows:
            return self
        every = [*self.places, *[row.place for row in rows]]
        order = sorted(range(len(every)), key=every.__getitem__)
        payloads = [*self.payloads, *[row.payload for row in rows]]
        given = [*self.given, *[row.given for row in rows]] if wanted.given else []
        if not wanted.history:
            return Taken(
                [every[at] for at in order],
                [payloads[at] for at in order],
                [given[at] for at in order] if given else (),
            )
        identifiers = [*self.identifiers, *[row.identifier for row in rows]]
        topics = [*self.topics, *[row.topic for row in rows]]
        boxes = [*(self.boxes or [None] * len(self.places)), *[row.box for row in rows]]
        times = [*self.times, *[row.time for row in rows]]
        return Taken(
            [every[at] for at in order],
            [payloads[at] for at in order],
            [given[at] for at in order] if given else (),
            [identifiers[at] for at in order],
            [topics[at] for at in order],
            [boxes[at] for at in order],
            [times[at] for at in order],
        )


NOTHING = Taken()


class Outcome(msgspec.Struct, frozen=True):
    """The rows that were taken, and the faults of the others by their place."""

    taken: Taken
    faults: dict[int, Fault]
