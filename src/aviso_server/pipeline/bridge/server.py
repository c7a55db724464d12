"""The pipeline's end of the bridge: one request per connection, a line of JSON each way, replays as Arrow after it."""

from __future__ import annotations

import hmac
import io
import logging
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from aviso_server.errors import AvisoError
from aviso_server.pipeline.bridge.slots import Left, Slots

__all__ = ["REPLAY_SCHEMA", "Bridge", "Operations"]

logger = logging.getLogger(__name__)

REPLAY_SCHEMA = pa.schema(
    [
        ("sequence", pa.int64()),
        ("time_ns", pa.int64()),
        ("topic", pa.string()),
        ("identifier", pa.string()),
        ("payload", pa.string()),
    ]
)
"""The rows of a replay, ascending."""

_MOST_CONNECTIONS = 64
_LONGEST_REQUEST = 16 * 1024 * 1024
_PATIENCE = 10.0  # seconds for a request to arrive
_GLANCE = 0.2  # seconds between two looks whether the caller is still there


class Operations(Protocol):
    """What callers may ask for; AvisoError says why not."""

    def answer(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        """The members of the answer to anything but a replay or a count."""

    def replay(self, request: dict[str, Any], cancelled: threading.Event) -> Iterator[pa.RecordBatch]:
        """The rows of a replay; it ends early when `cancelled` is set."""

    def count(self, request: dict[str, Any], cancelled: threading.Event) -> dict[str, Any]:
        """The members of the answer to a count; it ends early, with an error, when `cancelled` is set."""


class Bridge:
    """Listens on this machine only, for callers who know the token."""

    def __init__(self, token: str, operations: Operations, most_replays: int = 4) -> None:
        self._token = token.encode()
        self._operations = operations
        self._replays = Slots(most_replays)
        self._connections = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=_MOST_CONNECTIONS)

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listening.getsockname()[1]
        return port

    def start(self) -> None:
        """Answer from now on, in threads of its own."""
        threading.Thread(target=self._accept, name="bridge", daemon=True).start()

    def close(self) -> None:
        """Take no more calls."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return  # closed
            if not self._connections.acquire(blocking=False):
                with suppress(OSError), connection:
                    connection.sendall(_line({"ok": False, "error": f"more than {_MOST_CONNECTIONS} connections"}))
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._respond(connection)
        except (OSError, Left):
            pass  # the caller has left
        except Exception:
            logger.exception("a request over the bridge failed", extra={"event": "archive.bridge.failed"})
        finally:
            self._connections.release()

    def _respond(self, connection: socket.socket) -> None:
        request = _request(connection)
        if request is None:
            return
        if not hmac.compare_digest(str(request.get("token", "")).encode(), self._token):
            connection.sendall(_line({"ok": False, "error": "the token is wrong"}))
            return
        operation = str(request.get("op"))
        if operation == "replay":
            self._replay(connection, request)
            return
        try:
            answer = self._answer(connection, operation, request)
        except Left:
            raise
        except AvisoError as error:
            connection.sendall(_line({"ok": False, "error": str(error)}))
        except Exception as error:
            connection.sendall(_line({"ok": False, "error": f"{operation} failed: {type(error).__name__}: {error}"}))
            raise
        else:
            connection.sendall(_line({"ok": True, **answer}))

    def _answer(self, connection: socket.socket, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        if operation != "count":
            return self._operations.answer(operation, request)
        with _watched(connection) as left, self._replays.taken(left):
            answer = self._operations.count(request, left)
            if left.is_set():
                raise Left
            return answer

    def _replay(self, connection: socket.socket, request: dict[str, Any]) -> None:
        with _watched(connection) as left, self._replays.taken(left):
            try:
                batches = self._operations.replay(request, left)
                first = next(batches, None)
            except AvisoError as error:
                connection.sendall(_line({"ok": False, "error": str(error)}))
                return
            connection.sendall(_line({"ok": True}))
            sink = pa.PythonFile(_Sink(connection), "w")
            writer = pa.ipc.new_stream(sink, REPLAY_SCHEMA)
            if first is not None:
                writer.write_batch(first.cast(REPLAY_SCHEMA))
            for batch in batches:
                writer.write_batch(batch.cast(REPLAY_SCHEMA))
            if not left.is_set():
                writer.close()  # the mark of the end: a caller that does not find it knows that something is missing


class _Sink(io.RawIOBase):
    """A connection as a file that pyarrow can write to; it waits for a caller who reads slowly."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def writable(self) -> bool:
        """It is there to be written."""
        return True

    def write(self, data: Any) -> int:
        """Send all of it."""
        self._connection.sendall(data)
        return len(data)


def _request(connection: socket.socket) -> dict[str, Any] | None:
    connection.settimeout(_PATIENCE)
    with connection.makefile("rb") as file:
        line = file.readline(_LONGEST_REQUEST)
    connection.settimeout(None)
    if not line.endswith(b"\n"):
        return None
    try:
        request: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError as error:
        connection.sendall(_line({"ok": False, "error": f"the request is not a JSON object: {error}"}))
        return None
    return request


@contextmanager
def _watched(connection: socket.socket) -> Iterator[threading.Event]:
    """An event that is set when the other end goes away."""
    left, done = threading.Event(), threading.Event()

    def watch() -> None:
        poll = select.poll()
        poll.register(connection, select.POLLIN | select.POLLRDHUP)
        while not done.is_set():
            if poll.poll(_GLANCE * 1000):
                left.set()  # callers have nothing more to say, so it is their end
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield left
    finally:
        done.set()
        thread.join()


def _line(members: dict[str, Any]) -> bytes:
    return msgspec.json.encode(members) + b"\n"
