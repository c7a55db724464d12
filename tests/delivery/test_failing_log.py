"""A log that fails under the HTTP routes: what the client of a stream is told (cases 149 and 150)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from aviso_server.config.settings import Settings
from aviso_server.http.app import App, Service
from aviso_server.http.routes import ROUTES
from aviso_server.server.wiring import make_service
from tests.delivery.scene import TIDE, FailingLog, publish, settled
from tests.harness.sse import FRAME


class Exchange:
    """One request to the application and all it answers, without a socket."""

    def __init__(self, app: App, operation: str, **members: Any) -> None:
        self.status = 0
        self.body = b""
        self.ended = asyncio.Event()
        self.request_id = ""
        self._request = json.dumps({"event_type": "tide", "identifier": {"port": "oslo"}, **members}).encode()
        self._asked = False
        path = f"/api/v1/{operation}"
        place = {"path": path, "raw_path": path.encode(), "query_string": b""}
        scope = {"type": "http", "method": "POST", "headers": [], **place}
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._request, "more_body": False}
        await self.ended.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.request_id = dict(message["headers"])[b"x-request-id"].decode()
        else:
            self.body += message["body"]
            if not message.get("more_body"):
                self.ended.set()

    @property
    def frames(self) -> list[tuple[str, dict[str, Any]]]:
        """Event names and bodies, heartbeats left out."""
        found = [(each[1].decode(), json.loads(each[2])) for each in FRAME.finditer(self.body)]
        return [(event, data) for event, data in found if event != "heartbeat"]


async def served(log: FailingLog) -> tuple[Service, App]:
    await log.open()
    service = make_service(Settings(event_types=(TIDE,), strict=True), log)
    service.hub.start()
    return service, App(service, ROUTES)


@pytest.mark.parametrize("operation", ["watch", "replay"])
@pytest.mark.parametrize("broken", ["read", "first_since"])
def test_case_149_history_read_fails(operation: str, broken: str) -> None:
    async def scene() -> None:
        service, app = await served(log := FailingLog(1000))
        await publish(log, 3)
        log.broken.add(broken)
        exchange = Exchange(app, operation, from_date="0")
        await asyncio.wait_for(exchange.task, 60)
        assert exchange.status == 200
        (first, opening), (second, error), (third, closing) = exchange.frames
        assert (first, opening["type"]) == ("replay-control", "replay_started")
        assert second == "error"
        assert error == {
            "error": "stream_processing_failed",
            "message": f"{broken}: the disk is on fire",
            "topic": "tides.oslo.*",
            "request_id": exchange.request_id,
        }
        assert third == "connection-closing"
        assert closing["reason"] == "end_of_stream"
        assert closing["request_id"] == exchange.request_id
        assert service.hub.open_streams == set()
        await service.hub.stop()

    asyncio.run(scene())


@pytest.mark.parametrize("start", [{}, {"from_id": "1"}])
@pytest.mark.parametrize("broken", ["follow", "state"])
def test_case_150_subscription_fails(start: dict[str, str], broken: str) -> None:
    async def scene() -> None:
        service, app = await served(log := FailingLog(1000))
        log.broken.add(broken)
        exchange = Exchange(app, "watch", **start)
        await asyncio.wait_for(exchange.task, 60)
        assert exchange.status == 500
        refusal = json.loads(exchange.body)
        assert set(refusal) == {"code", "details", "error", "message", "request_id", "topic"}
        assert refusal["code"] == "SSE_STREAM_INITIALIZATION_FAILED"
        assert refusal["error"] == "SSE stream creation failed"
        assert refusal["topic"] == "tides.oslo.*"
        assert refusal["request_id"] == exchange.request_id
        assert service.hub.open_streams == set()

        log.broken.clear()
        again = Exchange(app, "watch", **start)
        await settled(lambda: again.frames)
        assert again.status == 200
        again.ended.set()
        await asyncio.wait_for(again.task, 60)
        assert service.hub.open_streams == set()
        await service.hub.stop()

    asyncio.run(scene())


def test_a_live_feed_that_breaks_closes_the_stream() -> None:
    async def scene() -> None:
        service, app = await served(log := FailingLog(1000))
        exchange = Exchange(app, "watch")
        await settled(lambda: exchange.frames)
        await publish(log)
        await settled(lambda: len(exchange.frames) == 2)
        log.lose("tides")
        await asyncio.wait_for(exchange.task, 60)
        assert [event for event, _ in exchange.frames] == [
            "live-notification",
            "live-notification",
            "connection-closing",
        ]
        assert exchange.frames[-1][1]["reason"] == "end_of_stream"
        assert service.hub.open_streams == set()
        await service.hub.stop()

    asyncio.run(scene())
