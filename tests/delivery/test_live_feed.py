"""The live feed of a stream: one broken watcher harms nobody, and the feed itself is restarted when it fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from aviso_server.config.settings import Settings
from aviso_server.delivery import hub as hub_module
from aviso_server.delivery import live
from aviso_server.delivery.clients import ClientWriter
from aviso_server.delivery.live import LiveFeed
from aviso_server.errors import LogUnavailable
from aviso_server.http.app import App, Service
from aviso_server.http.routes import ROUTES
from aviso_server.model.event_type import Catalogue, EventType, GenericType
from aviso_server.model.notification import Draft, Notification
from aviso_server.model.times import Span
from aviso_server.server.wiring import make_service
from tests.delivery.scene import TIDE, FailingLog, Reader, hub_on, join, publish, roomy, settled
from tests.delivery.simulation import in_simulated_time

ERRORS = [RuntimeError("the handler is closed"), OSError(5, "input/output error"), ValueError("?"), BrokenPipeError()]
DAMAGED = Draft("tides", "tides.oslo.3", b'{"port":"oslo"', b"null")


class Broken(Reader):
    """A client whose transport raises whatever it is given."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.broken = False

    async def send(self, message: Any) -> None:
        """Take a message, or fail."""
        if self.broken:
            raise self.error
        await super().send(message)

    def hang_up(self) -> None:
        """Fail as well."""
        super().hang_up()
        if self.broken:
            raise self.error


def feeds() -> list[asyncio.Task[Any]]:
    """The tasks of the live feeds."""
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("live feed")]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@in_simulated_time
async def test_a_transport_that_raises_ends_its_own_watcher_only(error: Exception) -> None:
    log, unexpected = roomy(), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unexpected.append(context))
    async with hub_on(log, heartbeat_interval=0.2) as hub:
        _, before = await join(hub)
        broken = [Broken(error) for _ in range(4)]
        watchers = [(await join(hub, reader=each))[0] for each in broken]
        _, after = await join(hub)
        # the first fails when it is offered something, the second with a heartbeat, the third when it is closed, and
        # the fourth while it is waited for
        broken[0].broken = True
        broken[3].stop()
        await publish(log)
        await settled(lambda: before.sequences == after.sequences == [1] and broken[0].hung_up)
        broken[1].broken = True
        await settled(lambda: broken[1].hung_up)
        broken[3].broken = True
        broken[3].resume()
        await publish(log)
        await settled(lambda: broken[3].hung_up)
        broken[2].broken = True
        watchers[2].close("end_of_stream")
        assert broken[2].hung_up
        await publish(log)
        await settled(lambda: before.sequences == after.sequences == [1, 2, 3])
        assert hub.restarts == 0
        hub.close_streams()
        await settled(lambda: before.reason == after.reason == "server_shutdown")
    await asyncio.sleep(0)
    assert unexpected == []


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@in_simulated_time
async def test_a_transport_that_raises_while_its_watcher_catches_up(error: Exception) -> None:
    log, unexpected = roomy(), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unexpected.append(context))
    async with hub_on(log) as hub:
        await publish(log, 10)
        broken = Broken(error)
        broken.broken = True
        await join(hub, Span(from_sequence=1), reader=broken)
        _, other = await join(hub, Span(from_sequence=1))
        await settled(lambda: broken.hung_up and other.sequences == [*range(1, 11)])
    assert unexpected == []


@in_simulated_time
async def test_a_feed_whose_task_ends_is_restarted_and_nothing_is_lost_or_doubled() -> None:
    log = roomy()
    async with hub_on(log) as hub:
        _, all_of_it = await join(hub)
        _, some_of_it = await join(hub, port="oslo")
        slow_watcher, slow = await join(hub)
        slow.stop()
        for number in range(20):
            await publish(log, 3)
            if number % 5 == 2:
                [feed] = feeds()
                feed.cancel()
                await publish(log, 2)
                await settled(lambda: any(feed.down for feed in hub.feeds))
                await settled(lambda: not any(feed.down for feed in hub.feeds))
        slow.resume()
        expected = [*range(1, 69)]
        await settled(lambda: all_of_it.sequences == some_of_it.sequences == slow.sequences == expected)
        await settled(lambda: not slow_watcher.catching_up)
        assert hub.restarts == 4


@in_simulated_time
async def test_a_feed_that_hangs_is_restarted_and_nothing_is_lost_or_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_LOOK_SECONDS", 0.02)
    log, hanging = roomy(), asyncio.Event()
    pass_on = LiveFeed._pass_on

    async def hang(feed: LiveFeed, batch: Sequence[Notification]) -> None:
        if hanging.is_set():
            await asyncio.get_running_loop().create_future()
        await pass_on(feed, batch)

    monkeypatch.setattr(LiveFeed, "_pass_on", hang)
    async with hub_on(log) as hub:
        _, reader = await join(hub)
        await publish(log, 3)
        await settled(lambda: reader.sequences == [1, 2, 3])
        hanging.set()
        await publish(log, 3)
        await settled(lambda: any(feed.down for feed in hub.feeds))
        hanging.clear()
        await publish(log, 3)
        await settled(lambda: reader.sequences == [*range(1, 10)])
        await settled(lambda: not any(feed.down for feed in hub.feeds))
        assert hub.restarts == 1


