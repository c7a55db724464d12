"""Many notifications as columns: cheap to select from and to render, made into values only where somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import compress
from typing import overload

from aviso_server.model.notification import Box, Notification

__all__ = ["Run"]


class Run(Sequence[Notification]):
    """A sequence of notifications, ascending, kept as the texts that a log stores; all columns are equally long."""

    def __init__(
        self,
        sequences: Sequence[bytes],  # decimal
        times: Sequence[bytes],  # decimal
        topics: Callable[[], Sequence[str]],  # asked for only where they are needed: most readers do without
        identifiers: Sequence[bytes],
        payloads: Sequence[bytes],
        boxes: Sequence[Box | None] | None = None,
    ) -> None:
        self.sequences = sequences
        self.times = times
        self._topics = topics
        self.identifiers = identifiers
        self.payloads = payloads
        self.boxes = boxes

    def having(self, members: Sequence[bytes]) -> Run:
        """Those whose identifiers hold all these bytes."""
        found = self
        for member in members:
            # not `in`: for bytes it tries whether a number is meant first, which costs more than looking
            found = found._where([identifier.find(member) >= 0 for identifier in found.identifiers])
        return found

    def _where(self, kept: Sequence[bool]) -> Run:
        if all(kept):
            return self
        return Run(
            list(compress(self.sequences, kept)),
            list(compress(self.times, kept)),
            lambda: list(compress(self.topics, kept)),
            list(compress(self.identifiers, kept)),
            list(compress(self.payloads, kept)),
            None if self.boxes is None else list(compress(self.boxes, kept)),
        )

    @cached_property
    def topics(self) -> Sequence[str]:
        """The topics in their wire form."""
        return self._topics()

    @cached_property
    def values(self) -> list[Notification]:
        """The notifications themselves."""
        columns = (map(int, self.sequences), map(int, self.times), self.topics, self.identifiers, self.payloads)
        if self.boxes is None:
            return list(map(Notification, *columns))
        return list(map(Notification, *columns, self.boxes))

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[Notification]:
        return iter(self.values)

    @overload
    def __getitem__(self, place: int) -> Notification: ...
    @overload
    def __getitem__(self, place: slice) -> Run: ...
    def __getitem__(self, place: int | slice) -> Notification | Run:
        if isinstance(place, int):
            return self.values[place]
        boxes = None if self.boxes is None else self.boxes[place]
        return Run(
            self.sequences[place],
            self.times[place],
            lambda: self.topics[place],
            self.identifiers[place],
            self.payloads[place],
            boxes,
        )
