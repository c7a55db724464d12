"""Many notifications as columns: cheap to select from and to render, made into values only where somebody asks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

from aviso_server.model.notification import Box, Notification

__all__ = ["Part", "Rendered", "Run"]

Part = bytes | Literal["sequence", "identifier", "payload", "time"]
"""What a rendering is put together from: bytes that never change, or the name of a column."""

Rendered = bytes | memoryview
"""What clients get of notifications. To make bytes of memory that is ready would copy all of it once more."""


class Run(Sequence[Notification]):
    """A sequence of notifications, ascending, kept as columns."""

    @property
    @abstractmethod
    def last(self) -> int:
        """The sequence of the newest of them."""

    @property
    @abstractmethod
    def times(self) -> Sequence[int]:
        """When they were stored."""

    @property
    @abstractmethod
    def boxes(self) -> Sequence[Box | None] | None:
        """Where they lie; None if none of them lies anywhere."""

    @abstractmethod
    def having(self, members: Sequence[bytes]) -> Run:
        """Those whose identifiers hold all these bytes."""

    @abstractmethod
    def joined(self, parts: Sequence[Part]) -> Rendered:
        """For each notification all the parts, one after the other; times as events show them."""
