"""The way to one client: at once while it keeps up, something to wait for when it does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aviso_server.delivery.clients import ClientWriter
from tests.delivery.scene import Reader
from tests.log.scenario import in_event_loop


@in_event_loop
async def test_writes_are_done_at_once_while_the_client_keeps_up() -> None:
    reader = Reader()
    writer = ClientWriter(reader.send)
    assert writer.write(b"a") is None
    assert writer.write(b"b") is None
    assert reader.received == b"ab"
    assert writer.write(b"c", last=True) is None
    assert reader.ended


@in_event_loop
async def test_a_suspended_write_is_finished_in_a_task() -> None:
    reader = Reader()
    writer = ClientWriter(reader.send)
    reader.stop()
    blocked = writer.write(b"a")
    assert blocked is not None
    waiting = asyncio.ensure_future(blocked)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    assert reader.received == b""
    reader.resume()
    await waiting
    assert reader.received == b"a"


@in_event_loop
async def test_a_write_that_resumes_before_anyone_waits() -> None:
    reader = Reader()
    writer = ClientWriter(reader.send)
    reader.stop()
    blocked = writer.write(b"a")
    assert blocked is not None
    reader.resume()
    await asyncio.sleep(0.01)
    await blocked
    assert reader.received == b"a"


@in_event_loop
async def test_a_write_that_waits_several_times() -> None:
    async def send(message: Any) -> None:
        for _ in range(3):
            await asyncio.sleep(0.001)
            await asyncio.sleep(0)
        taken.append(message["body"])

    taken: list[bytes] = []
    blocked = ClientWriter(send).write(b"a")
    assert blocked is not None
    await blocked
    assert taken == [b"a"]


@in_event_loop
async def test_cancelling_reaches_the_sender() -> None:
    cleaned: list[str] = []

    async def send(message: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("up")

    blocked = ClientWriter(send).write(b"a")
    assert blocked is not None
    task = asyncio.ensure_future(blocked)
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == ["up"]


@in_event_loop
async def test_a_sender_that_takes_cancelling_for_an_end() -> None:
    async def send(message: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    blocked = ClientWriter(send).write(b"a")
    assert blocked is not None
    task = asyncio.ensure_future(blocked)
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@in_event_loop
async def test_errors_of_the_sender_arrive() -> None:
    reader = Reader()
    reader.gone = True
    with pytest.raises(ConnectionResetError):
        ClientWriter(reader.send).write(b"a")
    with pytest.raises(ConnectionResetError):
        await ClientWriter(reader.send).deliver(b"a")

    async def late(message: Any) -> None:
        await asyncio.sleep(0.001)
        raise ConnectionResetError

    blocked = ClientWriter(late).write(b"a")
    assert blocked is not None
    with pytest.raises(ConnectionResetError):
        await blocked


@in_event_loop
async def test_delivering_waits_for_room() -> None:
    reader = Reader()
    reader.stop()
    delivery = asyncio.create_task(ClientWriter(reader.send).deliver(b"a"))
    await asyncio.sleep(0.01)
    assert not delivery.done()
    reader.resume()
    await delivery
    assert reader.received == b"a"


def test_a_large_chunk_goes_out_in_slices_that_end_with_a_line() -> None:
    async def scene() -> None:
        sent: list[tuple[bytes, bool]] = []

        async def send(message: Any) -> None:
            sent.append((bytes(message["body"]), message["more_body"]))

        writer = ClientWriter(send)
        for longest in (999, 200_000):
            sizes = [number * 7919 % longest for number in range(max(40, 3_000_000 // longest))]
            lines = b"".join(b"%d %b\n" % (size, b"x" * size) for size in sizes)
            for chunk in (lines, memoryview(lines)):
                await writer.deliver(chunk)
                assert b"".join(body for body, _ in sent) == lines
                assert all(body.endswith(b"\n") and len(body) <= 256 * 1024 for body, _ in sent)
                assert all(more for _, more in sent)
                assert len(sent) > 4
                sent.clear()
        without_lines = bytes(600_000)
        await writer.deliver(without_lines, last=True)
        assert b"".join(body for body, _ in sent) == without_lines
        assert [more for _, more in sent] == [True, True, False]

    asyncio.run(scene())
