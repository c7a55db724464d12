"""Readers of outside text: each target takes any bytes and fails for anything but a value or a refusal.

`test_fuzz.py` runs them on the kept corpus and on what Hypothesis makes up; `make fuzz` lets atheris look for more.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import nats.errors
import shapely
import uvicorn
from uvicorn.server import ServerState

from aviso_server.commands.notifications import frames
from aviso_server.config.settings import Auth, Limits, Secret, Settings
from aviso_server.counters import RequestTally
from aviso_server.errors import InvalidRequest, RequestError
from aviso_server.http.app import App
from aviso_server.http.connection import limited_connection
from aviso_server.http.limits import RequestLimits
from aviso_server.http.request import ENCODINGS, LINE_TYPES, parse_request, read_batch, read_body
from aviso_server.http.response import HttpError
from aviso_server.http.routes import ROUTES
from aviso_server.log.jetstream.client import Parser
from aviso_server.log.jetstream.wire import identify_by, notification_of
from aviso_server.log.memory import MemoryLog
from aviso_server.model import shapes, topic
from aviso_server.model.event_type import Catalogue, build_event_type, read_point
from aviso_server.model.fields import SpatialField
from aviso_server.model.filter import View
from aviso_server.model.json_text import compact, deeper_than, loads
from aviso_server.model.notification import Notification
from aviso_server.model.times import parse_instant, parse_sequence, read_end, read_start
from aviso_server.server.wiring import make_service

__all__ = ["TARGETS"]

_FIELDS: dict[str, dict[str, Any]] = {
    "text": {"type": "StringHandler", "max_length": 40},
    "word": {"type": "EnumHandler", "values": ["North", "1", "true", "*"]},
    "version": {"type": "ExpverHandler", "default": "1"},
    "day": {"type": "DateHandler"},
    "dashed": {"type": "DateHandler", "canonical_format": "%Y-%m-%d"},
    "hour": {"type": "TimeHandler"},
    "step": {"type": "IntHandler", "range": [-10, 100_000]},
    "whole": {"type": "IntHandler"},
    "level": {"type": "FloatHandler", "range": [-1.5, 1e9]},
    "real": {"type": "FloatHandler"},
}
_SHAPES: dict[str, dict[str, Any]] = {
    "polygon": {"type": "PolygonHandler"},
    "point_cloud": {"type": "PointCloudHandler", "max_points": 50},
}


def _types() -> Catalogue:
    found = {}
    for name, fields in (
        ("plain", _FIELDS),
        ("area", {"text": _FIELDS["text"], "polygon": _SHAPES["polygon"]}),
        ("cloud", {"text": _FIELDS["text"], "point_cloud": _SHAPES["point_cloud"]}),
    ):
        identifier = {key: {**field, "required": False} for key, field in fields.items()}
        built, problems = build_event_type(name, {"identifier": identifier})
        assert built is not None, problems
        found[name] = built
    return Catalogue(found, strict=False)


_CATALOGUE = _types()
_ALL = {name: field for each in _CATALOGUE.event_types.values() for name, field in each.fields.items()}
_IDENTIFY = identify_by({name: each.key_order for name, each in _CATALOGUE.event_types.items()})


def _value(data: bytes) -> Any:
    """JSON if it is any, else text."""
    try:
        return loads(data)
    except RequestError:
        return data.decode("utf-8", "replace")


def json_body(data: bytes) -> None:
    """What is read is written and read back as the same."""
    with suppress(RequestError):
        value = loads(data)
        assert not deeper_than(compact(value), 127)
        assert loads(compact(value)) == value


def request_body(data: bytes) -> None:
    with suppress(RequestError):
        request = parse_request(data)
        kind = _CATALOGUE.find(request.event_type)
        read_end(read_start(request.from_id, request.from_date), request.to_id, request.to_date)
        with suppress(InvalidRequest):
            kind.check(request.identifier, request.payload)
        kind.compile(request.identifier, "replay", read_point(request.identifier))


def field_values(data: bytes) -> None:
    """A canonical value is its own canonical value."""
    value = _value(data)
    for name, field in _ALL.items():
        with suppress(InvalidRequest):
            if isinstance(field, SpatialField):
                stored, _ = field.locate(name, value, 100)
                assert field.locate(name, loads(stored), 100)[0] == stored
            else:
                text = field.accept(name, value)
                assert field.accept(name, text) == text
        with suppress(InvalidRequest):
            if isinstance(value, dict):
                field.constraint(name, value)


def identifiers(data: bytes) -> None:
    """One by one and many at once agree."""
    value = _value(data)
    for kind in (*_CATALOGUE.event_types.values(), _CATALOGUE.find("unknown")):
        if not isinstance(value, dict):
            return
        with suppress(InvalidRequest):
            kind.compile(value, "watch", read_point(value), lenient=True)
        try:
            draft = kind.check(value)
        except InvalidRequest:
            assert not kind.check_all([value], [None])
        else:
            assert kind.check_all([value], [None]) in (None, [draft])


def geometry(data: bytes) -> None:
    """A polygon survives every form it can be written in."""
    value = _value(data)
    with suppress(shapes.ShapeError):
        polygon = shapes.polygon_of(value if isinstance(value, list) else data.decode("utf-8", "replace"))
        assert shapes.parse_polygon(shapes.polygon_text(polygon)) == polygon
        assert shapes.polygon_of(shapes.polygon_json(polygon).decode()) == polygon
        lons, lats = shapely.get_coordinates(shapely.from_wkb(shapes.wkb(polygon))).T.tolist()
        assert (tuple(lats), tuple(lons)) == (polygon.lats, polygon.lons)
    with suppress(shapes.ShapeError):
        shapes.point_of(value if isinstance(value, list) else data.decode("utf-8", "replace"))
    with suppress(shapes.ShapeError):
        shapes.wkb(shapes.parse_point_cloud(value))
    shapes.payload_polygon({"spatial_geometry": value})
    identifier = compact({"point_cloud": value, "polygon": value})
    shapes.geometry_problem(identifier)
    shapes.with_text(shapes.with_array(identifier))


def times(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for parse in (parse_instant, parse_sequence):
        with suppress(InvalidRequest):
            assert isinstance(parse("from", text), int)


def topics(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    assert topic.decode(topic.encode(text)) == text
    topic.display(text)
    with suppress(ValueError):
        tokens = topic.parse(text)
        assert topic.parse(topic.build(tokens)) == tokens


def event_stream(data: bytes) -> None:
    """Where a stream is cut does not matter."""
    whole = list(frames([data]))
    middle = len(data) // 2
    assert list(frames([data[:middle], data[middle:]])) == whole
    assert list(frames([data[place : place + 1] for place in range(len(data))])) == whole


def jetstream_message(data: bytes) -> None:
    """A message of anybody is a notification that filters can look at."""
    subject, _, rest = data.partition(b"\n")
    head, _, body = rest.partition(b"\n\n")
    headers = b"NATS/1.0\r\n" + head.replace(b"\n", b"\r\n") + b"\r\n\r\n"
    found = notification_of(1, 1, subject, headers, body, _IDENTIFY)
    with suppress(ValueError):  # JSON that is none: the log says so to whoever reads it
        _ = View(found).shape


def broker_protocol(data: bytes) -> None:
    """What a broker sends is understood in whatever pieces it arrives, or the connection ends."""
    middle = len(data) // 2
    whole = _follow([data])
    assert _follow([data[:middle], data[middle:]]) == whole
    assert _follow([data[place : place + 1] for place in range(len(data))]) == whole


def _follow(pieces: Sequence[bytes]) -> tuple[list[tuple[int, Notification]], list[bytes], bool]:
    delivered: list[tuple[int, Notification]] = []
    others: list[bytes] = []

    async def follow() -> bool:
        parser = Parser(_Nobody())
        parser.consumers[b"7"] = (lambda number, one: delivered.append((number, one)), _IDENTIFY)
        parser.handlers[b"7"] = parser.handlers[b"8"] = lambda subject, reply, headers, body: others.append(body)
        with suppress(nats.errors.ProtocolError):
            for piece in pieces:
                await parser.parse(piece)
            return True
        return False

    return delivered, others, _run(follow())


class _Nobody:
    """A client of the broker that does nothing with what it hears."""

    def __init__(self) -> None:
        self._server_info: dict[str, Any] = {}

    async def _process_msg(self, *_: Any) -> None: ...

    _process_pong = _process_ping = _process_err = _process_info = _process_msg


def packed_body(data: bytes) -> None:
    """A body, packed as its first byte says, is no larger than allowed, or refused."""
    encoding = ENCODINGS[data[0] % len(ENCODINGS)].encode() if data else b"gzip"
    messages = [{"body": data[1:]}]

    async def receive() -> Any:
        return messages.pop()

    with suppress(HttpError):
        assert len(_run(read_body([(b"content-encoding", encoding)], receive, 200_000))) <= 200_000


def batch_body(data: bytes) -> None:
    """A batch, cut into notifications and decoded by runs, is what it is when decoded at once."""
    try:
        whole = loads(data)
    except RequestError:
        whole = None
    with suppress(RequestError, HttpError):
        found = [each for run in _run(read_batch(b"", data, 1000, 100_000)).runs() for each in run]
        assert found == whole or any(isinstance(each, RequestError) for each in found) or len(found) > 1000
    with suppress(RequestError, HttpError):
        for _ in _run(read_batch(LINE_TYPES[0].encode(), data, 1000, 100_000)).runs():
            pass


def request(data: bytes) -> None:
    """Whatever is asked of the application, it has an answer, and that is not that it failed.

    The first line is method, path and query, then come headers, an empty line and the body.
    """
    head, _, body = data.partition(b"\n\n")
    line, *lines = head.split(b"\n")
    method, _, target = line.decode("latin-1").partition(" ")
    path, _, query = target.partition("?")
    headers = [(name.strip().lower(), value.strip()) for name, _, value in (each.partition(b":") for each in lines)]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode("latin-1"),
        "query_string": query.encode("latin-1"),
        "headers": headers,
        "client": ("127.0.0.1", 1),
    }
    for application in _applications():
        answers: list[Any] = []
        messages = [{"type": "http.request", "body": body}]

        async def receive(messages: list[Any] = messages) -> Any:
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Any, answers: list[Any] = answers) -> None:
            answers.append(message)

        _run(application(scope, receive, send))
        assert not answers or answers[0]["status"] < 500, answers


def http_connection(data: bytes) -> None:
    """Requests are answered in their order, however their bytes are cut; nothing else is raised or kept."""
    middle = len(data) // 2
    whole = _exchange([data])
    assert _exchange([data[:middle], data[middle:]]) == whole
    if len(data) < 400:
        assert _exchange([data[place : place + 1] for place in range(len(data))]) == whole


def _exchange(reads: Sequence[bytes]) -> list[bytes]:
    """The answers of the application, in their order."""
    transport = _Transport()

    async def exchange() -> None:
        state = ServerState()
        connection = _connections()(_uvicorn_config(), state, {})
        connection.connection_made(transport)
        for each in reads:
            if transport.is_closing():
                break
            connection.data_received(each)
            await asyncio.sleep(0)
        for _ in range(40):
            await asyncio.sleep(0)
        connection.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not state.tasks
        assert not state.connections

    _run(exchange())
    return _ANSWER.findall(transport.written)


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    text = b"<%b %b %b>" % (scope["method"].encode(), scope["raw_path"], body.hex().encode())
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
    await send({"type": "http.response.body", "body": text, "more_body": False})


_ANSWER = re.compile(rb"<[^<>]*>\Z|<[^<>]*>(?=HTTP/1)")


class _Transport(asyncio.Transport):
    """The server's end of a connection to a client that reads everything."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = b""
        self.abort = self.close  # type: ignore[method-assign]  # nothing waits to be written
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._closed, "uvloop would raise here"
        self.written += data

    def close(self) -> None:
        self._closed = True

    def is_closing(self) -> bool:
        return self._closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # reports of single messages that mean nothing
    return loop


def _run(coroutine: Any) -> Any:
    return _loop().run_until_complete(coroutine)


@cache
def _connections() -> Any:
    return limited_connection(RequestLimits(Limits()), RequestTally())


@cache
def _uvicorn_config() -> uvicorn.Config:
    return uvicorn.Config(_echo, lifespan="off", ws="none", log_config=None, access_log=False)


@cache
def _applications() -> list[App]:
    """One without and one with authentication, each with a log that forgets."""
    return [_run(_application(auth)) for auth in (False, True)]


async def _application(auth: bool) -> App:
    settings = Settings(
        event_types=tuple(_CATALOGUE.event_types.values()),
        auth=Auth(enabled=auth, mode="trusted_proxy", jwt_secret=Secret("0123456789abcdef" * 4)),
        limits=Limits(requests_per_second=10**9, trusted_proxies=("127.0.0.1",)),
    )
    service = make_service(settings, MemoryLog(10, 10))
    await service.log.open()
    return App(service, ROUTES)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        json_body,
        request_body,
        field_values,
        identifiers,
        geometry,
        times,
        topics,
        event_stream,
        jetstream_message,
        broker_protocol,
        packed_body,
        batch_body,
        request,
        http_connection,
    )
}
