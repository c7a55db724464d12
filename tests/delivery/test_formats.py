"""Replays in other forms: how they end when they cannot be completed."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from aviso_server.delivery.clients import ClientWriter, Replay
from aviso_server.delivery.formats import ArrowStream, DownloadFormat, JsonLines
from aviso_server.delivery.hub import Hub
from aviso_server.log.memory import MemoryLog
from aviso_server.model.batch import wire_columns
from aviso_server.model.times import Span
from tests.delivery.scene import TIDE, FailingLog, Reader, hub_on, publish, roomy, settled
from tests.log.scenario import in_event_loop

BOTH = pytest.mark.parametrize("kind", ["arrow", "lines"])


async def begun(hub: Hub, kind: str, cap: int | None = None) -> tuple[Replay, Reader]:
    """Begin a replay of everything as the HTTP route does."""
    reader = Reader()
    wanted = TIDE.compile({}, "replay")
    form: DownloadFormat = (
        ArrowStream("tide", wire_columns(TIDE), "the-request")
        if kind == "arrow"
        else JsonLines(wanted.topic, hub.renderer("tide"), "the-request")
    )
    bounds = await hub.store.bounds("tides", Span(from_sequence=0))
    writer = ClientWriter(reader.send)
    stream = hub.replay(wanted, writer, "the-request", format_=form)
    await writer.deliver(form.opening(bounds))
    stream.begin(Span(from_sequence=bounds.start), bounds.end, cap)
    return stream, reader


def content(kind: str, reader: Reader) -> tuple[list[int], dict[str, Any]]:
    """The sequences that arrived, and what was said about the end."""
    if kind == "lines":
        *lines, last = [json.loads(line) for line in reader.received.splitlines()]
        return [line["sequence"] for line in lines], last
    stream = pa.ipc.open_stream(reader.received)
    sequences: list[int] = []
    words: dict[str, str] = {}
    while True:
        try:
            batch, metadata = stream.read_next_batch_with_custom_metadata()
        except StopIteration:
            return sequences, words
        sequences += batch.column("sequence").to_pylist()
        words = {key.decode(): value.decode() for key, value in (metadata or {}).items()}


@BOTH
@in_event_loop
async def test_a_complete_replay_ends_in_order(kind: str) -> None:
    async with hub_on(roomy()) as hub:
        await publish(hub.store.log, 5_000)
        stream, reader = await begun(hub, kind)
        await settled(lambda: reader.ended, 30)
        sequences, last = content(kind, reader)
        assert sequences == list(range(1, 5_001))
        assert last.get("type", last.get("aviso.ending")) == "replay_completed"
        assert not stream.aborted.is_set()
        assert stream.flow.sent == 5_000


@BOTH
@in_event_loop
async def test_a_log_that_fails_breaks_the_transfer_off_and_says_why(kind: str) -> None:
    log = FailingLog(max_history_per_topic=10_000)
    async with hub_on(log) as hub:
        await publish(log, 1_000)
        stream, reader = await begun(hub, kind)
        log.broken.add("read")
        await settled(stream.aborted.is_set)
        _, last = content(kind, reader)
        assert not reader.ended, "the transfer was to stay incomplete"
        assert "the disk is on fire" in str(last.get("message", last.get("aviso.message")))
        assert last.get("error", last.get("aviso.ending")) in ("stream_processing_failed", "error")


@BOTH
@in_event_loop
async def test_a_server_that_leaves_breaks_the_transfer_off(kind: str) -> None:
    async with hub_on(roomy()) as hub:
        await publish(hub.store.log, 1_000)
        stream, reader = await begun(hub, kind)
        reader.stop()
        hub.close_streams("server_shutdown")
        reader.resume()
        await settled(stream.aborted.is_set)
        _, last = content(kind, reader)
        assert not reader.ended
        assert last.get("reason", last.get("aviso.ending")) == "server_shutdown"


@BOTH
@in_event_loop
async def test_the_cap_ends_it_in_order(kind: str) -> None:
    async with hub_on(roomy()) as hub:
        await publish(hub.store.log, 300)
        stream, reader = await begun(hub, kind, cap=250)
        await settled(lambda: reader.ended)
        sequences, last = content(kind, reader)
        assert sequences == list(range(1, 251))
        assert last.get("type", last.get("aviso.ending")) == "notification_replay_limit_reached"
        assert not stream.aborted.is_set()


@BOTH
@in_event_loop
async def test_retention_that_is_faster_than_the_reader_is_no_complete_replay(kind: str) -> None:
    async with hub_on(MemoryLog(max_history_per_topic=10_000)) as hub:
        await publish(hub.store.log, 10_000)
        stream, reader = await begun(hub, kind)
        reader.stop()
        await settled(lambda: stream.flow.sent)  # the first chunk is on its way
        await publish(hub.store.log, 9_900)  # what is in the prefetched chunks and more
        reader.resume()
        await settled(stream.aborted.is_set)
        sequences, last = content(kind, reader)
        assert sequences == list(range(1, len(sequences) + 1))
        assert "retention has removed notifications" in str(last.get("message", last.get("aviso.message")))


@in_event_loop
async def test_bounds_are_those_of_what_is_held() -> None:
    async with hub_on(MemoryLog(max_history_per_topic=10)) as hub:
        empty = await hub.store.bounds("tides", Span(from_sequence=0))
        assert (empty.start, empty.end, empty.first, empty.last, empty.trimmed) == (1, 0, 1, 0, 0)
        await publish(hub.store.log, 25)
        bounds = await hub.store.bounds("tides", Span(from_sequence=3, to_sequence=99))
        assert (bounds.start, bounds.end, bounds.first, bounds.last, bounds.trimmed) == (16, 25, 16, 25, 15)
