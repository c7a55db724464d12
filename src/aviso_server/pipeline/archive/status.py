"""What the archive holds and how its job is doing, for whoever asks: people, the server, metrics."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from aviso_server.model.timestamp import event_time, seconds_text
from aviso_server.pipeline.archive.layout import DataFile, holes, listing, stream_folder, streams
from aviso_server.pipeline.archive.storage import Storage, joined
from aviso_server.pipeline.archive.streams import LogStream

__all__ = ["Board", "JobState", "StreamStatus"]

JobState = Literal["starting", "running", "waiting", "stopped"]
"""Spark is starting, the log is being read, the server cannot be reached, or nobody archives."""

_STATUS = "_status.json"


class StreamStatus(msgspec.Struct, frozen=True):
    """One stream of the archive."""

    first: int = 1  # the oldest sequence that it covers; one more than `last` if it is empty
    last: int = 0  # the newest one
    files: int = 0
    bytes: int = 0
    archived_at: str | None = None  # when it last grew
    last_error: str | None = None


class _Kept(msgspec.Struct, frozen=True):
    last_error: str | None = None


class Board:
    """The facts of an archive, kept in memory and read from the folder once; every thread may ask and tell."""

    def __init__(self, root: str, storage: Storage) -> None:
        self.root = root
        self.storage = storage
        self.state: JobState = "stopped"
        self.last_error: str | None = None  # of the job as a whole
        self.rows = 0  # archived since the start
        self._lock = threading.Lock()
        self._files: dict[str, list[DataFile]] = {}
        self._errors: dict[str, str | None] = {}
        self._log: dict[str, LogStream] = {}

    def read(self) -> None:
        """Look at the whole archive."""
        for stream, folder in streams(self.root, self.storage).items():
            self.refresh(stream)
            with self._lock:
                self._errors[stream] = self._kept(folder)

    def refresh(self, stream: str) -> None:
        """Look at the files of a stream again."""
        files = listing(stream_folder(self.root, stream), self.storage)
        with self._lock:
            self._files[stream] = files

    def add(self, stream: str, file: DataFile) -> None:
        """A file has come to the end of a stream."""
        with self._lock:
            self._files.setdefault(stream, []).append(file)

    def watermark(self, stream: str) -> int:
        """The last sequence that the archive holds of a stream."""
        with self._lock:
            files = self._files.get(stream)
            return files[-1].last if files else 0

    def watermarks(self) -> dict[str, int]:
        """The last sequence of every stream."""
        with self._lock:
            return {stream: files[-1].last for stream, files in self._files.items() if files}

    def compare(self, log: Mapping[str, LogStream]) -> None:
        """Remember what the log holds, and complain about streams that began anew."""
        with self._lock:
            self._log = dict(log)
        for name, each in log.items():
            archived = self.watermark(name)
            if each.last < archived:
                self.note(
                    name,
                    f"the log ends at sequence {each.last}, the archive at {archived}: is it the archive of another "
                    "log? Nothing is archived until the log has passed it",
                )

    def note(self, stream: str, sentence: str) -> None:
        """Something went wrong with a stream; the sentence is kept, over restarts too."""
        with self._lock:
            if self._errors.get(stream) == sentence:
                return
            self._errors[stream] = sentence
        content = msgspec.json.encode(_Kept(sentence))
        self.storage.write(joined(stream_folder(self.root, stream), _STATUS), content)

    def streams(self) -> dict[str, StreamStatus]:
        """Every stream that the archive or the log knows."""
        with self._lock:
            names = sorted({*self._files, *self._log, *self._errors})
            return {name: self._status(name, self._files.get(name, [])) for name in names}

    def log_streams(self) -> dict[str, LogStream]:
        """What the log held when it was last looked at."""
        with self._lock:
            return dict(self._log)

    def describe(self) -> dict[str, Any]:
        """All of it as JSON values."""
        shown = {name: msgspec.to_builtins(each) for name, each in self.streams().items()}
        job = {"state": self.state, "last_error": self.last_error, "rows": self.rows}
        return {"streams": shown, "job": job, "time": event_time(time.time_ns())}

    def _status(self, name: str, files: list[DataFile]) -> StreamStatus:
        if not files:
            return StreamStatus(last_error=self._errors.get(name))
        error = self._errors.get(name)
        if missing := holes(files):
            first, last = missing[0]
            error = f"files are missing: sequences {first} to {last} are in none"
        return StreamStatus(
            first=files[0].first,
            last=files[-1].last,
            files=len(files),
            bytes=sum(each.bytes for each in files),
            archived_at=seconds_text(int(files[-1].modified)),
            last_error=error,
        )

    def _kept(self, folder: str) -> str | None:
        for each in self.storage.list(folder):
            if each.name == _STATUS:
                with self.storage.open(each.path) as file:
                    try:
                        return msgspec.json.decode(file.read(), type=_Kept).last_error
                    except msgspec.DecodeError:
                        return None
        return None
