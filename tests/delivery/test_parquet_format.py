"""Replays as Parquet files: whole ones can be read, broken ones cannot."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aviso_server.delivery.clients import ClientWriter, Replay
from aviso_server.delivery.formats import ParquetFile
from aviso_server.delivery.hub import Hub
from aviso_server.model.batch import arrow_schema, wire_columns
from aviso_server.model.times import Span
from tests.delivery.scene import TIDE, FailingLog, Reader, hub_on, publish, roomy, settled
from tests.log.scenario import in_event_loop


async def begun(hub: Hub, cap: int | None = None) -> tuple[Replay, Reader]:
    """Begin a replay of everything as the HTTP route does."""
    reader, wanted = Reader(), TIDE.compile({}, "replay")
    form = ParquetFile("tide", wire_columns(TIDE), "the-request")
    bounds = await hub.store.bounds("tides", Span(from_sequence=0))
    writer = ClientWriter(reader.send)
    stream = hub.replay(wanted, writer, "the-request", format_=form)
    await writer.deliver(form.opening(bounds))
    stream.begin(Span(from_sequence=bounds.start), bounds.end, cap)
    return stream, reader


def content(reader: Reader) -> tuple[list[int], dict[str, str]]:
    """The sequences in the file, and its metadata."""
    file = pq.ParquetFile(io.BytesIO(reader.received))
    assert file.schema_arrow.remove_metadata().equals(arrow_schema(wire_columns(TIDE)))
    words = {key.decode(): value.decode() for key, value in file.metadata.metadata.items() if key != b"ARROW:schema"}
    return file.read().column("sequence").to_pylist(), words


@in_event_loop
async def test_a_complete_replay_is_a_file() -> None:
    async with hub_on(roomy()) as hub:
        await publish(hub.store.log, 5_000)
        stream, reader = await begun(hub)
        await settled(lambda: reader.ended, 30)
        sequences, words = content(reader)
        assert sequences == list(range(1, 5_001))
        assert words == {
            "aviso.event_type": "tide",
            "aviso.request_id": "the-request",
            "aviso.start_sequence": "1",
            "aviso.end_sequence": "5000",
            "aviso.first_sequence": "1",
            "aviso.last_sequence": "5000",
            "aviso.trimmed_sequence": "0",
            "aviso.ending": "replay_completed",
        }
        assert not stream.aborted.is_set()


@in_event_loop
async def test_a_replay_of_nothing_is_a_file_without_rows() -> None:
    async with hub_on(roomy()) as hub:
        _, reader = await begun(hub)
        await settled(lambda: reader.ended)
        assert content(reader)[0] == []


@in_event_loop
async def test_the_cap_ends_it_in_order() -> None:
    async with hub_on(roomy()) as hub:
        await publish(hub.store.log, 300)
        _, reader = await begun(hub, cap=250)
        await settled(lambda: reader.ended)
        sequences, words = content(reader)
        assert sequences == list(range(1, 251))
        assert words["aviso.ending"] == "notification_replay_limit_reached"
        assert words["aviso.max_allowed"] == "250"


@in_event_loop
async def test_a_log_that_fails_leaves_no_file() -> None:
    log = FailingLog(max_history_per_topic=10_000)
    async with hub_on(log) as hub:
        await publish(log, 1_000)
        stream, reader = await begun(hub)
        log.broken.add("read")
        await settled(stream.aborted.is_set)
        assert not reader.ended
        with pytest.raises(pa.ArrowInvalid):
            pq.ParquetFile(io.BytesIO(reader.received))
