"""Reading a range of sequences to its end, whatever happens to the connection on the way."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import httpx
import pyarrow as pa

from aviso_server.errors import PipelineError, Refused
from aviso_server.model.columns import Column
from aviso_server.pipeline.connection import connect, open_replay, pause
from aviso_server.pipeline.options import Options
from aviso_server.pipeline.planning import SequenceRange, Stretch
from aviso_server.pipeline.replay_stream import Interrupted, LimitReached, replayed

__all__ = ["lost", "read_range"]


def read_range(
    options: Options, wanted: SequenceRange, columns: Sequence[Column], minimal: bool = False
) -> Iterator[pa.RecordBatch]:
    """All notifications of the range that pass its filter, once each and in order; PipelineError if some are missing.

    A broken connection is made again and reading goes on after the last row, so a server may restart meanwhile.
    """
    position, failures = wanted.start, 0
    with connect(options) as client:
        while position <= wanted.end:
            before = position
            try:
                for batch in _batches(client, wanted, position, columns, minimal):
                    yield batch
                    position = batch.column("sequence")[-1].as_py() + 1
                return
            except LimitReached:
                if position == before:
                    raise PipelineError(f"{_shown(wanted)}: the server's limit leaves no room for one row") from None
            except (httpx.TransportError, Interrupted) as error:
                failures = 1 if position > before else failures + 1
                if failures > options.retries:
                    reason = str(error) or type(error).__name__
                    raise PipelineError(f"{_shown(wanted)}: broken off at sequence {position}: {reason}") from None
                time.sleep(pause(failures))


def _batches(
    client: httpx.Client, wanted: SequenceRange, position: int, columns: Sequence[Column], minimal: bool
) -> Iterator[pa.RecordBatch]:
    body = {"event_type": wanted.event_type, "identifier": wanted.identifier, "from_id": str(position)}
    if wanted.bounded:
        body["to_id"] = str(wanted.end)
    try:
        with open_replay(client, body, minimal) as response:
            stream = replayed(response, wanted.event_type, columns, wanted.end)
            opening = stream.opening
            held = Stretch(position, wanted.end, opening.first, opening.trimmed)
            if wanted.strict and held.lost_before(position):
                raise lost(wanted.event_type, position, held)
            yield from (batch for batch in stream.batches if batch.num_rows)
    except Refused as error:
        if error.status == 503:
            raise Interrupted(str(error)) from None
        raise PipelineError(f"{_shown(wanted)}: {error}") from None


def lost(event_type: str, position: int, held: Stretch) -> PipelineError:
    """The complaint about rows that retention has removed before they were read."""
    return PipelineError(
        f"event type '{event_type}': notifications from sequence {position} on were removed by retention before they "
        f"were read; the oldest one held is {held.first}. To go on without them set fail_on_data_loss to false"
    )


def _shown(wanted: SequenceRange) -> str:
    return f"event type '{wanted.event_type}', sequences {wanted.start} to {wanted.end}"
