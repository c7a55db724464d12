"""Deleting and wiping with the client, and what its listeners make of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyaviso import AvisoClient, HistoryGapError, HttpError

from tests.client.listening import Open, payloads, sequences
from tests.harness import Server


def publish(client: AvisoClient, *values: Any) -> None:
    for value in values:
        client.notify(event_type="delivery", identifier={"customer": "ann", "item": 1}, payload=value)


def stored(client: AvisoClient) -> list[Any]:
    return list(client.listen("delivery", filter={"customer": "ann"}, start_from=0, mode="replay_only"))


def test_deleted_notification_is_gone_and_its_number_is_not_used_again(client: AvisoClient) -> None:
    client.wipe_stream("delivery")
    publish(client, "a", "b", "c")
    a, b, c = sequences(stored(client))
    client.delete_notification(f"delivery@{b}")
    publish(client, "d")
    assert payloads(stored(client)) == ["a", "c", "d"]
    assert sequences(stored(client)) == [a, c, c + 1]
    with pytest.raises(HttpError) as refusal:
        client.delete_notification(f"delivery@{b}")
    assert refusal.value.status == 404
    assert "Notification not found" in refusal.value.body


@pytest.mark.parametrize("wrong", ["delivery", "delivery@", "delivery@0", "delivery@x", "@1"])
def test_id_of_the_wrong_form_is_refused(client: AvisoClient, wrong: str) -> None:
    with pytest.raises(HttpError) as refusal:
        client.delete_notification(wrong)
    assert refusal.value.status == 400
    assert "must be in '<stream>@<sequence>' format" in refusal.value.body


@pytest.mark.parametrize("name", ["delivery", "Delivery", "parcels", "PARCELS"])
def test_stream_is_wiped_by_its_event_type_or_storage_name(client: AvisoClient, name: str) -> None:
    publish(client, "a")
    last = stored(client)[-1].sequence
    client.wipe_stream(name)
    assert stored(client) == []
    publish(client, "b")
    assert [(each.sequence, each.payload) for each in stored(client)] == [(last + 1, "b")]


def test_wiping_one_stream_leaves_the_others(client: AvisoClient) -> None:
    client.notify(event_type="wave", identifier={"gauge": "kept"})
    client.wipe_stream("delivery")
    assert len(list(client.listen("wave", filter={"gauge": "kept"}, start_from=0, mode="replay_only"))) == 1


def test_unknown_stream_is_not_found(client: AvisoClient) -> None:
    with pytest.raises(HttpError) as refusal:
        client.wipe_stream("nope")
    assert refusal.value.status == 404
    assert "Stream not found: nope" in refusal.value.body


def wipe_tide(client: AvisoClient) -> None:
    client.wipe_stream("tide")


def wipe_all(client: AvisoClient) -> None:
    client.wipe_all()


@pytest.mark.parametrize("wipe", [wipe_tide, wipe_all])
def test_unfiltered_listener_goes_on_over_a_wipe(
    server: Server, client: AvisoClient, listen: Open, wipe: Callable[[AvisoClient], None]
) -> None:
    listening = listen(server, lambda: client.listen("tide"))
    client.notify(event_type="tide", identifier={"gauge": "w"}, payload="before")
    [before] = listening.take()
    wipe(client)
    assert list(client.listen("tide", filter={"gauge": "w"}, start_from=0, mode="replay_only")) == []
    client.notify(event_type="tide", identifier={"gauge": "w"}, payload="after")
    [after] = listening.take()
    assert (after.sequence, after.payload) == (before.sequence + 1, "after")
    resumed = listen(server, lambda: client.listen("tide", start_from=before.sequence))
    assert sequences(resumed.take()) == [after.sequence]


def test_unfiltered_replay_over_a_deleted_one_is_told_of_the_gap(client: AvisoClient) -> None:
    for _ in range(3):
        client.notify(event_type="wave", identifier={"gauge": "gap"})
    last = list(client.listen("wave", filter={"gauge": "gap"}, start_from=0, mode="replay_only"))[-1].sequence
    client.delete_notification(f"wave@{last - 1}")
    with pytest.raises(HistoryGapError) as gap:
        list(client.listen("wave", start_from=last - 3, mode="replay_only"))
    assert (gap.value.reason, gap.value.expected, gap.value.observed) == ("sequence_jump", last - 1, last)
