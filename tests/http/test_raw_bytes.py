"""Bytes that no client would send: never a 5xx, always a request id, and the server is well afterwards."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import socket
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import brotli
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness import Server
from tests.harness.patience import PATIENCE
from tests.http.configurations import EVERY_FIELD_TYPE

UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PATHS = ["/api/v1/notification", "/api/v1/watch", "/api/v1/replay", "/api/v1/admin/wipe/stream"]
LIMIT = 262_144
CLOUD = {"event_type": "cloud", "identifier": {"network": "x", "point_cloud": [[1, 1]]}}
SQUARE = "(0,0,0,2,2,2,2,0,0,0)"
VALID: list[Any] = [
    CLOUD,
    {"event_type": "area", "identifier": {"clock": "12", "polygon": SQUARE}, "payload": {"a": [1, None, "é"]}},
    {"event_type": "area", "identifier": {"point": "1,1"}, "from_id": "1", "to_id": "5"},
    {
        "event_type": "everything",
        "identifier": {"text": "x", "word": {"in": ["red"]}, "whole": {"between": [10, 20]}},
        "from_date": "2025-01-15T10:00:00Z",
    },
    {"stream_name": "cloud"},
]
PIECES = [b"\0", b"[", b"{", b'"', b"\\", b"1e999", b"\xff", b",", b"\xef\xbb\xbf"]
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}

bounded = settings(
    max_examples=300,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
paths = st.sampled_from(PATHS)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8) | st.just("\ud800")
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
)
requests = st.fixed_dictionaries(
    {"event_type": st.sampled_from(["everything", "area", "cloud", "météo / 2"]) | anything},
    optional={
        "identifier": anything
        | st.dictionaries(
            st.sampled_from(["text", "day", "clock", "word", "whole", "number", "polygon", "point", "point_cloud"]),
            anything | st.dictionaries(st.sampled_from(["eq", "in", "gt", "between"]), anything, max_size=2),
        ),
        "payload": anything,
        "from_id": anything,
        "from_date": anything,
        "to_id": anything,
        "to_date": anything,
        "stream_name": anything,
    },
)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(EVERY_FIELD_TYPE, tmp_path_factory.mktemp("server")) as running:
        pid = running.pid
        yield running
        assert running.client.get("/health").json() == {"status": "ok"}
        assert running.client.get("/ready").status == 200
        running.client.publish("cloud", CLOUD["identifier"])  # type: ignore[arg-type]  # a mapping, seen as an object
        assert running.pid == pid
        assert "Traceback" not in running.stdout + running.stderr


def send(server: Server, raw: bytes) -> Answer:
    """Send bytes as they are and read the head of the answer."""
    with socket.create_connection((server.host, server.port), timeout=PATIENCE) as connection:
        connection.sendall(raw)
        head = b""
        while b"\r\n\r\n" not in head:
            received = connection.recv(65536)
            assert received, f"no answer to {raw[:200]!r}"
            head = (head + received).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    status, *fields = head.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    pairs = (field.partition(":") for field in fields)
    return Answer(int(status.split(" ")[1]), {name.lower(): value.strip() for name, _, value in pairs})


def post(server: Server, path: str, body: bytes, *headers: tuple[str, str]) -> Answer:
    """Send a body with headers as they are; wipes are DELETE requests and need a type."""
    method = "DELETE" if "admin" in path else "POST"
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (("Content-Type", "application/json"), *headers)]
    return send(server, "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)


def holds(answer: Answer) -> None:
    """The promise about every answer."""
    assert answer.status < 500
    assert UUID.fullmatch(answer.headers.get("x-request-id", ""))


@bounded
@given(path=paths, body=st.binary(max_size=300))
def test_any_bytes_as_a_body(server: Server, path: str, body: bytes) -> None:
    answer = post(server, path, body)
    holds(answer)
    assert answer.status == 400


@bounded
@given(path=paths, value=anything | requests)
def test_any_json_as_a_body(server: Server, path: str, value: Any) -> None:
    holds(post(server, path, json.dumps(value).encode()))


@bounded
@given(path=paths, value=requests)
def test_any_json_in_other_notations(server: Server, path: str, value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=1)
    for encoding in ("utf-8", "utf-16", "utf-8-sig"):
        holds(post(server, path, text.encode(encoding, "surrogatepass")))


@bounded
@given(path=paths, request=st.sampled_from(VALID), data=st.data())
def test_mutated_requests(server: Server, path: str, request: Any, data: st.DataObject) -> None:
    body = bytearray(json.dumps(request).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(body)))
        match data.draw(st.sampled_from(["replace", "insert", "cut", "repeat", "end"])):
            case "replace":
                body[place : place + 1] = data.draw(st.binary(min_size=1, max_size=1))
            case "insert":
                body[place:place] = data.draw(
                    st.sampled_from([b"\0", b"[", b"{", b'"', b"\\", b"1e999", b"\xff", b","])
                )
            case "cut":
                del body[place : place + data.draw(st.integers(1, 9))]
            case "repeat":
                body[place:place] = body[place : place + 40]
            case "end":
                del body[place:]
    holds(post(server, path, bytes(body)))


@bounded
@given(
    path=paths,
    request=st.sampled_from(VALID),
    encoding=st.sampled_from([*COMPRESS, "GZIP", "x-gzip", "identity", "gzip, br", "", "*", "é", "zstd;q=1"]),
    compressed_as=st.sampled_from([*COMPRESS]),
    damage=st.sampled_from(["none", "cut", "flip", "more", "twice"]),
    place=st.integers(0, 200),
)
def test_compressed_and_damaged_bodies(
    server: Server, path: str, request: Any, encoding: str, compressed_as: str, damage: str, place: int
) -> None:
    body = COMPRESS[compressed_as](json.dumps(request).encode())
    place %= len(body)
    damaged = {
        "none": body,
        "cut": body[:place],
        "flip": body[:place] + bytes([body[place] ^ 0xFF]) + body[place + 1 :],
        "more": body + b"more",
        "twice": body + body,
    }[damage]
    holds(post(server, path, damaged, ("Content-Encoding", encoding)))


@pytest.mark.parametrize("encoding", COMPRESS)
@pytest.mark.parametrize("path", PATHS)
def test_small_bodies_that_unfold_to_large_ones_are_refused(server: Server, path: str, encoding: str) -> None:
    bomb = COMPRESS[encoding](b" " * (64 << 20))
    assert len(bomb) < LIMIT
    answer = post(server, path, bomb, ("Content-Encoding", encoding))
    holds(answer)
    assert answer.status == 413
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_compressed_in_parts_is_read_whole_and_nothing_may_follow_it(server: Server, encoding: str) -> None:
    body, compress = json.dumps(VALID[0]).encode(), COMPRESS[encoding]
    header = ("Content-Encoding", encoding)
    assert post(server, "/api/v1/notification", compress(body[:20]) + compress(body[20:]), header).status == 200
    for after in (b"more", compress(b"")[:-1], compress(b"") * 64):
        refused = post(server, "/api/v1/notification", compress(body) + after, header)
        assert (refused.status, refused.headers["content-type"]) == (400, "text/plain; charset=utf-8")


tokens = st.text("abcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~", min_size=1, max_size=20)
header_values = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=60)
framing = {"content-length", "transfer-encoding", "connection", "upgrade", "expect"}


@bounded
@given(
    path=paths,
    headers=st.lists(
        st.tuples(
            tokens.filter(lambda name: name not in framing)
            | st.sampled_from(["Authorization", "X-Request-ID", "Content-Type", "Accept", "Cookie", "Last-Event-ID"]),
            header_values,
        ),
        max_size=5,
    ),
)
def test_any_headers(server: Server, path: str, headers: list[tuple[str, str]]) -> None:
    answer = post(server, path, json.dumps(CLOUD).encode(), *headers)
    holds(answer)
    assert answer.headers["x-request-id"] not in dict(headers).values()


BODY = json.dumps(CLOUD).encode()
LENGTH = len(BODY)
CHUNK = b"%x\r\n%b\r\n" % (LENGTH, BODY)
FRAMINGS: dict[str, tuple[list[str], bytes, int]] = {
    "zeros before the length": ([f"Content-Length: 000{LENGTH}"], BODY, 200),
    "blanks around the length": ([f"Content-Length:  {LENGTH}  "], BODY, 200),
    "the length twice": ([f"Content-Length: {LENGTH}"] * 2, BODY, 400),
    "a plus": ([f"Content-Length: +{LENGTH}"], BODY, 400),
    "a minus": ([f"Content-Length: -{LENGTH}"], BODY, 400),
    "hexadecimal": ([f"Content-Length: 0x{LENGTH:x}"], BODY, 400),
    "too large to be true": (["Content-Length: 9223372036854775807"], b"", 413),
    "too large for a number": ([f"Content-Length: {10**30}"], b"", 400),
    "no length": ([], b"", 400),
    "chunks": (["Transfer-Encoding: chunked"], CHUNK + b"0\r\n\r\n", 200),
    "chunks with extensions and a trailer": (
        ["Transfer-Encoding: chunked"],
        CHUNK.replace(b"\r\n", b";a=b\r\n", 1) + b"0\r\nX: y\r\n\r\n",
        200,
    ),
    "one byte in each chunk": (
        ["Transfer-Encoding: chunked"],
        b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n",
        200,
    ),
    "chunks and a length": ([f"Content-Length: {LENGTH}", "Transfer-Encoding: chunked"], CHUNK + b"0\r\n\r\n", 400),
    "a chunk of no size": (["Transfer-Encoding: chunked"], b"zz\r\n" + BODY, 400),
    "chunks without an end": (["Transfer-Encoding: chunked"], (b"10000\r\n" + b" " * 65536 + b"\r\n") * 5, 413),
    "an offer of HTTP/2": ([f"Content-Length: {LENGTH}", "Connection: Upgrade", "Upgrade: h2c"], BODY, 200),
    "expects to be asked": ([f"Content-Length: {LENGTH}", "Expect: 100-continue"], BODY, 200),
}


@pytest.mark.parametrize("name", FRAMINGS)
def test_forms_of_framing(server: Server, name: str) -> None:
    headers, body, expected = FRAMINGS[name]
    lines = ["POST /api/v1/notification HTTP/1.1", "Host: x", *headers]
    answer = send(server, "\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    holds(answer)
    assert answer.status == expected


@pytest.mark.parametrize(
    "line",
    [
        b"GET /api/v1/schema/%zz%ff%00 HTTP/1.1",
        b"GET /api/v1/schema/%E9%2f..%2f HTTP/1.1",
        b"GET /static/%ff%00/../../etc/passwd HTTP/1.1",
        b"GET /static/" + b"a" * 5000 + b" HTTP/1.1",
        b"GET /swagger-ui/%f0%9f%98%80 HTTP/1.1",
        b"DELETE /api/v1/admin/notification/%ff@1 HTTP/1.1",
        b"DELETE /api/v1/admin/notification/@@@@ HTTP/1.1",
        b"DELETE /api/v1/admin/notification/cloud@" + b"9" * 5000 + b" HTTP/1.1",
        b"GET /?%ff=%00&x HTTP/1.1",
        b"GET //health HTTP/1.1",
        b"GET http://elsewhere/health HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"PURGE /health HTTP/1.1",
        b"GET /health HTTP/1.0",
        b"GET /health HTTP/9.9",
        b"GET /health HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x",
        b"GET /health HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",
        "GET /api/v1/schema/é HTTP/1.1".encode(),
        b"GET /" + b"a" * 70000 + b" HTTP/1.1",
        b"nonsense",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=lambda line: line[:40].decode("latin-1"),
)
def test_odd_request_lines(server: Server, line: bytes) -> None:
    holds(send(server, line + b"\r\nHost: x\r\n\r\n"))


ENDLESS = {
    "one header": b"GET /health HTTP/1.1\r\nX: ",
    "many headers": b"GET /health HTTP/1.1\r\n",
    "an address": b"GET /",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_heads_without_an_end_are_refused(server: Server, name: str) -> None:
    more = b"x-more: 01234567\r\n" * 56 if name == "many headers" else b"x" * 1000
    with socket.create_connection((server.host, server.port), timeout=PATIENCE) as connection:
        connection.sendall(ENDLESS[name])
        for _ in range(129):  # kilobytes: not too much yet
            connection.sendall(more)
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(20)
        connection.sendall(more * 4)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 431
        assert UUID.fullmatch(answer.headers["x-request-id"])
        assert b"131072" in answer.read()
        assert connection.recv(1) == b"", "the connection is closed"


def test_connection_goes_on_after_an_offer_of_another_protocol(server: Server) -> None:
    offer = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nContent-Length: {LENGTH}\r\n\r\n"
    request = b"POST /api/v1/notification HTTP/1.1\r\nHost: x\r\n" + offer.encode() + BODY
    with socket.create_connection((server.host, server.port), timeout=PATIENCE) as connection:
        for _ in range(3):
            connection.sendall(request)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            assert answer.status == 200
            assert json.loads(answer.read())["status"] == "success"
