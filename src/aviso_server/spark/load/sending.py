"""Publishing the rows that were taken: in order, one batch after the other, from where the last run ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import groupby
from pathlib import Path

import httpx
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aviso_server.errors import PipelineError
from aviso_server.model.json_text import compact
from aviso_server.spark.load.load_report import Published, RefusedRow
from pyspark_aviso.client import connect, pause, refusal
from pyspark_aviso.options import Options

__all__ = ["Done", "ItemPart", "LoadLedger", "SentRow", "Unsent", "publish_all", "send"]


class Done(msgspec.Struct, frozen=True):
    """How far a file has been published: through the row at this offset, which had this key."""

    offset: int
    key: str
    rows: int  # that were sent, this one included
    refused: int = 0  # of these, by the server


class _Page(msgspec.Struct):
    event_type: str
    url: str
    salt: str = ""
    files: dict[str, Done] = {}


class LoadLedger:
    """One file for each server and event type; a second one beside it has the rows that the server refused.

    It saves work: what keeps rows from being published twice are their keys, which the server remembers for days.
    """

    def __init__(self, folder: Path, url: str, event_type: str) -> None:
        name = blake2b(f"{url}\n{event_type}".encode(), digest_size=8).hexdigest()
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{name}.json"
        self._refused = folder / f"{name}.refused.jsonl"
        self._page = self._read() or _Page(event_type, url)

    @property
    def salt(self) -> str:
        """Return what tells the keys of this load from those of an earlier one of the same rows."""
        return self._page.salt

    def forget(self, salt: str) -> None:
        """Begin anew: the rows are published again, under other keys."""
        self._page = _Page(self._page.event_type, self._page.url, salt)
        self._refused.unlink(missing_ok=True)
        self._write()

    def forget_file(self, name: str) -> None:
        """Forget a file that is not what it was: it is looked at from its beginning."""
        self._page.files.pop(name, None)

    def done(self, name: str) -> Done | None:
        """Return how far a file has been published; None if not at all."""
        return self._page.files.get(name)

    def advance(self, name: str, done: Done) -> None:
        """Note that a file has been published through this row."""
        self._page.files[name] = done
        self._write()

    def refuse(self, rows: list[RefusedRow]) -> None:
        """Note that the server has refused these rows."""
        with self._refused.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))

    def refused(self, names: set[str]) -> list[RefusedRow]:
        """Return what the server has refused of these files, each row once."""
        if not self._refused.exists():
            return []
        found: dict[tuple[str, int], RefusedRow] = {}
        for line in self._refused.read_bytes().splitlines():
            try:
                row = msgspec.json.decode(line, type=RefusedRow)
            except msgspec.DecodeError:  # the process ended while it was written
                continue
            if row.file in names:
                found[row.file, row.line] = row
        return list(found.values())

    def _read(self) -> _Page | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Page)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise PipelineError(f"the ledger '{self._path}' cannot be read: {error}; remove it to begin anew") from None

    def _write(self) -> None:
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(self._page))
        draft.replace(self._path)


_ROUTE = "/api/v1/notifications"
_PASSING = frozenset({429, 500, 502, 503, 504})  # with keys it is safe to ask again
_UNSTORED = "NOTIFICATION_STORAGE_FAILED"


class Unsent(PipelineError):
    """The server cannot be reached or does not take it; the same command goes on later where this one ended."""


class SentRow(msgspec.Struct, frozen=True):
    """What the server says of a row."""

    status: str
    replayed: bool = False  # it had been published before, under the same key
    code: str = ""
    field: str | None = None
    message: str = ""


class _Answer(msgspec.Struct, frozen=True):
    outcomes: list[SentRow]


def send(client: httpx.Client, items: Sequence[bytes], options: Options) -> list[SentRow]:
    """Send items, again while the server is away or busy; return what became of each. Unsent if that does not help."""
    failures = 0
    while True:
        try:
            response = client.post(_ROUTE, content=b"[" + b",".join(items) + b"]")
        except httpx.HTTPError as error:
            failure = str(error) or type(error).__name__
        else:
            if response.status_code == 200:
                outcomes = msgspec.json.decode(response.content, type=_Answer).outcomes
                unstored = next((each for each in outcomes if each.code == _UNSTORED), None)
                if unstored is None:
                    return outcomes
                failure = unstored.message
            elif response.status_code == 413:
                return _send_parts(client, items, options, str(refusal(response)))
            elif response.status_code in (404, 405):
                raise Unsent(f"what answers at {options.url} takes no batches of notifications")
            else:
                failure = str(refusal(response))
                if response.status_code not in _PASSING:
                    raise Unsent(f"the server refuses with status {response.status_code}: {failure}")
        failures += 1
        if failures > options.retries:
            raise Unsent(f"the server does not take more rows: {failure}")
        time.sleep(pause(failures))


def _send_parts(client: httpx.Client, items: Sequence[bytes], options: Options, words: str) -> list[SentRow]:
    """Two halves of what is too much for one request."""
    if len(items) == 1:
        return [SentRow("error", code="PAYLOAD_TOO_LARGE", message=words)]
    middle = len(items) // 2
    return send(client, items[:middle], options) + send(client, items[middle:], options)


_MOST_BYTES = 4 * 1024 * 1024  # of a request
_KEY_BYTES = 16
_READ_ROWS = 10_000


class ItemPart(msgspec.Struct, frozen=True):
    """The rows of a block that were taken."""

    file: str  # the name of the input
    path: Path
    lines_before: int  # of its file
    bytes_before: int


class _Item(msgspec.Struct, frozen=True, gc=False):
    """A row to publish."""

    offset: int
    line: int
    key: str
    content: bytes  # identifier and payload


class _Keys:
    """Names rows after their file, place and content, and makes items of a batch request of them."""

    def __init__(self, salt: str, event_type: str, file: str) -> None:
        self._start = blake2b(f"{salt}\n{event_type}\n{file}\n".encode(), digest_size=_KEY_BYTES)
        self._name = b'","event_type":' + compact(event_type) + b',"identifier":'

    def item(self, offset: int, line: int, identifier: bytes, payload: bytes) -> _Item:
        content = identifier + b',"payload":' + payload + b"}"
        key = self._start.copy()
        key.update(b"%d\n%b" % (offset, content))
        return _Item(offset, line, key.hexdigest(), content)

    def encode(self, item: _Item) -> bytes:
        return b'{"idempotency_key":"' + item.key.encode() + self._name + item.content


def publish_all(
    options: Options,
    event_type: str,
    parts: Sequence[ItemPart],
    ledger: LoadLedger,
    batch: int,
    told: Callable[[Published], None],
) -> Published:
    """Publish what the ledger does not have yet; `told` hears after each batch and may raise to stop."""
    so_far = Published()
    with connect(options) as client:
        for name, group in groupby(parts, key=lambda part: part.file):
            blocks = list(group)
            keys = _Keys(ledger.salt, event_type, name)
            done = _unchanged(ledger, name, blocks, keys)
            rows, turned_down = (0, 0) if done is None else (done.rows, done.refused)
            so_far.before += rows - turned_down
            so_far.refused += turned_down
            told(so_far)
            for part in blocks:
                for items in _batches(part, batch, done, keys):
                    answers = send(client, [keys.encode(each) for each in items], options)
                    refused = _refused(items, answers, name)
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


def _unchanged(ledger: LoadLedger, name: str, blocks: Sequence[ItemPart], keys: _Keys) -> Done | None:
    """Return how far the file has been published, if its last published row is still where it was."""
    done = ledger.done(name)
    if done is None:
        return None
    for part in blocks:
        for rows in _read(part):
            same = rows.filter(pc.equal(rows.column("offset"), done.offset))
            if same.num_rows:
                if next(_items(same, keys)).key == done.key:
                    return done
                break
    ledger.forget_file(name)  # the keys still know the rows that have not changed
    return None


def _batches(part: ItemPart, most: int, done: Done | None, keys: _Keys) -> Iterator[list[_Item]]:
    """Yield the rows of a block beyond what is done, in lists that make a request each."""
    waiting: list[_Item] = []
    size = 0
    for rows in _read(part):
        if done is not None:
            rows = rows.filter(pc.greater(rows.column("offset"), done.offset))
        for item in _items(rows, keys):
            if waiting and (len(waiting) == most or size + len(item.content) > _MOST_BYTES):
                yield waiting
                waiting, size = [], 0
            waiting.append(item)
            size += len(item.content)
    if waiting:
        yield waiting


def _items(rows: pa.RecordBatch, keys: _Keys) -> Iterator[_Item]:
    return map(keys.item, *(column.to_pylist() for column in rows.columns))


def _read(part: ItemPart) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a block, with lines and offsets counted from the beginning of the file."""
    with pq.ParquetFile(part.path) as file:
        for rows in file.iter_batches(_READ_ROWS):
            offsets = pc.add(rows.column("offset"), part.bytes_before)
            lines = pc.add(rows.column("line"), part.lines_before)
            yield pa.RecordBatch.from_arrays([offsets, lines, *rows.columns[2:]], schema=rows.schema)


def _refused(items: Sequence[_Item], answers: Sequence[SentRow], name: str) -> list[RefusedRow]:
    """Return the rows that only the server refused; PipelineError if it would refuse all of them."""
    found = []
    for item, answer in zip(items, answers, strict=True):
        if answer.status == "success":
            continue
        if answer.field == "event_type":
            raise PipelineError(f"the server refuses the event type: {answer.message}")
        raw = b'{"identifier":' + item.content
        found.append(RefusedRow(name, item.line, raw.decode(), answer.field, answer.message, answer.code or "REFUSED"))
    return found
