"""The ledger of a streaming write: which rows of the last micro-batch were published already."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

__all__ = ["BatchLedger"]


class BatchLedger:
    """One file per micro-batch, a line for each published row; the files of earlier micro-batches are removed.

    When Spark runs a micro-batch again after a crash, rows that are in its file are not published again. A line is
    written after the server has answered, so a process that is killed between the two publishes that row twice: as
    many rows as there are connections, at most. Lines survive the end of the process, not of the machine.
    """

    def __init__(self, folder: Path, batch: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / str(batch)
        written = path.read_bytes() if path.exists() else b""
        complete = written[: written.rfind(b"\n") + 1]
        self._known = Counter(complete.split())
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(self._file, len(complete))
        for other in folder.iterdir():
            if other.name.isdigit() and int(other.name) < batch:
                other.unlink()

    def take(self, key: bytes) -> bool:
        """True if a row of this content was published before; each remembered one is found once."""
        if not self._known[key]:
            return False
        self._known[key] -= 1
        return True

    def add(self, key: bytes) -> None:
        """A row of this content has been published."""
        with self._lock:
            os.write(self._file, key + b"\n")

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)
