"""Publishing rows many at a time, to servers that offer it; each with a key, so that a lost answer does no harm."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import httpx
import msgspec

from aviso_server.pipeline.connection import pause, refusal
from aviso_server.pipeline.options import Options
from aviso_server.pipeline.rows import Row, Stopped

__all__ = ["cut", "offers_batches", "send_batch"]

_ROUTE = "/api/v1/notifications"
_MOST_ROWS = 1000
_MOST_BYTES = 4 * 1024 * 1024
_PASSING = frozenset({429, 500, 503})  # with keys it is safe to ask again
_UNSTORED = "NOTIFICATION_STORAGE_FAILED"


class _Outcome(msgspec.Struct, frozen=True):
    status: str
    code: str = ""
    message: str = ""


class _Answer(msgspec.Struct, frozen=True):
    outcomes: list[_Outcome]


def offers_batches(client: httpx.Client, options: Options) -> bool:
    """True if the server takes batches; the reference server does not know the route."""
    failures = 0
    while True:
        try:
            response = client.post(_ROUTE, content=b"[]")
        except httpx.HTTPError as error:
            failure: Exception = error
        else:
            if response.status_code not in _PASSING:
                return response.status_code == 200
            failure = refusal(response)
        failures += 1
        if failures > options.retries:
            raise Stopped(f"nothing was sent: {str(failure) or type(failure).__name__}")
        time.sleep(pause(failures))


def cut(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """The rows in pieces that make a request each."""
    start = size = 0
    for place, row in enumerate(rows):
        size += len(row.request)
        if place > start and (place - start == _MOST_ROWS or size > _MOST_BYTES):
            yield rows[start:place]
            start, size = place, len(row.request)
    if rows:
        yield rows[start:]


def send_batch(client: httpx.Client, rows: Sequence[Row], options: Options) -> list[str | None]:
    """For each row None if it is published, else why the server refused it; Stopped if it is not known."""
    failures = 0
    while True:
        try:
            response = client.post(_ROUTE, content=b"[" + b",".join([row.item for row in rows]) + b"]")
        except httpx.HTTPError as error:
            failure: Exception = error
        else:
            if response.status_code == 200:
                outcomes = msgspec.json.decode(response.content, type=_Answer).outcomes
                unstored = next((outcome for outcome in outcomes if outcome.code == _UNSTORED), None)
                if unstored is None:
                    return [_complaint(row, outcome) for row, outcome in zip(rows, outcomes, strict=True)]
                failure = Stopped(unstored.message)
            elif response.status_code == 413:
                return _send_parts(client, rows, options, str(refusal(response)))
            else:
                failure = refused = refusal(response)
                if refused.status not in _PASSING:
                    raise Stopped(f"{rows[0]}: status {refused.status}: {refused}")
        failures += 1
        if failures > options.retries:
            reason = str(failure) or type(failure).__name__
            raise Stopped(f"{rows[0]} and {len(rows) - 1} more: not known to be published: {reason}")
        time.sleep(pause(failures))


def _send_parts(client: httpx.Client, rows: Sequence[Row], options: Options, reason: str) -> list[str | None]:
    """Two halves of what is too much for one request."""
    if len(rows) == 1:
        return [f"{rows[0]}: {reason}"]
    middle = len(rows) // 2
    return send_batch(client, rows[:middle], options) + send_batch(client, rows[middle:], options)


def _complaint(row: Row, outcome: _Outcome) -> str | None:
    return None if outcome.status == "success" else f"{row}: {outcome.message}"
