"""A replay as an Arrow stream: typed columns for programs that read a lot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from aviso_server.delivery import frames
from aviso_server.delivery.forms import ARROW, Bounds, Render
from aviso_server.model.arrow import END_OF_STREAM, arrow_schema, batch_message, last_message, record_batch
from aviso_server.model.columns import Column
from aviso_server.model.notification import Notification

__all__ = ["ArrowStream"]


class ArrowStream:
    """Record batches of typed columns, then one without rows whose metadata says how it ended.

    The metadata of the schema says what the replay is about to cover.
    """

    content_type: ClassVar[str] = ARROW
    breaks_off: ClassVar[bool] = True
    watchful: ClassVar[bool] = True
    plain: ClassVar[bool] = False

    def __init__(self, event_type: str, columns: Sequence[Column], request_id: str) -> None:
        self._event_type = event_type
        self._columns = columns
        self._request_id = request_id
        self._ended = False
        self.render: Render = self._batch

    def opening(self, bounds: Bounds) -> bytes:
        """The schema, with the bounds of the replay as metadata."""
        words = {
            "aviso.event_type": self._event_type,
            "aviso.request_id": self._request_id,
            "aviso.start_sequence": str(bounds.start),
            "aviso.end_sequence": str(bounds.end),
            "aviso.first_sequence": str(bounds.first),
            "aviso.last_sequence": str(bounds.last),
            "aviso.trimmed_sequence": str(bounds.trimmed),
        }
        message: bytes = arrow_schema(self._columns, words).serialize().to_pybytes()
        return message

    def completed(self, time: int) -> bytes:
        """Everything is there."""
        return self._last_batch({"aviso.ending": "replay_completed"}) + END_OF_STREAM

    def limit_reached(self, time: int, limit: int) -> bytes:
        """A part is there; the rest begins after the last row."""
        words = {"aviso.ending": "notification_replay_limit_reached", "aviso.max_allowed": str(limit)}
        return self._last_batch(words) + END_OF_STREAM

    def failed(self, message: str) -> bytes:
        """The rest could not be read."""
        return self._last_batch({"aviso.ending": "error", "aviso.message": message})

    def closing(self, time: int, reason: frames.Reason) -> bytes:
        """The server could not go on, unless it has ended already."""
        return b"" if self._ended else self._last_batch({"aviso.ending": reason})

    def _batch(self, notifications: Sequence[Notification]) -> bytes:
        if not notifications:
            return b""
        return batch_message(record_batch(self._columns, self._event_type, notifications))

    def _last_batch(self, words: dict[str, str]) -> bytes:
        self._ended = True
        return last_message(self._columns, words)
