"""Which stream an administrator means."""

from __future__ import annotations

from pathlib import Path

from tests.harness import Server
from tests.harness.client import Client
from tests.http.test_stream_list import CONFIG


def payloads(api: Client, event_type: str) -> list[str]:
    return [each["data"]["payload"] for each in api.replay(event_type, {"port": "oslo"}).notifications]


def test_names_that_differ_in_case_are_told_apart_and_any_case_will_do_otherwise(tmp_path: Path) -> None:
    with Server(CONFIG, tmp_path) as server:
        api = server.client
        for event_type in ("tide", "TIDE", "free", "Free"):  # only the first of them is configured
            for payload in ("a", "b"):
                api.publish(event_type, {"port": "oslo"}, payload)
        assert api.delete("/api/v1/admin/notification/TIDE@1").status == 200
        assert (payloads(api, "tide"), payloads(api, "TIDE")) == (["a", "b"], ["b"])
        assert api.delete("/api/v1/admin/notification/TIDES@2").status == 200
        assert (payloads(api, "tide"), payloads(api, "TIDE")) == (["a"], ["b"])
        assert api.delete("/api/v1/admin/wipe/stream", {"stream_name": "free"}).status == 200
        assert (payloads(api, "free"), payloads(api, "Free")) == ([], ["a", "b"])


def test_a_long_name_is_not_repeated_whole(tmp_path: Path) -> None:
    with Server(CONFIG, tmp_path) as server:
        answer = server.client.delete("/api/v1/admin/wipe/stream", {"stream_name": "x" * 2_000_000})
        assert answer.status == 404
        assert f"Stream not found: {'x' * 256}…. " in answer.json()["message"]
    assert "Stream not found" in server.stdout
    assert "x" * 257 not in server.stdout
