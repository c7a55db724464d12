"""Sending rows to a server, a batch at a time, until it has said what became of each."""

from __future__ import annotations

import time
from collections.abc import Sequence

import httpx
import msgspec

from aviso_server.errors import PipelineError
from aviso_server.pipeline.connection import pause, refusal
from aviso_server.pipeline.options import Options

__all__ = ["SentRow", "Unsent", "send"]

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
    """What became of each item; asks again while the server is away or busy. Unsent if that does not help."""
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
