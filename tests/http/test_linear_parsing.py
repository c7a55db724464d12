"""No text that a client sends takes longer than in proportion to its length: four times as long, four times the time.

Requests go to the application itself, in this process and without a socket, so that what is timed is what would hold
the event loop. Every place of a request that can carry a text is filled with texts that make backtracking patterns and
careless loops take the square of their length.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from time import process_time
from typing import Any
from urllib.parse import quote

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from aviso_server.config.settings import Auth, Deployment, Limits, Secret, Settings
from aviso_server.diagnostics.otlp import Traces
from aviso_server.http.app import App
from aviso_server.http.routes import ROUTES
from aviso_server.log.base import Log
from aviso_server.log.memory import MemoryLog
from aviso_server.model.event_type import EventType
from aviso_server.model.fields import FIELD_TYPES
from aviso_server.server.wiring import make_service

SIZE = 16_384  # characters: what takes the square of it takes a second or more
QUICK = 0.1  # seconds of processor time: what takes less need not be compared
MOST = 9  # times as long for a text four times as long; the square would be 16
RUNS = 3

AROUND = (("", ""), ("", "x"), ("1", "x"), ("+", "x"), ("2025-01-01T00:00:00.", "x"), ('a/b;q="', "x"))
UNITS = (
    *("0", "1", "1.", "1e", "a", " ", "\t", ",", "1,", "1,1 ", "(", "[", "[1,1],", '"', "\\", '\\"', "%", "%4", "%41"),
    *("@", ";", "; q=", ";a=", "a,", "-", "+", "/", "a b", "://", "&", "a=b&", "é", "{", '{"a":', "*", "."),
)
TEXTS = [(prefix, unit, suffix) for unit in UNITS for prefix, suffix in AROUND]

MORE: dict[str, dict[str, Any]] = {"EnumHandler": {"values": ("red", "blue")}}
FIELDS = {
    name: field_type(required=False, **MORE.get(name, {}))
    for name, field_type in FIELD_TYPES.items()
    if name not in ("PolygonHandler", "PointCloudHandler")
}
PLAIN = EventType(name="plain", base="plain", fields=FIELDS, key_order=tuple(FIELDS))
AREA = EventType(
    name="area", base="area", fields={"polygon": FIELD_TYPES["PolygonHandler"](required=True)}, key_order=()
)
CLOUD = EventType(
    name="cloud", base="cloud", fields={"point_cloud": FIELD_TYPES["PointCloudHandler"](required=True)}, key_order=()
)
WHERE = {"PolygonHandler": ("area", "polygon"), "PointCloudHandler": ("cloud", "point_cloud")}

SAMPLES = {each.name: {name: field.sample() for name, field in each.fields.items()} for each in (PLAIN, AREA, CLOUD)}

Request = tuple[str, str, bytes, dict[str, str], bytes]  # method, path, query, headers, body
Place = Callable[[str], Request]


def post(route: str, members: Any, **headers: str) -> Request:
    return "POST", f"/api/v1/{route}", b"", headers, json.dumps(members).encode()


def asking(event_type: str, identifier: Any, **members: Any) -> dict[str, Any]:
    return {"event_type": event_type, "identifier": identifier, **members}


def a_field(route: str, event_type: str, key: str) -> Place:
    others = SAMPLES[event_type] if route == "notification" else {}
    return lambda text: post(route, asking(event_type, {**others, key: text}, from_id="1"))


def an_operand(event_type: str, key: str, operator: str) -> Place:
    return lambda text: post(
        "replay", asking(event_type, {key: {operator: text if operator == "eq" else [text, text]}}, from_id="1")
    )


def a_bound(name: str) -> Place:
    start = {} if name.startswith("from") else {"from_id": "1"}
    return lambda text: post("replay", asking("plain", {}, **start, **{name: text}))


def a_raw_body(route: str, before: bytes, **headers: str) -> Place:
    return lambda text: ("POST", f"/api/v1/{route}", b"", headers, before + text.encode())


def a_path(before: str, written: Callable[[str], str]) -> Place:
    return lambda text: ("DELETE" if "admin" in before else "GET", before + written(text), b"", {}, b"")


def a_query(route: str, before: bytes) -> Place:
    method = "GET" if "insight" in route else "POST"
    return lambda text: (method, f"/api/v1/{route}", before + text.encode(), {}, b"[]")


def a_header(route: str, members: Any, name: str, before: str = "") -> Place:
    return lambda text: post(route, members, **{name: before + text})


def a_subscription(member: str) -> Place:
    others = {
        "name": "a",
        "event_type": "plain",
        "identifier": {},
        **({"delivery": "push"} if member == "sink" else {}),
    }
    return lambda text: post("subscriptions", {**others, member: text})


def a_wipe(name: str, before: str = "") -> Place:
    return lambda text: ("DELETE", "/api/v1/admin/wipe/stream", b"", {name: before + text}, b'{"stream_name":"a"}')


HEADERS = (
    *("accept", "authorization", "connection", "content-encoding", "content-length", "content-type", "host"),
    *("idempotency-key", "prefer", "traceparent", "tracestate", "x-forwarded-for", "x-request-id"),
    *("origin", "sec-fetch-site", "transfer-encoding", "user-agent", "if-none-match", "x-forwarded-host"),
)
PATHS = ("schema/", "insight/plain/", "insight/", "admin/notification/", "admin/notification/plain@", "")
REPLAY = asking("plain", {}, from_id="1")
PLACES: dict[str, Place] = {
    "watch from_date": lambda text: post("watch", asking("plain", {}, from_date=text)),
    "watch point": lambda text: post("watch", asking("area", {"point": text})),
    "an unknown key": lambda text: post("watch", asking("plain", {text: "1"})),
    "an unknown operator": lambda text: post("watch", asking("plain", {"IntHandler": {text: 1}})),
    "a member": lambda text: post("notification", {text: 1}),
    "event_type": lambda text: post("notification", asking(text, {})),
    "key and value of a free event type": lambda text: post("notification", asking("free", {text: text})),
    "payload": lambda text: post("notification", asking("plain", {}, payload={text: [text]})),
    "notification_id": lambda text: post("explain", asking("plain", {}, notification_id=text)),
    "sequence of notification_id": lambda text: post("explain", asking("plain", {}, notification_id=f"plain@{text}")),
    "idempotency_key": lambda text: post("notifications", [{**asking("plain", {}), "idempotency_key": text}]),
    "lines": lambda text: (
        "POST",
        "/api/v1/notifications",
        b"",
        {"content-type": "application/x-ndjson"},
        text.replace(" ", "\n").encode(),
    ),
    "stream_name": lambda text: (
        "DELETE",
        "/api/v1/admin/wipe/stream",
        b"",
        {"content-type": "application/json"},
        json.dumps({"stream_name": text}).encode(),
    ),
    **{
        f"subscription {member}": a_subscription(member)
        for member in ("name", "event_type", "sink", "from_id", "from_date", "delivery", "unknown")
    },
    "subscription identifier": lambda text: post(
        "subscriptions", {"name": "a", "event_type": "plain", "identifier": {"DateHandler": text}}
    ),
    "path of a subscription": lambda text: ("GET", f"/api/v1/subscriptions/{quote(text)}", b"", {}, b""),
    "days of an explanation": lambda text: post("explain", asking("plain", {}, days=text)),
    "media type": a_wipe("content-type", "a/"),
    **{
        f"{route} {kind}": a_field(route, *WHERE.get(kind, ("plain", kind)))
        for kind in FIELD_TYPES
        for route in ("notification", "replay", "explain")
    },
    **{
        f"{kind} {operator}": an_operand(*WHERE.get(kind, ("plain", kind)), operator)
        for kind in FIELD_TYPES
        for operator in ("eq", "in", "between")
    },
    **{f"replay {name}": a_bound(name) for name in ("from_id", "from_date", "to_id", "to_date")},
    **{
        f"body of {route} after {before.decode()}": a_raw_body(route, before)
        for route in ("notification", "notifications", "replay")
        for before in (b"", b'["')
    },
    **{
        f"path {path} {written.__name__}": a_path(path, written)
        for path in (*[f"/api/v1/{path}" for path in PATHS], "/static/", "/swagger-ui/", "/")
        for written in (quote, str)
    },
    **{
        f"query of {route} after {before.decode()}": a_query(route, before)
        for route in ("notifications", "notification", "insight/plain/counts")
        for before in (b"", b"all_or_nothing=", b"from=")
    },
    **{f"header {name}": a_header("replay", REPLAY, name) for name in HEADERS},
    **{f"header {name} of a batch": a_header("notifications", [], name) for name in HEADERS},
    **{f"header {name} of a wipe": a_wipe(name) for name in HEADERS},
    **{f"credentials {kind}": a_header("replay", REPLAY, "authorization", f"{kind} ") for kind in ("Bearer", "Basic")},
    **{
        f"credentials Bearer, part {part}": a_header("replay", REPLAY, "authorization", f"Bearer {'e30.' * part}")
        for part in (1, 2)
    },
}
"""Every place of a request that can carry a text."""


class Caller:
    """Sends requests to an application and times it."""

    def __init__(self, auth: bool, log: Log | None = None) -> None:
        settings = Settings(
            event_types=(PLAIN, AREA, CLOUD),
            strict=auth,
            auth=Auth(enabled=auth, mode="trusted_proxy", jwt_secret=Secret("0123456789abcdef" * 4)),
            limits=Limits(requests_per_second=10**9, trusted_proxies=("127.0.0.1",)),
        )
        traces = Traces(InMemorySpanExporter(), Deployment())
        self.service = make_service(settings, log or MemoryLog(10, 10), traces=traces)
        self.app = App(self.service, ROUTES)

    async def __aenter__(self) -> Caller:
        await self.service.log.open()
        self.service.hub.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.service.hub.stop()
        await self.service.close()
        await self.service.log.close()

    async def seconds(self, request: Request) -> float:
        method, path, query, headers, body = request
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
        }
        messages: list[Any] = [{"type": "http.request", "body": body}]
        answers: list[Any] = []

        async def receive() -> Any:
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            answers.append(message)

        begun = process_time()
        await self.app(scope, receive, send)
        taken = process_time() - begun
        assert not answers or answers[0]["status"] != 500
        return taken


async def least(caller: Caller, request: Request) -> float:
    """The least time of several runs, of one if it is quick."""
    taken = await caller.seconds(request)
    for _ in range(RUNS - 1):
        taken = min(taken, await caller.seconds(request)) if taken > QUICK else taken
    return taken


async def square(caller: Caller, long: Request, short: Request) -> tuple[float, float] | None:
    """What both take if the long one takes more than its share, however often they are measured."""
    taken = before = 0.0
    for _ in range(RUNS):
        taken = await least(caller, long)
        if taken <= QUICK or taken <= MOST * (before := await least(caller, short)):
            return None
    return taken, before


async def check(caller: Caller, name: str, size: int = SIZE) -> None:
    place = PLACES[name]
    for prefix, unit, suffix in TEXTS:
        count = size // len(unit)
        found = await square(
            caller, place(prefix + unit * count + suffix), place(prefix + unit * (count // 4) + suffix)
        )
        if found is not None:
            label = f"{name}: {prefix!r}, {unit!r} up to {size} characters, {suffix!r}"
            pytest.fail(f"{label}: {found[0]:.3f} s, a quarter of it {found[1]:.3f} s")


@pytest.mark.parametrize("name", PLACES)
def test_the_time_grows_no_faster_than_the_text(name: str) -> None:
    async def run() -> None:
        async with Caller(auth=name.startswith(("header auth", "credentials"))) as caller:
            await check(caller, name)

    asyncio.run(run())


def test_the_measurement_tells_a_square() -> None:
    """A pattern that looks at every zero again from each of them is found."""
    pattern = re.compile(r"0*([0-9]+)")

    class Backtracking(Caller):
        async def seconds(self, request: Request) -> float:
            begun = process_time()
            pattern.fullmatch(request[1].removeprefix("/"))
            return process_time() - begun

    async def run() -> None:
        async with Backtracking(auth=False) as caller:
            with pytest.raises(pytest.fail.Exception, match="a quarter of it"):
                await check(caller, "path / str", 16_384)  # long enough that it is not QUICK

    asyncio.run(run())
