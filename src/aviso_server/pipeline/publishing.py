"""Publishing staged rows, each at most once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

import httpx

from aviso_server.errors import PipelineError
from aviso_server.pipeline.batches import cut, offers_batches, send_batch
from aviso_server.pipeline.connection import connect, pause, refusal
from aviso_server.pipeline.options import Options
from aviso_server.pipeline.rows import Row, Stopped, rows_of
from aviso_server.pipeline.staging import MOST_SHOWN, Staged, row_name

__all__ = ["Ledger", "NoLedger", "publish"]


class Ledger(Protocol):
    """Remembers what was published, over the end of the process."""

    def take(self, key: bytes) -> bool:
        """True if a row of this content was published before; each remembered one is found once."""

    def add(self, key: bytes) -> None:
        """A row of this content has been published."""


class NoLedger:
    """Remembers nothing."""

    def take(self, key: bytes) -> bool:
        """Nothing was published before."""
        return False

    def add(self, key: bytes) -> None:
        """Nothing to do."""


def publish(options: Options, staged: Sequence[Staged | None], ledger: Ledger, write: str) -> int:
    """Publish every row once, in the order of partitions and rows; how many.

    `write` names this write: a server that takes batches recognises rows that it got under the same name before.
    If a row would be refused by the rules of its event type, nothing is published at all. Rows that the server
    refuses nevertheless do not keep the others from being published. PipelineError lists both.
    """
    parts = sorted((each for each in staged if each is not None), key=lambda each: each.partition)
    _complain_about_refused(parts)
    rows = [row for row in rows_of(parts, write) if not ledger.take(row.content)]
    refused: list[str] = []
    published = 0
    try:
        with connect(options) as client:
            for outcome in _outcomes(client, rows, options, ledger):
                published += outcome is None
                refused += [outcome] if outcome is not None else []
    except Stopped as stop:
        more = f"; refused before: {_listed(refused, len(refused))}" if refused else ""
        raise PipelineError(f"published at least {published} of {len(rows)} rows, then stopped: {stop}{more}") from None
    if refused:
        raise PipelineError(f"published {published} of {len(rows)} rows; refused: {_listed(refused, len(refused))}")
    return published


def _complain_about_refused(parts: Sequence[Staged]) -> None:
    count = sum(each.refused_count for each in parts)
    if count:
        shown = [f"{row_name(each.partition, place)}: {reason}" for each in parts for place, reason in each.refused]
        raise PipelineError(f"nothing was published, because {count} rows would be refused: {_listed(shown, count)}")


def _outcomes(client: httpx.Client, rows: Sequence[Row], options: Options, ledger: Ledger) -> Iterator[str | None]:
    """For each row None if it was published, else why the server refused it."""
    batches = bool(rows) and offers_batches(client, options)
    pieces = list(cut(rows)) if batches else [[row] for row in rows]
    send = partial(_send_many if batches else _send_one, client, options, ledger)
    if options.connections == 1:
        for piece in pieces:
            yield from send(piece)
        return
    with ThreadPoolExecutor(options.connections, thread_name_prefix="publish") as threads:
        for told in threads.map(send, pieces):
            yield from told


def _send_many(client: httpx.Client, options: Options, ledger: Ledger, rows: Sequence[Row]) -> list[str | None]:
    told = send_batch(client, rows, options)
    for row, complaint in zip(rows, told, strict=True):
        if complaint is None:
            ledger.add(row.content)
    return told


def _send_one(client: httpx.Client, options: Options, ledger: Ledger, rows: Sequence[Row]) -> list[str | None]:
    """To a server that takes neither batches nor keys."""
    [row] = rows
    failures = 0
    while True:
        try:
            response = client.post("/api/v1/notification", content=row.request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            failure: Exception = error  # it was not sent, so it may be sent again
        except httpx.HTTPError as error:
            # It was sent, and nobody knows whether it arrived: to send it again might publish it twice.
            reason = str(error) or type(error).__name__
            raise Stopped(f"{row}: the connection broke and it is unknown whether it was published: {reason}") from None
        else:
            if response.status_code == 200:
                ledger.add(row.content)
                return [None]
            failure = refused = refusal(response)
            if refused.status == 400:
                return [f"{row}: {refused}"]
            if refused.status != 503:
                raise Stopped(f"{row}: status {refused.status}: {refused}")
        failures += 1
        if failures > options.retries:
            reason = str(failure) or type(failure).__name__
            raise Stopped(f"{row}: not published: {reason}")
        time.sleep(pause(failures))


def _listed(complaints: Sequence[str], count: int) -> str:
    shown = "\n  ".join(complaints[:MOST_SHOWN])
    more = f"\n  … and {count - MOST_SHOWN} more" if count > MOST_SHOWN else ""
    return f"\n  {shown}{more}"
