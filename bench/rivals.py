"""The rivals: small ASGI servers that do one thing in the way they are named after, under the same uvicorn settings.

`python -m bench.rivals NAME READY_FILE` runs one; it writes its port to the file once it listens.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
import uvloop

__all__ = ["RIVALS"]

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

ANSWER = (
    b'{"status":"success","request_id":"00000000-0000-4000-8000-000000000000","processed_at":"2025-07-06T12:00:00Z"}'
)
ANSWER_HEADERS = [
    (b"x-request-id", b"00000000-0000-4000-8000-000000000000"),
    (b"content-type", b"application/json"),
    (b"content-length", b"%d" % len(ANSWER)),
]
STREAM_HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
HEARTBEAT = b'event: heartbeat\ndata: {"timestamp":"2025-07-06T12:00:00Z","topic":"field.*"}\n\n'
REPLAY_CHUNK = 128 * 1024


class Publish(msgspec.Struct):
    """A publish request."""

    event_type: str
    identifier: dict[str, Any]
    payload: Any = None


_decode = msgspec.json.Decoder(Publish).decode


async def _read(receive: Receive) -> bytes:
    message = await receive()
    body: bytes = message["body"]
    while message.get("more_body"):
        message = await receive()
        body += message["body"]
    return body


async def _answer(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": ANSWER_HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})


async def _open(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    await _chunk(send, HEARTBEAT)


async def _chunk(send: Send, data: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


def event(request: Publish) -> bytes:
    """An event as long as ours, rendered once."""
    data = msgspec.json.encode({"identifier": request.identifier, "payload": request.payload})
    return (
        b'event: live-notification\ndata: {"data":' + data + b',"datacontenttype":"application/json","dataschema":'
        b'"http://127.0.0.1:8000/schema/field","id":"field@1","sequence":1,"source":"http://127.0.0.1:8000",'
        b'"specversion":"1.0","time":"2025-07-06T12:00:00.123456789Z","type":"int.ecmwf.aviso.field"}\n\n'
    )


class BarePublish:
    """Decodes the body and answers; stores and delivers nothing."""

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        _decode(await _read(receive))
        await _answer(send)


class QueuePerWatcher:
    """A queue and a task for each watcher, one send per event and watcher."""

    def __init__(self) -> None:
        self.queues: set[asyncio.Queue[bytes]] = set()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        body = await _read(receive)
        if scope["path"].endswith("notification"):
            frame = event(_decode(body))
            for queue in self.queues:
                queue.put_nowait(frame)
            await _answer(send)
            return
        await _open(send)
        queue = asyncio.Queue[bytes]()
        self.queues.add(queue)
        writer = asyncio.create_task(self._write(queue, send))
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            self.queues.discard(queue)
            writer.cancel()

    async def _write(self, queue: asyncio.Queue[bytes], send: Send) -> None:
        while True:
            await _chunk(send, await queue.get())


class OneDispatcher:
    """One task that takes each event and awaits one send for each watcher."""

    def __init__(self) -> None:
        self.sends: dict[Send, None] = {}
        self.events: asyncio.Queue[bytes] = asyncio.Queue()
        self.dispatcher: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if self.dispatcher is None:
            self.dispatcher = asyncio.create_task(self._dispatch())
        body = await _read(receive)
        if scope["path"].endswith("notification"):
            self.events.put_nowait(event(_decode(body)))
            await _answer(send)
            return
        await _open(send)
        self.sends[send] = None
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            del self.sends[send]

    async def _dispatch(self) -> None:
        while True:
            frame = await self.events.get()
            for number, send in enumerate(list(self.sends)):
                await _chunk(send, frame)
                if number % 256 == 255:  # a send that need not wait gives nobody else a turn
                    await asyncio.sleep(0)


class ReadyBytes:
    """Answers a replay of `from_id` events with bytes that were ready before the request came.

    All of them are there, as many as a replay has: one chunk sent again and again would stay in the processor's cache.
    They are made for the first request, which must not count.
    """

    def __init__(self) -> None:
        self.ready: dict[int, list[bytes]] = {}  # by the number of events

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        count = int(msgspec.json.decode(await _read(receive))["from_id"])
        if count not in self.ready:
            self.ready[count] = _chunks(count)
        await _open(send)
        for chunk in self.ready[count]:
            await _chunk(send, chunk)
        await _chunk(send, b"", more=False)


def _chunks(count: int) -> list[bytes]:
    payload = {"location": "s3://products/od/0001/20250706/1200/enfo/" + "x" * 160, "size": 1234567, "t": "0" * 19}
    frame = event(Publish("field", {"class": "od", "date": "20250706", "expver": "0001", "step": "0"}, payload))
    start, _, end = frame.partition(b'@1","sequence":1,')
    per_chunk = REPLAY_CHUNK // len(frame)
    numbers = range(1, count + 1)
    return [
        b"".join(
            [b'%b@%d","sequence":%d,%b' % (start, number, number, end) for number in numbers[place : place + per_chunk]]
        )
        for place in range(0, count, per_chunk)
    ]


RIVALS: dict[str, Callable[[], Any]] = {
    "bare_publish": BarePublish,
    "queue_per_watcher": QueuePerWatcher,
    "one_dispatcher": OneDispatcher,
    "ready_bytes": ReadyBytes,
}


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, port: int, ready_file: Path) -> None:
        super().__init__(config)
        self._port, self._ready_file = port, ready_file

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        draft = self._ready_file.with_suffix(".new")
        draft.write_text(json.dumps({"port": self._port}))
        draft.rename(self._ready_file)


def main(name: str, ready_file: Path) -> None:
    """Serve until told to stop."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    config = uvicorn.Config(
        RIVALS[name](),
        http="httptools",
        loop="none",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="error",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=120,
        timeout_graceful_shutdown=1,
        backlog=4096,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Server(config, listening.getsockname()[1], ready_file).serve(sockets=[listening]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