@pytest.mark.parametrize("away", [False, True])
@in_simulated_time
async def test_a_feed_that_the_log_tells_nothing_is_restarted_from_the_log(
    away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "_LOOK_SECONDS", 0.02)
    log = FailingLog(1000, 1000)
    async with hub_on(log) as hub:
        _, reader = await join(hub)
        _, other = await join(hub, port="oslo")
        await publish(log, 2)
        await settled(lambda: reader.sequences == [1, 2])
        [hold] = log._followers._holds["tides"]
        hold.active = False
        await publish(log, 2)
        if away:  # while the feed is being restarted
            await settled(lambda: next(iter(hub.feeds))._looks == live._MOST_LOOKS - 1)
            log.broken = {"state"}
            await publish(log, 2)
            await asyncio.sleep(0.1)
            log.broken = set()
        expected = [*range(1, 7 if away else 5)]
        await settled(lambda: reader.sequences == other.sequences == expected)
        await publish(log, 2)
        await settled(lambda: reader.sequences == other.sequences == [*expected, expected[-1] + 1, expected[-1] + 2])
        assert hub.restarts == 1


@in_simulated_time
async def test_a_feed_with_nothing_to_do_or_much_of_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_LOOK_SECONDS", 0.005)
    log = roomy()
    async with hub_on(log) as hub:
        _, reader = await join(hub)
        await asyncio.sleep(0.2)  # dozens of looks
        await publish(log, 1)
        [notification] = (await log.read("tides", 1, 1, 1)).notifications
        await log.delete("tides", 1)
        feed = next(iter(hub.feeds))
        feed._taken = 0  # as if it had been deleted before the feed was told of it
        await asyncio.sleep(0.2)
        for _ in range(50):
            await publish(log, 20)
            await asyncio.sleep(0.005)
        await settled(lambda: reader.sequences == [*range(1, 1002)])
        assert notification.sequence == 1
        assert hub.restarts == 0


@in_simulated_time
async def test_a_notification_that_the_feed_cannot_read_is_no_end_for_anybody() -> None:
    log = roomy()
    async with hub_on(log) as hub:
        _, reader = await join(hub)
        await publish(log)
        await log.append(DAMAGED)
        await settled(lambda: hub.restarts == 1)
        await publish(log)
        expected = [b'"sequence":%d' % number for number in (1, 2, 3)]
        await settled(lambda: [each for each in expected if each in reader.received] == expected)
        assert reader.received.count(b'"sequence":') == 3
        assert not reader.ended


@in_simulated_time
async def test_a_restart_is_told() -> None:
    log = roomy()
    await log.open()
    service = make_service(Settings(event_types=(TIDE,), strict=True), log)
    service.hub.start()
    try:
        await join(service.hub)
        assert await _ready(service) == (200, {"status": "ready", "backend_connected": True})
        feeds()[0].cancel()
        await settled(lambda: any(feed.down for feed in service.hub.feeds))
        status, body = await _ready(service)
        assert (status, body["status"], body["live_feed"]) == (503, "not_ready", {"restarts": 1, "down": 1})
        await settled(lambda: not any(feed.down for feed in service.hub.feeds))
        status, body = await _ready(service)
        assert (status, body["status"], body["live_feed"]) == (200, "ready", {"restarts": 1, "down": 0})
        assert service.hub.flows["watch", "tide"].restarts == 1
    finally:
        await service.hub.stop()
        await service.close()
        await log.close()


async def _ready(service: Service) -> tuple[int, Any]:
    status, body = 0, b""

    async def receive() -> Any:
        raise LogUnavailable("there is no body")

    async def send(message: Any) -> None:
        nonlocal status, body
        status = message.get("status", status)
        body += message.get("body", b"")

    scope = {"type": "http", "method": "GET", "path": "/ready", "raw_path": b"/ready", "headers": []}
    await App(service, ROUTES)(scope, receive, send)
    return status, json.loads(body)


@pytest.mark.parametrize("first", ["tide", "tides"])
@in_simulated_time
async def test_event_types_that_share_a_stream_each_see_live_what_a_replay_shows(first: str) -> None:
    catalogue = Catalogue({"tide": TIDE}, strict=False)
    asked: dict[str, list[dict[str, Any]]] = {
        "tide": [{}, {"port": "oslo"}, {"level": {"gt": 3}}],
        "tides": [{"a": "*", "b": "*"}, {"a": "oslo", "b": "*"}, {"a": "*", "b": "4"}],
    }
    log = roomy()
    async with hub_on(log) as hub:
        live = []
        for name in (first, *(set(asked) - {first})):
            event_type = catalogue.find(name)
            live += [(event_type, each, await _watch(hub, event_type, each)) for each in asked[name]]
        for port, level in [("oslo", 3), ("bergen", 4), ("oslo", 5)]:
            await publish(log, port=port, level=level)
            await log.append(catalogue.find("tides").check({"x": port, "y": level}))
        for event_type, identifier, reader in live:
            history = await _replay(hub, event_type, identifier)
            assert history.sequences, "the test is of no use if nothing matches"
            await settled(lambda reader=reader, history=history: len(reader.sequences) >= len(history.sequences))
            assert _events(reader) == _events(history)
        assert len(hub.feeds) == 2


async def _watch(hub: Any, event_type: EventType | GenericType, identifier: dict[str, Any]) -> Reader:
    reader = Reader()
    watcher = await hub.watcher(event_type.compile(identifier, "watch"), ClientWriter(reader.send), "the-request")
    watcher.go_live()
    hub.begin(watcher)
    return reader


async def _replay(hub: Any, event_type: EventType | GenericType, identifier: dict[str, Any]) -> Reader:
    reader = Reader()
    wanted = event_type.compile(identifier, "replay")
    hub.replay(wanted, ClientWriter(reader.send), "the-request").begin(Span(from_sequence=1), 6, None)
    await settled(lambda: reader.ended)
    return reader


def _events(reader: Reader) -> list[Any]:
    return [frame.data for frame in reader.frames if frame.kind == "notification"]
