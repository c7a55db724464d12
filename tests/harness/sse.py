"""A client for event streams over a raw socket: every byte, every chunk and every frame, with its time of arrival."""

from __future__ import annotations

import json
import re
import socket
import time
from types import TracebackType
from typing import Any, NamedTuple

from tests.harness.patience import PATIENCE

__all__ = ["ConnectionCut", "EventStream", "Frame", "StreamBroken"]

FRAME = re.compile(rb"event: ([a-z-]+)\ndata: (\{[^\r\n]*\})\n\n")


class StreamBroken(Exception):
    """What arrived is not a well-formed event stream, or it ended where more was expected."""


class ConnectionCut(StreamBroken, ConnectionError):
    """The server closed the connection, or died, before it had said everything: a failure of the network."""


class Frame(NamedTuple):
    """One event as it came over the wire."""

    event: str
    data: dict[str, Any]
    raw: bytes
    at: float  # time.monotonic() of the arrival of its last byte

    @property
    def kind(self) -> str:
        """The `type` of a control frame, `notification` for a CloudEvent, else the event name."""
        if self.event in ("live-notification", "replay") and "specversion" in self.data:
            return "notification"
        if self.event in ("live-notification", "replay-control"):
            return str(self.data.get("type"))
        return self.event


class EventStream:
    """One POST request and its answer, read as it arrives.

    `frames` holds what has been read so far; `next` reads on. An answer that is no stream is read at once into `body`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        path: str,
        body: bytes,
        headers: tuple[tuple[str, str], ...] = (),
        receive_buffer: int | None = None,
        timeout: float = PATIENCE,
    ) -> None:
        self.frames: list[Frame] = []
        self.chunks: list[tuple[float, bytes]] = []
        self.raw = b""  # the whole body so far, without the chunk marks
        self.body = b""
        self.ended = False
        self._wire = b""
        self._pending = b""
        self._socket = socket.socket()
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(timeout)
        self._socket.connect((host, port))
        lines = [f"POST {path} HTTP/1.1", f"Host: {host}:{port}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers]
        self._socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        head = self._take(b"\r\n\r\n", time.monotonic() + timeout)
        self.opened_at = time.monotonic()
        status, *fields = head.decode("latin-1").split("\r\n")
        self.status = int(status.split(" ")[1])
        pairs = (field.partition(":") for field in fields)
        self.headers = tuple((name.lower(), value.strip()) for name, _, value in pairs)
        self.request_id = dict(self.headers).get("x-request-id", "")
        if dict(self.headers).get("content-type", "").split(";")[0] != "text/event-stream":
            self._read_body(timeout)

    def __enter__(self) -> EventStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> Frame:
        try:
            return self.next()
        except EOFError:
            raise StopIteration from None

    @property
    def notifications(self) -> list[dict[str, Any]]:
        """The CloudEvents read so far, in the order of arrival."""
        return [frame.data for frame in self.frames if frame.kind == "notification"]

    @property
    def kinds(self) -> list[str]:
        """The kind of each frame read so far, heartbeats left out."""
        return [frame.kind for frame in self.frames if frame.event != "heartbeat"]

    def next(self, timeout: float = PATIENCE) -> Frame:
        """The next frame; EOFError after the last one, TimeoutError if none comes in time."""
        deadline = time.monotonic() + timeout
        while b"\n\n" not in self._pending:
            chunk = b"" if self.ended else self._chunk(deadline)
            if not chunk:
                self.ended = True
                if self._pending:
                    raise StreamBroken(f"the stream ended within a frame: {self._pending!r}")
                raise EOFError
            self.chunks.append((time.monotonic(), chunk))
            self.raw += chunk
            self._pending += chunk
        end = self._pending.index(b"\n\n") + 2
        raw, self._pending = self._pending[:end], self._pending[end:]
        match = FRAME.fullmatch(raw)
        if match is None:
            raise StreamBroken(f"not an `event:` line, a `data:` line and a blank line: {raw!r}")
        frame = Frame(match[1].decode(), json.loads(match[2], parse_constant=_refuse), raw, self.chunks[-1][0])
        self.frames.append(frame)
        return frame

    def until(self, kind: str, timeout: float = PATIENCE) -> Frame:
        """Read on to the first frame of this kind and return it."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                frame = self.next(deadline - time.monotonic())
            except EOFError:
                raise StreamBroken(f"the stream ended without {kind}; it had {self.kinds}") from None
            if frame.kind == kind:
                return frame

    def notification(self, timeout: float = PATIENCE) -> dict[str, Any]:
        """Read on to the next notification and return its CloudEvent."""
        return self.until("notification", timeout).data

    def rest(self, timeout: float = 2 * PATIENCE) -> list[Frame]:
        """Read to the end of the stream and return what was still to come."""
        deadline, before = time.monotonic() + timeout, len(self.frames)
        try:
            while True:
                self.next(deadline - time.monotonic())
        except EOFError:
            return self.frames[before:]

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _read_body(self, timeout: float) -> None:
        deadline, fields = time.monotonic() + timeout, dict(self.headers)
        if fields.get("transfer-encoding") == "chunked":
            while chunk := self._chunk(deadline):
                self.body += chunk
        else:
            self.body = self._take(int(fields.get("content-length", "0")), deadline)
        self.ended = True

    def _chunk(self, deadline: float) -> bytes:
        size = int(self._take(b"\r\n", deadline).split(b";")[0], 16)
        data = self._take(size, deadline)
        if self._take(2, deadline) != b"\r\n":
            raise StreamBroken("a chunk is longer than it said")
        return data

    def _take(self, what: bytes | int, deadline: float) -> bytes:
        """Bytes off the wire: so many, or up to a mark, which is dropped."""
        while True:
            if isinstance(what, int):
                if len(self._wire) >= what:
                    taken, self._wire = self._wire[:what], self._wire[what:]
                    return taken
            elif what in self._wire:
                taken, _, self._wire = self._wire.partition(what)
                return taken
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"nothing more arrived in time; so far {self.kinds}")
            self._socket.settimeout(left)
            received = self._socket.recv(65536)
            if not received:
                raise ConnectionCut(f"the connection was cut; so far {self.kinds}")
            self._wire += received


def _refuse(constant: str) -> None:
    raise StreamBroken(f"{constant} is not JSON")
