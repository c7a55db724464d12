"""One replay out of the archive: Arrow from the pipeline process, taken as fast as its reader wants it."""

from __future__ import annotations

import asyncio
import io
import pickle
import socket
from base64 import b64encode
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

import msgspec

from aviso_server.archive.bridge import Address, BridgeDown, checked, request_line
from aviso_server.model.filter import Filter
from aviso_server.model.geometry.box import box_of
from aviso_server.model.notification import Notification

__all__ = ["ColdRead"]

_CONNECTING = 10.0  # seconds
_BUFFER = 256 * 1024
_ROWS = 4096  # in one go
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of a complete Arrow stream

_identifier = msgspec.json.Decoder(dict[str, Any]).decode


class ColdRead:
    """An open replay. All waiting is done in threads of the executor; leaving the context hangs up."""

    def __init__(
        self, executor: Executor, address: Address, wanted: Filter, start: int, end: int, shapes: Sequence[str]
    ) -> None:
        self._executor = executor
        self._shapes = shapes  # fields of the event type that have a box
        members = {
            "stream": wanted.stream,
            "event_type": wanted.event_type,
            "filter": b64encode(pickle.dumps(wanted)).decode(),
            "start": start,
            "end": end,
        }
        self._request = request_line(address, "replay", members)
        self._socket = socket.socket()
        self._port = address.port
        self._batches: Any = None
        self._body: _Body | None = None
        self._rest: list[Sequence[Notification]] = []

    async def next(self) -> Sequence[Notification] | None:
        """What was found next, None after the last; BridgeDown or BridgeRefused if it cannot go on."""
        if not self._rest:
            found = await asyncio.get_running_loop().run_in_executor(self._executor, self._read)
            if found is None:
                return None
            self._rest = [found[place : place + _ROWS] for place in range(0, len(found), _ROWS)] or [()]
        return self._rest.pop(0)

    def hang_up(self) -> None:
        """End it; whoever waits for more gets BridgeDown."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self) -> Sequence[Notification] | None:
        import pyarrow as pa  # large: only who reads the archive waits for it

        try:
            if self._batches is None:
                self._batches = pa.ipc.open_stream(self._open())
            batch = self._batches.read_next_batch()
        except StopIteration:
            if self._body is not None and self._body.tail == _END:
                return None
            raise BridgeDown("the pipeline process broke off") from None
        except (OSError, ValueError, pa.ArrowException) as error:
            raise BridgeDown(f"the pipeline process broke off: {error}") from None
        return self._notifications(batch)

    def _open(self) -> _Body:
        self._socket.settimeout(_CONNECTING)
        self._socket.connect(("127.0.0.1", self._port))
        self._socket.settimeout(None)
        self._socket.sendall(self._request)
        file = io.BufferedReader(socket.SocketIO(self._socket, "r"), _BUFFER)
        checked(file.readline())
        self._body = _Body(file)
        return self._body

    def _notifications(self, batch: Any) -> Sequence[Notification]:
        def texts(name: str) -> list[bytes]:
            found: list[bytes] = batch.column(name).cast("binary").to_pylist()
            return found

        sequences, times = batch.column("sequence").to_pylist(), batch.column("time_ns").to_pylist()
        topics, identifiers, payloads = batch.column("topic").to_pylist(), texts("identifier"), texts("payload")
        if not self._shapes:
            return list(map(Notification, sequences, times, topics, identifiers, payloads))
        boxes = [box_of(_identifier(each), self._shapes) for each in identifiers]
        return list(map(Notification, sequences, times, topics, identifiers, payloads, boxes))


class _Body(io.RawIOBase):
    """What comes after the first line, as a file that pyarrow can read; it remembers how it ended."""

    def __init__(self, file: io.BufferedReader[socket.SocketIO]) -> None:
        self._file = file
        self.tail = b""

    def readable(self) -> bool:
        """It is there to be read."""
        return True

    def read(self, size: int = -1) -> bytes:
        """So many bytes, fewer only at the end."""
        data = self._file.read(size)
        if data:
            self.tail = (self.tail + data[-8:])[-8:]
        return data
