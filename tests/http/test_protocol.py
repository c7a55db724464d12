"""The connection class with the reads of its socket under control: any bytes, cut anywhere."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
import uvloop
from uvicorn.server import ServerState

from aviso_server.config.settings import Limits
from aviso_server.counters import RequestTally
from aviso_server.http.connection import HttpConnection, limited_connection
from aviso_server.http.limits import RequestLimits

GOOD = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
OFFER = (
    b"POST /b HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAMAAABk\r\nContent-Length: 6\r\n\r\nwanted"
)
CHUNKED_OFFER = (
    b"POST /c HTTP/1.1\r\nHost: x\r\nUPGRADE:websocket\r\nConnection: upgrade\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n0\r\n\r\n"
)
PLAIN_OFFER = b"GET /d HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"
BROKEN = b"GET /e HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n"
HEAD_LIMIT = 131_072


class Application:
    """Answers with method, path and body, after `release` if the path says so."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.seen: list[str] = []
        self.left: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope["path"])
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left.append(scope["path"])
                return
            body, more = body + message["body"], message["more_body"]
        if scope["path"] == "/slow":
            await self.release.wait()
        if scope["path"] == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
            waiting = asyncio.ensure_future(receive())
            released = asyncio.ensure_future(self.release.wait())
            await asyncio.wait([waiting, released], return_when=asyncio.FIRST_COMPLETED)
            released.cancel()
            if waiting.done():
                self.left.append(scope["path"])
                return
            waiting.cancel()
            await send({"type": "http.response.body", "body": b"ended", "more_body": False})
            return
        text = b"[%b %b %b]" % (scope["method"].encode(), scope["path"].encode(), body)
        headers = [(b"content-length", b"%d" % len(text))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text, "more_body": False})


class Line:
    """One connection, and the client's end of its socket."""

    def __init__(self, connection: HttpConnection, client: socket.socket) -> None:
        self.connection = connection
        self.client = client
        self.received = b""
        self.closed = False

    async def read_until(self, *parts: bytes) -> None:
        """Read until each of these has come, in this order; or until the end if there are none."""
        async with asyncio.timeout(60):
            while not (_in_order(self.received, parts) if parts else self.closed):
                chunk = await asyncio.get_running_loop().sock_recv(self.client, 65536)
                self.closed = not chunk
                self.received += chunk
                assert chunk or not parts, self.received

    async def exchange(self, *reads: bytes) -> None:
        """Receive these bytes, each as one read, until the server hangs up."""
        for each in reads:
            if self.connection.transport.is_closing():
                return
            self.connection.data_received(each)
            await asyncio.sleep(0)


def _in_order(text: bytes, parts: Sequence[bytes]) -> bool:
    place = 0
    for part in parts:
        place = text.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True


@asynccontextmanager
async def line(application: Application, **limits: Any) -> AsyncIterator[Line]:
    """A connection over a real pair of sockets."""
    config = uvicorn.Config(application, lifespan="off", ws="none", log_config=None, access_log=False)
    kind = limited_connection(RequestLimits(Limits(**limits)), RequestTally())
    state, loop = ServerState(), asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    transport, connection = await loop.connect_accepted_socket(lambda: kind(config, state, {}), ours)
    try:
        yield Line(connection, theirs)
    finally:
        transport.abort()
        theirs.close()
        application.release.set()
        async with asyncio.timeout(60):
            while state.tasks:  # none may be left behind
                await asyncio.sleep(0.001)


