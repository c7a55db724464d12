"""A request as handlers see it: its headers, and its body, decompressed and read from JSON."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from random import getrandbits
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

import brotli
import msgspec
import orjson
import zstandard

from aviso_server.delivery.clients import ClientWriter, Send
from aviso_server.errors import InvalidRequest, MalformedRequest, RequestError
from aviso_server.http.response import Headers, HttpError
from aviso_server.model.event_type import MAX_PAYLOAD_DEPTH
from aviso_server.model.json_text import MAX_DEPTH, deeper_than, loads, most_values, quoted

if TYPE_CHECKING:
    from aviso_server.http.app import Route, Service
    from aviso_server.http.auth import User

__all__ = [
    "ENCODINGS",
    "LINE_TYPES",
    "MAX_VALUES",
    "MEMBERS",
    "Receive",
    "Request",
    "RequestBody",
    "aside",
    "check_publishable",
    "decode_one",
    "new_request_id",
    "parse_request",
    "read_batch",
    "read_body",
    "read_request",
]

T = TypeVar("T")

Receive = Callable[[], Awaitable[Any]]
"""The receive callable of an ASGI server."""


def new_request_id() -> str:
    """Return a random UUID of version 4; no secret, and several times faster than `uuid4`, which asks the system."""
    digits = f"{getrandbits(128):032x}"
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{'89ab'[getrandbits(2)]}{digits[17:20]}-{digits[20:]}"


_MAX_QUERY = 1024  # bytes


class Request:
    """One HTTP request: who sent it, what it asks for, and the service that answers it."""

    __slots__ = ("_receive", "_send", "id", "params", "route", "scope", "service", "user")

    def __init__(self, service: Service, scope: Any, receive: Receive, send: Send) -> None:
        self.service = service
        self.scope = scope
        self.id = new_request_id()
        self.user: User | None = None  # None for callers without credentials
        self.route: Route | None = None  # None if no route answers it
        self.params: Mapping[str, str] = {}  # of the path, decoded
        self._receive = receive
        self._send = send

    def parameters(self, accepted: Sequence[str], others: bool = False) -> dict[str, str]:
        """Return the accepted parameters of the query; InvalidRequest for one given twice or refused."""
        query, given = self.scope["query_string"], dict[str, str]()
        if others and not any(name.encode() in query for name in accepted):
            return given
        if len(query) > _MAX_QUERY:
            raise InvalidRequest(f"The query is longer than {_MAX_QUERY} bytes")
        for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
            if name in given:
                raise InvalidRequest(f"Parameter '{name}' is given twice", field=name)
            if name in accepted:
                given[name] = value
            elif not others:
                raise InvalidRequest(
                    f"Unknown parameter {quoted(name)}; accepted are {', '.join(accepted)}", field=name
                )
        return given

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header, None if it was not sent."""
        for key, value in self.scope["headers"]:
            if key == name:
                found: bytes = value
                return found
        return None

    def preferred(self, offered: Sequence[str]) -> str:
        """Return the media type that the client likes best (Accept)."""
        accepted = [value.decode("latin-1") for name, value in self.scope["headers"] if name == b"accept"]
        return _preferred(accepted, offered)

    def prefers(self, preference: bytes) -> bool:
        """Return whether the client has sent this preference (Prefer)."""
        preferences = [value.lower().replace(b" ", b"") for name, value in self.scope["headers"] if name == b"prefer"]
        return any(preference in value.split(b",") for value in preferences)

    def body(self, limit: int | None = None) -> Awaitable[bytes]:
        """Read the body, decompressed; HttpError if it exceeds the limit, by default limits.max_body_bytes."""
        most = self.service.settings.limits.max_body_bytes if limit is None else limit
        return read_body(self.scope["headers"], self._receive, most)

    async def client_left(self) -> None:
        """Wait until the client has gone or the answer has ended."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def writer(self) -> ClientWriter:
        """Return the client writer for a stream."""
        return ClientWriter(self._send, self.scope.get("hang_up"))


_PARAMETER = re.compile(r";\s*([^;=\s]+)\s*=\s*(\"(?:[^\"\\]|\\.)*\"|[^;\s]*)")
_WEIGHT = re.compile(r"0(?:\.\d{0,3})?|1(?:\.0{0,3})?", re.ASCII)


def _preferred(headers: Iterable[str], offered: Sequence[str]) -> str:
    """Pick the offered media type with the highest weight, the earlier of equals, the first if none is accepted.

    Wildcards stand for the first one. The others have to be named, and then win over a wildcard of the same weight.
    """
    ranges = [found for header in headers for item in header.split(",") if (found := _range(item)) is not None]
    usual = offered[0]
    weights = {name: max((weight for found, weight in ranges if found == name), default=0.0) for name in offered}
    best = max(offered, key=lambda name: weights[name])
    if usual in dict(ranges) or not weights[best]:
        return best if weights[best] else usual
    wildcards = [weight for found, weight in ranges if found in (f"{usual.partition('/')[0]}/*", "*/*")]
    return best if weights[best] >= max(wildcards, default=0.0) else usual


def _range(item: str) -> tuple[str, float] | None:
    name, separator, rest = item.partition(";")
    media_type = name.strip().lower()
    if "/" not in media_type:
        return None
    weight = 1.0
    for key, value in _PARAMETER.findall(separator + rest):
        if key.lower() == "q":
            if _WEIGHT.fullmatch(value) is None:
                return None
            weight = float(value)
    return media_type, weight


# The body

_SLICE = 65_536  # bytes that are worked on at a time: a fraction of a millisecond
_ZLIB = 15  # window bits: a zlib stream; 31: a gzip stream
_GZIP = 31
_MAX_MEMBERS = 64  # of one body: files that were compressed apart and joined are one body, byte by byte is an attack
_CUT_SHORT = "it ends too early"


async def read_body(headers: Headers, receive: Receive, limit: int) -> bytes:
    """Read and decompress the body; HttpError with 413 if it exceeds the limit, with 415 for an unknown encoding."""
    given = dict(headers)
    declared, encoding = given.get(b"content-length"), b""
    if b"content-encoding" in given:
        codings = [value.strip().lower() for key, value in headers if key == b"content-encoding"]
        encoding = b",".join(filter(None, codings))
        if encoding == b"identity":
            encoding = b""
        elif encoding and encoding not in _DECODERS:
            raise _unknown(encoding)
    if declared is not None and not encoding and declared.isdigit() and int(declared[:20]) > limit:
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
    if encoding:
        try:
            body = await _unpacked(body, _DECODERS[encoding], limit)
        except (zlib.error, brotli.error, zstandard.ZstdError, EOFError) as error:
            raise HttpError(400, f"The body is not valid {encoding.decode()}: {error}") from None
    if len(body) > limit:
        raise _too_large(limit)
    return body


async def aside(body: bytes, work: Callable[..., T], *arguments: Any) -> T:
    """Do work that takes longer the larger a body is: here, or in a thread if it is large."""
    return work(*arguments) if len(body) <= _SLICE else await asyncio.to_thread(work, *arguments)


def _too_large(limit: int) -> HttpError:
    return HttpError(413, f"The request body exceeds the size limit of {limit} bytes")


def _unknown(encoding: bytes) -> HttpError:
    accepted = ", ".join(ENCODINGS)
    shown = encoding[:80].decode("latin-1")
    message = f"The Content-Encoding '{shown}' is not supported; accepted is one of {accepted}"
    return HttpError(415, message, [(b"accept-encoding", accepted.encode())])


async def _unpacked(body: bytes, decoder: Callable[[bytes], Iterator[bytes]], limit: int) -> bytes:
    """Join what a decoder makes, up to just above the limit; in a thread, but for the first slices of a small body."""
    slices, first = filter(None, decoder(body)), b""
    if len(body) <= _SLICE:
        first = next(slices, b"")
        if len(first) < _SLICE:  # nearly always the whole
            rest = next(slices, b"")
            if not rest:
                return first
            first += rest
    return await asyncio.to_thread(_joined, first, slices, limit)


def _joined(first: bytes, slices: Iterator[bytes], limit: int) -> bytes:
    parts, size = [first], len(first)
    for piece in slices:
        parts.append(piece)
        size += len(piece)
        if size > limit:
            break
    return b"".join(parts)


def _inflate(window: int) -> Callable[[bytes], Iterator[bytes]]:
    def inflate(body: bytes) -> Iterator[bytes]:
        for _ in range(_MAX_MEMBERS):
            decoder = zlib.decompressobj(window)
            while not decoder.eof:
                piece = decoder.decompress(body, _SLICE)
                body = decoder.unconsumed_tail
                if not piece and not body and not decoder.eof:
                    raise EOFError(_CUT_SHORT)
                yield piece
            body = decoder.unused_data
            if not body:
                return
        raise EOFError(f"it has more than {_MAX_MEMBERS} members")

    return inflate


def _brotli(body: bytes) -> Iterator[bytes]:
    decoder = brotli.Decompressor()
    piece = decoder.process(body, output_buffer_limit=_SLICE)
    while not decoder.is_finished():
        yield piece
        piece = decoder.process(b"", output_buffer_limit=_SLICE)
        if not piece and not decoder.is_finished():
            raise EOFError(_CUT_SHORT)
    yield piece


def _zstd(body: bytes) -> Iterator[bytes]:
    for _ in range(_MAX_MEMBERS):
        # a larger window than the one of RFC 9659 would only be memory that a few bytes can ask for
        decoder = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
        at = 0
        while not decoder.eof:
            if at >= len(body):
                raise EOFError(_CUT_SHORT)
            yield decoder.decompress(body[at : at + _BITE])
            at += _BITE
        body = decoder.unused_data + body[at:]
        if not body:
            return
    raise EOFError(f"it has more than {_MAX_MEMBERS} frames")


_BITE = 128  # bytes of zstd that are unpacked at a time: the library takes no limit, and they become 4 MB at most
_WINDOW = 8 * 1024 * 1024

_DECODERS: dict[bytes, Callable[[bytes], Iterator[bytes]]] = {
    b"gzip": _inflate(_GZIP),
    b"x-gzip": _inflate(_GZIP),
    b"deflate": _inflate(_ZLIB),
    b"br": _brotli,
    b"zstd": _zstd,
}
ENCODINGS = tuple(name.decode() for name in _DECODERS if not name.startswith(b"x-"))
"""Accepted values of Content-Encoding."""


# One request in JSON

MEMBERS = ("event_type", "identifier", "from_id", "from_date", "to_id", "to_date", "payload")
_OPTIONAL_TEXTS = frozenset({"from_id", "from_date", "to_id", "to_date"})
_KNOWN = frozenset(MEMBERS)


class RequestBody(msgspec.Struct, frozen=True):
    """The members of a request, well-formed but not yet checked against an event type."""

    event_type: str
    identifier: dict[str, Any]
    from_id: str | None
    from_date: str | None
    to_id: str | None
    to_date: str | None
    payload: Any


def parse_request(body: bytes) -> RequestBody:
    """Parse the request in a body; MalformedRequest says what is wrong with its form."""
    return read_request(loads(body))


def read_request(members: Any, more: Sequence[str] = ()) -> RequestBody:
    """Read the request in decoded JSON; `more` are members that the caller reads itself.

    MalformedRequest says what is wrong with its form.
    """
    if not isinstance(members, dict):
        raise _wrong_shape("the body must be a JSON object")
    if not members.keys() <= _KNOWN and (unknown := members.keys() - _KNOWN - set(more)):
        allowed = ", ".join((*MEMBERS, *more))
        raise MalformedRequest(
            "UNKNOWN_FIELD", f"Unknown field '{min(unknown)}' in request body; allowed fields: {allowed}"
        )
    event_type, identifier = members.get("event_type"), members.get("identifier")
    if not isinstance(event_type, str):
        raise _wrong_shape("'event_type' must be present and a string")
    if not isinstance(identifier, dict):
        raise _wrong_shape("'identifier' must be present and an object")
    for name in () if _OPTIONAL_TEXTS.isdisjoint(members) else MEMBERS:
        if name in _OPTIONAL_TEXTS and not isinstance(members.get(name), str | None):
            example = '"42"' if name.endswith("_id") else '"2025-01-15T10:00:00Z"'
            raise _wrong_shape(f"'{name}' must be a string, such as {example}, or null")
    return RequestBody(event_type, identifier, *map(members.get, MEMBERS[2:]))


def check_publishable(request: RequestBody) -> None:
    """Refuse members that only readers may send."""
    if "point" in request.identifier:
        raise InvalidRequest("identifier.point is only supported for watch and replay, not for notify", field="point")
    if request.to_id is not None or request.to_date is not None:
        raise InvalidRequest("to_id and to_date are only supported for the replay endpoint, not /notification")


def _wrong_shape(reason: str) -> MalformedRequest:
    return MalformedRequest("INVALID_REQUEST_SHAPE", f"Invalid request body: {reason}")


# Many notifications in JSON

LINE_TYPES = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")
"""The media types of a body with one notification per line; anything else is an array."""

MAX_VALUES = 1_000_000
"""Members and items, in all notifications of a batch together; each becomes an object in memory."""

_DECODED_AT_ONCE = 256  # notifications that are decoded in one go
_BETWEEN_OBJECTS = re.compile(rb"\}[ \t\r\n]*+,[ \t\r\n]*+(?=\{)")
_BLANKS = b" \t\r\n"
_texts = msgspec.json.Decoder(list[msgspec.Raw]).decode


class BatchBody:
    """The notifications of a batch as texts, decoded a run at a time."""

    def __init__(self, texts: list[bytes | RequestError], size: int, by_line: bool) -> None:
        self.size = size
        """How many there are; the texts are missing if that is over the limit."""
        self._texts = texts
        self._by_line = by_line

    def runs(self) -> Iterator[list[Any]]:
        """Decode the notifications in order, a run at a time; one that cannot be read becomes the error."""
        some: list[bytes | RequestError] = []
        size = 0
        for text in self._texts:
            some.append(text)
            size += len(text) if isinstance(text, bytes) else 0
            if size >= _SLICE or len(some) == _DECODED_AT_ONCE:
                yield self._decoded(some)
                some, size = [], 0
        if some:
            yield self._decoded(some)

    def _decoded(self, texts: Sequence[bytes | RequestError]) -> list[Any]:
        if self._by_line:
            return [decode_one(text) if isinstance(text, bytes) else text for text in texts]
        plain = [text for text in texts if isinstance(text, bytes)]
        try:
            values = orjson.loads(b"[%b]" % b",".join(plain))
        except ValueError as error:
            raise _invalid_json(str(error)) from None
        if len(plain) == len(texts):
            return list(values)
        left = iter(values)
        return [next(left) if isinstance(text, bytes) else text for text in texts]


async def read_batch(content_type: bytes, body: bytes, most: int, longest: int) -> BatchBody:
    """Cut a body into up to `most` notifications of up to `longest` bytes each.

    MalformedRequest if the body is no array and no lines were announced, HttpError if it holds too many values.
    """
    media_type = content_type.partition(b";")[0].strip().lower().decode("latin-1")
    by_line = media_type in LINE_TYPES
    if len(body) <= _SLICE:
        return _cut(body, by_line, most, longest)
    return await asyncio.to_thread(_cut, body, by_line, most, longest)


def _cut(body: bytes, by_line: bool, most: int, longest: int) -> BatchBody:
    texts: list[bytes | RequestError] = []
    size = values = 0
    for some in (_lines if by_line else _items)(body):
        size += len(some)
        if size > most:
            texts.clear()
            continue
        for text in some:
            values += most_values(text)
            if values > MAX_VALUES:
                raise HttpError(413, f"The batch holds more values than the limit of {MAX_VALUES}")
            texts.append(_fault(text, by_line, longest) or text)
    return BatchBody(texts, size, by_line)


def _fault(text: bytes, by_line: bool, longest: int) -> RequestError | None:
    """Return why a notification is refused before it is decoded."""
    if len(text) > longest:
        return InvalidRequest(f"The notification holds {len(text)} bytes; the limit is {longest}")
    if not by_line and deeper_than(text, MAX_DEPTH):  # an identifier does not nest, so it is the payload
        return InvalidRequest(f"Field 'payload' nests deeper than {MAX_PAYLOAD_DEPTH} levels", field="payload")
    return None


def _lines(body: bytes) -> Iterator[list[bytes]]:
    at = 0
    while at < len(body):
        end = body.find(b"\n", min(at + _SLICE, len(body)))
        end = len(body) if end < 0 else end
        yield [line for line in body[at:end].split(b"\n") if line and not line.isspace()]
        at = end + 1


def _items(body: bytes) -> Iterator[list[bytes]]:
    """Yield the texts of the items of an array, slice by slice.

    A slice ends at a comma that may be one between two items. It is one if what comes before it is a list of complete
    texts; if not, the slice is too short and grows to twice its length.
    """
    first, end = _inside(body)
    start: int | None = first
    while start is not None:
        size, found = _SLICE, None
        while found is None:
            found = _slice(body, start, end, size)
            size *= 2
        some, following = found
        if not some and start != first:
            raise _invalid_json("nothing follows the last comma")
        yield some
        start = following


def _slice(body: bytes, start: int, end: int, size: int) -> tuple[list[bytes], int | None] | None:
    """Return the texts in about `size` bytes and where the next begin; None if no item ends there."""
    if start + size >= end:
        return _texts_of(body[start:end], start), None
    commas: list[tuple[int, int]] = []
    if (between := _BETWEEN_OBJECTS.search(body, start + size, end)) is not None:
        commas.append((between.start() + 1, between.end()))
    if (comma := body.find(b",", start + size, end)) >= 0:
        commas.append((comma, comma + 1))
    for stop, following in commas:
        try:
            return _texts_of(body[start:stop], start), following
        except MalformedRequest:
            continue
    return None


def _texts_of(items: bytes, start: int) -> list[bytes]:
    try:
        return [bytes(text) for text in _texts(b"[%b]" % items)]
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid_json(f"{error}, counted from byte {start - 1}" if start > 1 else str(error)) from None


def _inside(body: bytes) -> tuple[int, int]:
    """Return where the items of an array begin and end."""
    start, end = len(body) - len(body.lstrip(_BLANKS)), len(body.rstrip(_BLANKS))
    if body[start : start + 1] == b"[" and body[end - 1 : end] == b"]" and start < end - 1:
        return start + 1, end - 1
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid_json(str(error)) from None
    raise MalformedRequest(
        "INVALID_REQUEST_SHAPE",
        "Invalid request body: it must be a JSON array of notifications, or one per line with the Content-Type "
        f"{LINE_TYPES[0]}",
    )


def _invalid_json(details: str) -> MalformedRequest:
    return MalformedRequest("INVALID_JSON", "Invalid JSON in request body", details)


def decode_one(text: bytes) -> Any | RequestError:
    """Decode one notification; one that cannot be read becomes the error."""
    try:
        return loads(text)
    except MalformedRequest as error:
        return error.with_traceback(None)  # which leads to all lines, and would keep them
