"""A replay as a Parquet file: typed columns for programs that read files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from aviso_server.delivery import frames
from aviso_server.delivery.forms import PARQUET, Bounds, Render
from aviso_server.model.arrow import arrow_schema, record_batch
from aviso_server.model.columns import Column
from aviso_server.model.notification import Notification

__all__ = ["ParquetFile"]


class ParquetFile:
    """Row groups as they are read, then the footer that makes them a file.

    Without the footer it is no Parquet file, so a replay that breaks off is never taken for a whole one. The metadata
    of the file says what the replay covers and how it ended.
    """

    content_type: ClassVar[str] = PARQUET
    breaks_off: ClassVar[bool] = True
    watchful: ClassVar[bool] = True
    plain: ClassVar[bool] = False

    def __init__(self, event_type: str, columns: Sequence[Column], request_id: str) -> None:
        self._event_type = event_type
        self._columns = columns
        self._written = _Written()
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._written, "w"), arrow_schema(columns), compression="zstd", store_schema=True
        )
        self._words = {"aviso.event_type": event_type, "aviso.request_id": request_id}
        self.render: Render = self._row_group

    def opening(self, bounds: Bounds) -> bytes:
        """The mark at the beginning; the bounds of the replay go into the footer."""
        self._words |= {
            "aviso.start_sequence": str(bounds.start),
            "aviso.end_sequence": str(bounds.end),
            "aviso.first_sequence": str(bounds.first),
            "aviso.last_sequence": str(bounds.last),
            "aviso.trimmed_sequence": str(bounds.trimmed),
        }
        return self._written.take()

    def completed(self, time: int) -> bytes:
        """Everything is there."""
        return self._footer({"aviso.ending": "replay_completed"})

    def limit_reached(self, time: int, limit: int) -> bytes:
        """A part is there; the rest begins after the last row."""
        return self._footer({"aviso.ending": "notification_replay_limit_reached", "aviso.max_allowed": str(limit)})

    def failed(self, message: str) -> bytes:
        """The rest could not be read: no footer, no file."""
        return b""

    def closing(self, time: int, reason: frames.Reason) -> bytes:
        """Nothing comes after the footer."""
        return b""

    def _row_group(self, notifications: Sequence[Notification]) -> bytes:
        if notifications:
            self._writer.write_batch(record_batch(self._columns, self._event_type, notifications))
        return self._written.take()

    def _footer(self, words: dict[str, str]) -> bytes:
        self._writer.add_key_value_metadata(self._words | words)
        self._writer.close()
        return self._written.take()


class _Written:
    """A file to write to that hands on what was written and forgets it."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, part: bytes) -> int:
        self._parts.append(bytes(part))
        self._size += len(part)
        return len(part)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def writable(self) -> bool:
        return True

    def take(self) -> bytes:
        """What was written since the last time."""
        taken = b"".join(self._parts)
        self._parts.clear()
        return taken
