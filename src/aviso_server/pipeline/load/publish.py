"""Publishing the rows that were taken: in order, one batch after the other, from where the last run ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aviso_server.errors import PipelineError
from aviso_server.pipeline.connection import connect
from aviso_server.pipeline.load.ledger import Done, LoadLedger
from aviso_server.pipeline.load.parts import part_path
from aviso_server.pipeline.load.quarantine import RefusedRow
from aviso_server.pipeline.load.sending import SentRow, send
from aviso_server.pipeline.load.splits import Split
from aviso_server.pipeline.options import Options

__all__ = ["Published", "publish_all"]

_MOST_BYTES = 4 * 1024 * 1024  # of a request
_KEY = slice(20, 52)  # where an item has its key: after {"idempotency_key":"
_READ_ROWS = 10_000


class Published(msgspec.Struct):
    """What came of the rows so far."""

    published: int = 0
    before: int = 0  # had been published by an earlier run
    refused: int = 0


class _Item(msgspec.Struct, frozen=True, gc=False):
    offset: int
    line: int
    item: bytes

    @property
    def key(self) -> str:
        return self.item[_KEY].decode()


def publish_all(
    options: Options,
    splits: Sequence[Split],
    work: Path,
    lines_before: Sequence[int],
    ledger: LoadLedger,
    batch: int,
    told: Callable[[Published], None],
) -> Published:
    """Publish what the ledger does not have yet; `told` hears after each batch and may raise to stop."""
    so_far = Published()
    with connect(options) as client:
        for _, group in groupby(splits, key=lambda split: split.file):
            pieces = list(group)
            name = pieces[0].given.name
            done = _unchanged(ledger, name, pieces, work)
            rows, turned_down = (0, 0) if done is None else (done.rows, done.refused)
            so_far.before += rows - turned_down
            so_far.refused += turned_down
            told(so_far)
            for split in pieces:
                for items in _batches(part_path(work, "items", split.number), batch, done):
                    answers = send(client, [each.item for each in items], options)
                    refused = _refused(items, answers, name, lines_before[split.number])
                    if refused:
                        ledger.refuse(refused)
                    rows, turned_down = rows + len(items), turned_down + len(refused)
                    ledger.advance(name, Done(items[-1].offset, items[-1].key, rows, turned_down))
                    replayed = sum(answer.replayed for answer in answers)
                    so_far.before += replayed
                    so_far.refused += len(refused)
                    so_far.published += len(items) - len(refused) - replayed
                    told(so_far)
    return so_far


def _unchanged(ledger: LoadLedger, name: str, pieces: Sequence[Split], work: Path) -> Done | None:
    """How far the file has been published, if its last published row is still where it was."""
    done = ledger.done(name)
    if done is None:
        return None
    for split in pieces:
        for batch in _read(part_path(work, "items", split.number)):
            same = batch.filter(pc.equal(batch.column("offset"), done.offset))
            if same.num_rows:
                if same.column("item")[0].as_py()[_KEY].decode() == done.key:
                    return done
                break
    ledger.forget_file(name)  # the keys still know the rows that have not changed
    return None


def _batches(part: Path, most: int, done: Done | None) -> Iterator[list[_Item]]:
    """The rows of a piece beyond what is done, in pieces that make a request each."""
    waiting: list[_Item] = []
    size = 0
    for batch in _read(part):
        if done is not None:
            batch = batch.filter(pc.greater(batch.column("offset"), done.offset))
        for offset, line, item in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if waiting and (len(waiting) == most or size + len(item) > _MOST_BYTES):
                yield waiting
                waiting, size = [], 0
            waiting.append(_Item(offset, line, item))
            size += len(item)
    if waiting:
        yield waiting


def _read(part: Path) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(part) as file:
        yield from file.iter_batches(_READ_ROWS)


def _refused(items: Sequence[_Item], answers: Sequence[SentRow], name: str, before: int) -> list[RefusedRow]:
    """The rows that only the server refused; PipelineError if it would refuse all of them."""
    found = []
    for item, answer in zip(items, answers, strict=True):
        if answer.status == "success":
            continue
        if answer.field == "event_type":
            raise PipelineError(f"the server refuses the event type: {answer.message}")
        raw = b"{" + item.item[_KEY.stop + 2 :]
        found.append(
            RefusedRow(name, before + item.line, raw.decode(), answer.field, answer.message, answer.code or "REFUSED")
        )
    return found
