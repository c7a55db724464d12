"""The rate of a user, in notifications and bytes, holds over all of their subscriptions; what is late is not lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.harness import Server
from tests.subscriptions.receiver import Receiver
from tests.subscriptions.scene import Api, configuration, publish

BURST = 2  # seconds of the rate that are free at first


@pytest.mark.parametrize(("limit", "rate"), [("notifications_per_second", 20), ("bytes_per_second", 6000)])
def test_pushed_notifications(limit: str, rate: int, tmp_path: Path) -> None:
    with Server(configuration("in_memory", **{limit: rate}), tmp_path) as server, Receiver() as receiver:
        api = Api(server.client)
        for name in ("one", "two"):
            api.push(name, receiver.url)
        began = time.monotonic()
        publish(server.client, "x", *range(40))
        got = receiver.wait_for(80)
        spent = time.monotonic() - began
        amount = len(got) if limit == "notifications_per_second" else sum(len(each.body) for each in got)
        owed = amount / rate - BURST
        assert owed > 1.5, "there is something to wait for"
        assert spent > owed - 0.5  # the last request may go into debt
        assert sorted(receiver.sequences) == sorted([*range(1, 41), *range(1, 41)])


def test_pulled_notifications(tmp_path: Path) -> None:
    with Server(configuration("in_memory", notifications_per_second=20), tmp_path) as server:
        api, got = Api(server.client), list[int]()
        api.make("queue")
        publish(server.client, "x", *range(80))
        began = time.monotonic()
        while len(got) < 80:
            got += [each["event"]["sequence"] for each in api.pull("queue", max=10, wait_seconds=30)]
        assert time.monotonic() - began > 80 / 20 - BURST - 1.0  # the last ten go into debt
        assert got == list(range(1, 81))
