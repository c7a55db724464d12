"""`as_of` on a server without an archive, and requests for it that nobody can answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.harness import Server
from tests.harness.client import JSON, body
from tests.spark.scene import CONFIGURATION, publish_tides

PAST = "2025-01-15T10:00:00Z"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server({**CONFIGURATION, "archive": {"enabled": False}}, tmp_path_factory.mktemp("server")) as running:
        publish_tides(running, 1, 3)
        yield running


@pytest.mark.parametrize(
    ("endpoint", "query", "code", "words"),
    [
        ("replay", f"as_of={PAST}", "INVALID_REPLAY_REQUEST", "as_of: this server has no archive"),
        ("explain", f"as_of={PAST}", "INVALID_WATCH_REQUEST", "as_of: this server has no archive"),
        (
            "watch",
            f"as_of={PAST}",
            "INVALID_WATCH_REQUEST",
            "as_of is only supported for replay and explain, not /watch",
        ),
        ("watch", "as_of=yesterday", "INVALID_WATCH_REQUEST", "as_of must be a valid datetime"),
        ("replay", "as_of=yesterday", "INVALID_REPLAY_REQUEST", "as_of must be a valid datetime"),
        ("replay", "as_of=", "INVALID_REPLAY_REQUEST", "as_of cannot be empty"),
        ("replay", "as_of=2025-01-15", "INVALID_REPLAY_REQUEST", "a day alone has no time"),
        ("replay", "as_of=2999-01-01T00:00:00Z", "INVALID_REPLAY_REQUEST", "as_of lies in the future"),
        ("replay", f"as_of={PAST}&as_of={PAST}", "INVALID_REPLAY_REQUEST", "Parameter 'as_of' is given twice"),
        ("replay", f"as_of={quote('x' * 2000)}", "INVALID_REPLAY_REQUEST", "The query is longer than 1024 bytes"),
    ],
)
def test_what_is_refused(server: Server, endpoint: str, query: str, code: str, words: str) -> None:
    start = {"from_id": "1"} if endpoint == "replay" else {}
    content = json.dumps(body("tide", {"port": "port 2"}, **start)).encode()
    answer = server.client.request("POST", f"/api/v1/{endpoint}?{query}", content, JSON)
    assert (answer.status, answer.json()["code"]) == (400, code)
    assert words in answer.json()["message"]


def test_other_queries_mean_nothing(server: Server) -> None:
    """As ever: a replay has no parameters but this one."""
    content = json.dumps(body("tide", {"port": "port 2"}, from_id="1")).encode()
    answer = server.client.request("POST", "/api/v1/replay?as_of_late=5&x=as_of", content, JSON)
    assert answer.status == 200
    assert b"replay_completed" in answer.body
