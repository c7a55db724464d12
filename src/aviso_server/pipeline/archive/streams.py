"""Asking a server which streams it has."""

from __future__ import annotations

import httpx
import msgspec

from aviso_server.errors import PipelineError
from aviso_server.pipeline.connection import refusal

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
        response = client.get("/api/v1/streams")
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise PipelineError(f"no server answers at {client.base_url}: {reason}") from None
    if response.status_code == 404:
        raise PipelineError(f"what answers at {client.base_url} does not list its streams, so it cannot be archived")
    if response.status_code != 200:
        raise refusal(response)
    try:
        answer = msgspec.json.decode(response.content, type=_Answer)
    except msgspec.DecodeError:
        raise PipelineError(f"what answers at {client.base_url} is not an aviso server") from None
    return {each.stream: each for each in answer.streams}