def run(test: Any) -> None:
    """Run a coroutine in the event loop that the server uses."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test)


@pytest.mark.parametrize("request_bytes", [OFFER, CHUNKED_OFFER, PLAIN_OFFER], ids=["length", "chunked", "no body"])
def test_an_offer_of_another_protocol_is_ignored_wherever_the_bytes_are_cut(request_bytes: bytes) -> None:
    expected = {OFFER: b"[POST /b wanted]", CHUNKED_OFFER: b"[POST /c abc]", PLAIN_OFFER: b"[GET /d ]"}[request_bytes]

    async def scene() -> None:
        for cut in range(len(request_bytes)):
            async with line(Application()) as each:
                await each.exchange(*filter(None, (request_bytes[:cut], request_bytes[cut:])))
                await each.read_until(expected)
                await each.exchange(GOOD)
                await each.read_until(expected, b"[POST /a hello]")
                assert each.received.count(b"HTTP/1.1 200 OK") == 2
        async with line(Application()) as each:
            await each.exchange(*[request_bytes[place : place + 1] for place in range(len(request_bytes))])
            await each.read_until(expected)

    run(scene())


def test_a_connection_that_has_gone_is_freed_at_once() -> None:
    async def scene() -> None:
        async with line(Application()) as each:
            await each.exchange(GOOD)
            await each.read_until(b"[POST /a hello]")
            gone = weakref.ref(each.connection)
        del each
        async with asyncio.timeout(60):
            while gone() is not None:
                await asyncio.sleep(0.001)

    gc.disable()  # circles would wait for it
    try:
        run(scene())
    finally:
        gc.enable()


def test_offers_in_a_row_in_one_read() -> None:
    async def scene() -> None:
        async with line(Application()) as each:
            await each.exchange(OFFER + PLAIN_OFFER + CHUNKED_OFFER + GOOD)
            await each.read_until(b"[POST /b wanted]", b"[GET /d ]", b"[POST /c abc]", b"[POST /a hello]")

    run(scene())


BODY_BROKEN = b"POST /f HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"


@pytest.mark.parametrize(
    "broken", [BROKEN, b"\x16\x03\x01 nonsense\r\n\r\n", BODY_BROKEN], ids=["field", "tls", "body"]
)
def test_a_broken_request_is_refused_after_the_answers_to_those_before_it(broken: bytes) -> None:
    async def scene() -> None:
        for reads in [(GOOD + broken,), (GOOD, broken), (GOOD + GOOD.replace(b"/a", b"/slow") + broken,)]:
            application = Application()
            async with line(application) as each:
                await each.exchange(*reads)
                application.release.set()
                await each.read_until()
                assert each.received.count(b"HTTP/1.1 200 OK") == sum(read.count(b"hello") for read in reads)
                assert _in_order(each.received, [b"[POST /a hello]", b"HTTP/1.1 400 Bad Request"])
                assert each.received.endswith(b"Invalid HTTP request received.")
                assert "/f" not in application.seen or application.left == ["/f"]

    run(scene())


def test_nothing_is_written_into_a_stream_by_what_follows_it() -> None:
    async def scene() -> None:
        half = b"POST /late HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf"
        for late in (BROKEN, b"GET /half", half):
            application = Application()
            async with line(application, header_timeout_seconds=1, body_timeout_seconds=1) as each:
                await each.exchange(b"GET /stream HTTP/1.1\r\n\r\n" + late)
                await each.read_until(b"begun")
                await asyncio.sleep(1.3)  # longer than the limits
                application.release.set()
                await each.read_until()
                stream, _, refusal = each.received.partition(b"5\r\nended\r\n0\r\n\r\n")
                assert stream.endswith(b"5\r\nbegun\r\n")
                assert refusal.startswith(b"HTTP/1.1 400" if late == BROKEN else b"HTTP/1.1 408")

    run(scene())


def test_who_hangs_up_with_requests_waiting_ends_the_one_that_is_answered() -> None:
    async def scene() -> None:
        application = Application()
        async with line(application) as each:
            await each.exchange(b"GET /stream HTTP/1.1\r\n\r\n" + GOOD + GOOD)
            await each.read_until(b"begun")
            each.client.close()
            async with asyncio.timeout(60):
                while application.left != ["/stream"]:
                    await asyncio.sleep(0.001)
        assert application.seen == ["/stream"]

    run(scene())


def test_requests_behind_a_stream_are_answered_after_it_unless_the_server_leaves() -> None:
    async def scene() -> None:
        for leaving in (False, True):
            application = Application()
            async with line(application) as each:
                await each.exchange(b"GET /stream HTTP/1.1\r\n\r\n" + GOOD)
                await each.read_until(b"begun")
                if leaving:
                    each.connection.shutdown()
                application.release.set()
                if leaving:
                    await each.read_until()
                    assert application.seen == ["/stream"]
                else:
                    await each.read_until(b"ended\r\n0\r\n\r\n", b"[POST /a hello]")

    run(scene())


@pytest.mark.parametrize("before", [b"", GOOD], ids=["first", "second"])
@pytest.mark.parametrize(
    "head",
    [
        b"GET /x HTTP/1.1\r\nX: " + b"x" * HEAD_LIMIT + b"\r\n\r\n",
        b"GET /" + b"x" * HEAD_LIMIT + b" HTTP/1.1\r\n\r\n",
        b"GET /x HTTP/1.1\r\n" + b"x-more: 01234567\r\n" * 8000 + b"\r\n",
    ],
    ids=["one header", "an address", "many headers"],
)
def test_the_limit_of_a_head_holds_for_one_large_read(head: bytes, before: bytes) -> None:
    async def scene() -> None:
        for reads in [(before + head,), (before + head[:1000], head[1000:]), (before + head[:-1000], head[-1000:])]:
            application = Application()
            async with line(application) as each:
                await each.exchange(*reads)
                await each.read_until()
                assert each.received.count(b"HTTP/1.1 431 ") == 1
                assert application.seen == (["/a"] if before else [])
                assert each.received.count(b"[POST /a hello]") == len(application.seen)

    run(scene())


def test_a_body_does_not_count_as_the_head_of_the_next_request() -> None:
    async def scene() -> None:
        body = b"y" * 200_000
        large = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        for cut in (0, 100):
            async with line(Application()) as each:
                await each.exchange(*filter(None, (large[:cut], large[cut:] + GOOD[:10])), GOOD[10:])
                await each.read_until(body + b"]", b"[POST /a hello]")
                assert each.received.count(b"HTTP/1.1 200 OK") == 2

    run(scene())


def test_a_read_full_of_requests_is_answered_in_order_and_does_not_hold_the_loop() -> None:
    async def scene() -> None:
        application = Application()
        requests = [b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(5000)]
        async with line(application) as each:
            stream = b"GET /stream HTTP/1.1\r\n\r\n"
            await each.exchange(stream + b"".join(requests[:4000]), b"".join(requests[4000:]))
            assert len(each.connection.pipeline) < 1000, "the others need not be looked at yet"
            application.release.set()
            await each.read_until(b"ended\r\n0\r\n\r\n", b"[GET /4999 ]")
        assert application.seen == ["/stream", *[f"/{number}" for number in range(5000)]]

    run(scene())


@pytest.mark.parametrize("cut", [1, 7, 4096, 20_000])
def test_large_bodies_in_a_row_arrive_whole_however_they_are_cut(cut: int) -> None:
    async def scene() -> None:
        bodies = [bytes([letter]) * 30_000 for letter in b"pqr"]
        sent = b"".join(
            b"POST /a HTTP/1.1\r\nContent-Length: 30000\r\n\r\n%b" % body
            if number % 2
            else b"POST /slow HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n7530\r\n%b\r\n0\r\n\r\n" % body
            for number, body in enumerate(bodies)
        )
        application = Application()
        async with line(application) as each:
            await each.exchange(*[sent[place : place + cut] for place in range(0, len(sent), cut)])
            application.release.set()
            await each.read_until(*[body + b"]" for body in bodies])
            assert each.received.count(b"HTTP/1.1 200 OK") == 3

    run(scene())


@pytest.mark.parametrize("end", [b"0\r\nX: ", b"5;x="], ids=["trailer", "extension"])
def test_what_is_no_body_in_a_body_has_a_limit(end: bytes) -> None:
    async def scene() -> None:
        application = Application()
        async with line(application) as each:
            await each.exchange(b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n" + end)
            await each.exchange(*[b"x" * 4096] * 40)
            await each.read_until()
            assert each.received.startswith(b"HTTP/1.1 431 ")

    run(scene())


@pytest.mark.parametrize(
    "codings",
    [
        [b"gzip, chunked"],
        [b"gzip", b"chunked"],
        [b"chunked", b"chunked"],
        [b"chunked, chunked"],
        [b"gzip"],
        [b"identity"],
        [b"chunked, gzip"],
        [b"xchunked"],
        [b"chunked;q=1"],
        [b""],
    ],
    ids=repr,
)
def test_transfer_codings_other_than_chunked_are_refused(codings: list[bytes]) -> None:
    async def scene() -> None:
        application = Application()
        async with line(application) as each:
            lines = [b"POST /a HTTP/1.1", *[b"Transfer-Encoding: " + coding for coding in codings], b"", b""]
            await each.exchange(GOOD, b"\r\n".join(lines) + b"3\r\nabc\r\n0\r\n\r\n" + GOOD)
            await each.read_until()
            _, _, refusal = each.received.partition(b"[POST /a hello]")
            assert refusal.startswith((b"HTTP/1.1 501 ", b"HTTP/1.1 400 "))
            assert application.seen == ["/a"]

    run(scene())


@pytest.mark.parametrize("coding", [b"chunked", b"Chunked", b" CHUNKED "])
def test_chunked_in_any_letters(coding: bytes) -> None:
    async def scene() -> None:
        async with line(Application()) as each:
            await each.exchange(b"POST /a HTTP/1.1\r\nTransfer-Encoding:" + coding + b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
            await each.read_until(b"[POST /a abc]")

    run(scene())
