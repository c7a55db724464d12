"""Request bodies: received whole, decompressed if need be, never larger than allowed."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import brotli
import zstandard

from aviso_server.http.answers import Refusal

__all__ = ["Receive", "client_left", "header", "read_body"]

Receive = Callable[[], Awaitable[Any]]

_ZLIB = 15  # window bits: a zlib stream; 31: a gzip stream
_GZIP = 31
_MOST_MEMBERS = 64  # of one body: files that were compressed apart and joined are one body, byte by byte is an attack


async def read_body(scope: Any, receive: Receive, limit: int) -> bytes:
    """The decoded body; a Refusal with 413 if it is larger than the limit."""
    declared, encoding = None, b""
    for key, value in scope["headers"]:
        if key == b"content-length":
            declared = value
        elif key == b"content-encoding":
            encoding = encoding or value.strip().lower()
    if declared is not None and not encoding and declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    message = await receive()
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        parts, size = [body], len(body)
        while message.get("more_body"):
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError("the client left before its request was complete")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise _too_large(limit)
        body = b"".join(parts)
    if encoding in _DECODERS:
        try:
            body = _DECODERS[encoding](body, limit)
        except (zlib.error, brotli.error, zstandard.ZstdError, EOFError) as error:
            raise Refusal(400, f"The body is not valid {encoding.decode()}: {error}") from None
    if len(body) > limit:
        raise _too_large(limit)
    return body


async def client_left(receive: Receive) -> None:
    """Wait until the client has gone or the answer has ended."""
    while (await receive())["type"] != "http.disconnect":
        pass


def header(scope: Any, name: bytes) -> bytes | None:
    """The value of a request header, None if it was not sent."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"The request body exceeds the size limit of {limit} bytes")


def _inflate(window: int) -> Callable[[bytes, int], bytes]:
    def inflate(body: bytes, limit: int) -> bytes:
        decoded = b""
        for _ in range(_MOST_MEMBERS):
            decoder = zlib.decompressobj(window)
            decoded += decoder.decompress(body, limit + 1 - len(decoded))
            if len(decoded) > limit:
                return decoded
            if not decoder.eof:
                raise EOFError("it ends too early")
            body = decoder.unused_data
            if not body:
                return decoded
        raise EOFError(f"it has more than {_MOST_MEMBERS} members")

    return inflate


def _brotli(body: bytes, limit: int) -> bytes:
    decoder = brotli.Decompressor()
    decoded: bytes = decoder.process(body, output_buffer_limit=limit + 1)
    while len(decoded) <= limit and not decoder.is_finished():
        more = decoder.process(b"", output_buffer_limit=limit + 1)
        if not more:
            raise EOFError("it ends too early")
        decoded += more
    return decoded


def _zstd(body: bytes, limit: int) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(body) as reader:
        return reader.read(limit + 1)


_DECODERS = {
    b"gzip": _inflate(_GZIP),
    b"x-gzip": _inflate(_GZIP),
    b"deflate": _inflate(_ZLIB),
    b"br": _brotli,
    b"zstd": _zstd,
}
