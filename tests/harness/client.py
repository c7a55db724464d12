"""A plain client of the HTTP interface: it sends exactly what a test says and keeps the whole answer."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tests.harness.patience import PATIENCE
from tests.harness.sse import EventStream

__all__ = ["ABSENT", "Client", "Response"]

ABSENT: Any = object()
"""Stands for a member that is not sent at all, which is not the same as null."""

JSON = (("Content-Type", "application/json"),)


class Response(NamedTuple):
    """A complete answer; header names are in lower case, in the order of arrival."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The value of a header, None if it is not there."""
        return dict(self.headers).get(name)

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Client:
    """Requests to one server. Each uses its own connection unless said otherwise."""

    def __init__(self, host: str, port: int, timeout: float = PATIENCE) -> None:
        self.host = host
        self.port = port
        self.timeout = timeout

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Iterable[tuple[str, str]] = ()
    ) -> Response:
        """Send one request as it is and read the whole answer."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        try:
            return _exchange(connection, method, path, body, headers)
        finally:
            connection.close()

    def get(self, path: str) -> Response:
        """GET a path."""
        return self.request("GET", path)

    def delete(self, path: str, body: Any = ABSENT) -> Response:
        """DELETE a path, with a JSON body if one is given."""
        if body is ABSENT:
            return self.request("DELETE", path)
        return self.request("DELETE", path, encode(body), JSON)

    def open(
        self,
        operation: str,
        request: Any,
        headers: tuple[tuple[str, str], ...] = JSON,
        receive_buffer: int | None = None,
    ) -> EventStream:
        """POST a request (JSON, or bytes as they are) to `/api/v1/<operation>` and read the head of the answer."""
        return EventStream(
            self.host,
            self.port,
            f"/api/v1/{operation}",
            encode(request),
            headers,
            receive_buffer=receive_buffer,
            timeout=self.timeout,
        )

    def answer(self, operation: str, request: Any, headers: tuple[tuple[str, str], ...] = JSON) -> Response:
        """The answer to a POST; of a stream only the first frame, as `body`."""
        with self.open(operation, request, headers) as stream:
            body = stream.body if stream.ended else stream.next().raw
            return Response(stream.status, stream.headers, body)

    def notify(self, event_type: str, identifier: Mapping[str, Any], payload: Any = ABSENT) -> Response:
        """Publish a notification and return the answer, whatever it is."""
        return self.answer("notification", body(event_type, identifier, payload=payload))

    def publish(self, event_type: str, identifier: Mapping[str, Any], payload: Any = ABSENT) -> None:
        """Publish a notification that must be accepted."""
        response = self.notify(event_type, identifier, payload)
        assert response.status == 200, response.body.decode()

    def publish_many(self, event_type: str, notifications: Iterable[tuple[Mapping[str, Any], Any]]) -> None:
        """Publish pairs of identifier and payload one after the other over a single connection."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        try:
            for identifier, payload in notifications:
                request = encode(body(event_type, identifier, payload=payload))
                response = _exchange(connection, "POST", "/api/v1/notification", request, JSON)
                assert response.status == 200, response.body.decode()
        finally:
            connection.close()

    def watch(self, event_type: str, identifier: Mapping[str, Any], **start: Any) -> EventStream:
        """Open a watch that must be accepted; its first frame is yet to be read."""
        return _accepted(self.open("watch", body(event_type, identifier, **start)))

    def replay(self, event_type: str, identifier: Mapping[str, Any], **start: Any) -> EventStream:
        """A replay that must be accepted, read to its end; from the beginning unless a start is given."""
        start = start or {"from_id": "1"}
        with _accepted(self.open("replay", body(event_type, identifier, **start))) as stream:
            stream.rest()
            return stream

    def wipe_all(self) -> None:
        """Remove everything stored."""
        response = self.delete("/api/v1/admin/wipe/all")
        assert response.status == 200, response.body.decode()


def body(event_type: str, identifier: Mapping[str, Any], **members: Any) -> dict[str, Any]:
    """The JSON body of a request, without the members that are ABSENT."""
    given = {name: value for name, value in members.items() if value is not ABSENT}
    return {"event_type": event_type, "identifier": dict(identifier), **given}


def encode(request: Any) -> bytes:
    """JSON text of a request; bytes stay as they are."""
    return request if isinstance(request, bytes) else json.dumps(request, ensure_ascii=False).encode()


def _accepted(stream: EventStream) -> EventStream:
    if stream.status != 200:
        stream.close()
        raise AssertionError(f"status {stream.status}: {stream.body.decode()}")
    return stream


def _exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None,
    headers: Iterable[tuple[str, str]],
) -> Response:
    connection.putrequest(method, path, skip_accept_encoding=True)
    for name, value in headers:
        connection.putheader(name, value)
    if body is not None:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    fields = tuple((name.lower(), value) for name, value in answer.getheaders())
    return Response(answer.status, fields, answer.read())
