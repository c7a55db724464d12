"""Asking a server which streams it has."""

from __future__ import annotations

import httpx
import msgspec

from aviso_server.errors import PipelineError, Refused
from aviso_server.pipeline.connection import ask

__all__ = ["LogStream", "fetch_streams"]


class LogStream(msgspec.Struct, frozen=True):
    """A stream of a server and what its log holds of it."""

    stream: str
    event_type: str
    first: int
    last: int
    trimmed: int = 0
    count: int = 0
    bytes: int = 0


class _Answer(msgspec.Struct, frozen=True):
    streams: list[LogStream]


def fetch_streams(client: httpx.Client) -> dict[str, LogStream]:
    """The streams by name, all that the caller may read; PipelineError if the server does not say."""
    try:
        answer = ask(client, "/api/v1/streams", _Answer)
    except Refused as error:
        if error.status != 404:
            raise
        message = f"what answers at {client.base_url} does not list its streams, so it cannot be archived"
        raise PipelineError(message) from None
    return {each.stream: each for each in answer.streams}
