"""A server with a small event type, and shorthand for its subscriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.harness import Client, Response
from tests.harness.client import JSON, encode

__all__ = ["Api", "configuration", "publish", "publish_batch"]


def configuration(kind: str = "sqlite", **subscriptions: Any) -> dict[str, Any]:
    """The configuration of a server whose sinks may be on this machine, and whose retries are quick."""
    return {
        "application": {"host": "127.0.0.1", "port": 0, "base_url": "http://aviso.example"},
        "notification_backend": {"kind": kind, "in_memory": {"max_history_per_topic": 10_000}},
        "notification_schema": {
            "wave": {
                "topic": {"base": "wave", "key_order": ["sea", "height"]},
                "identifier": {
                    "sea": {"type": "StringHandler", "required": False},
                    "height": {"type": "IntHandler", "required": False},
                },
            }
        },
        "subscriptions": {
            "allow_sinks": ["127.0.0.1"],
            "retry_delay_ms": 50,
            "max_retry_delay_ms": 200,
            "max_per_user": 1000,
            **subscriptions,
        },
    }


def publish(client: Client, sea: str, *heights: int) -> None:
    """Publish waves."""
    client.publish_many("wave", [({"sea": sea, "height": height}, {"height": height}) for height in heights])


def publish_batch(client: Client, notifications: Sequence[Mapping[str, Any]]) -> None:
    """Publish up to 1,000 notifications in one request."""
    answer = client.request("POST", "/api/v1/notifications", encode(notifications), JSON)
    assert answer.status == 200, answer.body.decode()


class Api:
    """`/api/v1/subscriptions` of one server."""

    def __init__(self, client: Client, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.client = client
        self.headers = headers

    def call(self, method: str, path: str = "", body: Any = None) -> Response:
        """Send a request and return the answer, whatever it is."""
        data = None if body is None else encode(body)
        return self.client.request(method, f"/api/v1/subscriptions{path}", data, (*JSON, *self.headers))

    def ok(self, method: str, path: str = "", body: Any = None) -> Any:
        """Send a request that must succeed."""
        answer = self.call(method, path, body)
        assert answer.status in (200, 201, 204), answer.body.decode()
        return answer.json() if answer.body else None

    def make(self, name: str, identifier: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """Make a subscription to waves."""
        return self.ok("POST", "", {"name": name, "event_type": "wave", "identifier": identifier or {}, **more})

    def push(self, name: str, sink: str, identifier: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """Make one that is pushed."""
        return self.make(name, identifier, delivery="push", sink=sink, **more)

    def show(self, name: str) -> Any:
        """Show one."""
        return self.ok("GET", f"/{name}")

    def pull(self, name: str, **asked: Any) -> list[Any]:
        """Pull from one."""
        found: list[Any] = self.ok("POST", f"/{name}/pull", asked)["notifications"]
        return found
