"""Requests to a server, ours or the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from aviso_server import __version__
from aviso_server.errors import PipelineError, Refused
from aviso_server.pipeline.options import Options

__all__ = ["ARROW", "ask", "connect", "open_replay", "pause", "refusal"]

T = TypeVar("T")

ARROW = "application/vnd.apache.arrow.stream"
_ACCEPT = f"{ARROW}, text/event-stream;q=0.5"
_LONGEST_PAUSE = 10.0  # seconds
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def connect(options: Options) -> httpx.Client:
    """A client of the server that the options name, with their credentials; not picklable, so made where it is used."""
    headers = {"user-agent": f"aviso-server-spark/{__version__}", "content-type": "application/json"}
    auth = None
    if options.token is not None:
        headers["authorization"] = f"Bearer {options.token}"
    elif options.username is not None:
        auth = httpx.BasicAuth(options.username, options.password or "")
    return httpx.Client(
        base_url=options.url,
        headers=headers,
        auth=auth,
        timeout=httpx.Timeout(options.timeout, connect=min(10.0, options.timeout)),
        limits=httpx.Limits(max_connections=max(options.connections, 4)),
        trust_env=urlsplit(options.url).hostname not in _LOOPBACK,
    )


def ask(client: httpx.Client, path: str, kind: type[T]) -> T:
    """What the server says under a path; Refused if it does not want to, PipelineError if it cannot be understood."""
    try:
        response = client.get(path)
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise PipelineError(f"no server answers at {client.base_url}: {reason}") from None
    if response.status_code != 200:
        raise refusal(response)
    try:
        return msgspec.json.decode(response.content, type=kind)
    except msgspec.DecodeError:
        raise PipelineError(f"what answers at {client.base_url} is not an aviso server") from None


@contextmanager
def open_replay(client: httpx.Client, body: Mapping[str, Any], minimal: bool = False) -> Iterator[httpx.Response]:
    """The answer to a replay request, its body still to be read; Refused if the server does not accept it.

    With `minimal`, our server sends only what the log keeps, and leaves typed columns to us.
    """
    # `handling=lenient`: our server then lets required fields be left out; others ignore it
    headers = {"accept": _ACCEPT, "accept-encoding": "identity", "prefer": "handling=lenient"}
    if minimal:
        headers["prefer"] += ", return=minimal"
    content = msgspec.json.encode(body)
    with client.stream("POST", "/api/v1/replay", content=content, headers=headers) as response:
        if response.status_code != 200:
            response.read()
            raise refusal(response)
        yield response


def pause(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    return min(0.1 * 2.0**failures, _LONGEST_PAUSE)


def refusal(response: httpx.Response) -> Refused:
    """Why the server refused, in its own words where it gave any."""
    try:
        body: Any = msgspec.json.decode(response.content)
    except msgspec.DecodeError:
        body = None
    members = body if isinstance(body, dict) else {}
    message, details = members.get("message"), members.get("details")
    words = str(message) if message else f"the server answered with status {response.status_code}"
    if details and details != message:
        words += f" ({details})"
    return Refused(words, response.status_code, str(members.get("code", "")))
