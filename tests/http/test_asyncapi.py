"""The AsyncAPI document: valid, complete, and true to what goes over the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

import aviso_server
from tests.harness import Server
from tests.http.configurations import EVERY_FIELD_TYPE, NO_SCHEMA

SPECIFICATION = Path(__file__).parent / "vendor" / "asyncapi-3.0.0.json"
CONFIGURATIONS = {"every field type": EVERY_FIELD_TYPE, "no schema": NO_SCHEMA}


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(CONFIGURATIONS[request.param], tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def document(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.client.get("/api-docs/asyncapi.json").json()
    return found


def test_document_is_valid(document: dict[str, Any]) -> None:
    check = jsonschema_rs.validator_for(json.loads(SPECIFICATION.read_bytes()))
    assert [error.message for error in check.iter_errors(document)] == []
    assert (document["asyncapi"], document["info"]["version"]) == ("3.0.0", aviso_server.__version__)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    for reference in references(document):
        found: Any = document
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
        assert found


def references(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from references(each)
    if isinstance(value, dict):
        for key, each in value.items():
            if key == "$ref":
                yield each
            else:
                yield from references(each)


def test_every_event_type_can_be_published_watched_and_replayed(server: Server, document: dict[str, Any]) -> None:
    names = server.client.get("/api/v1/schema").json()["event_types"]
    addresses = {channel["title"]: channel["address"] for channel in document["channels"].values()}
    verbs = {"Publish": "notification", "Watch": "watch", "Replay": "replay"}
    assert addresses == {f"{verb} {name}": f"/api/v1/{path}" for name in names for verb, path in verbs.items()}
    actions = {name: operation["action"] for name, operation in document["operations"].items()}
    assert all(action == ("receive" if name.startswith("publish") else "send") for name, action in actions.items())


def test_frames_are_as_described(server: Server, document: dict[str, Any]) -> None:
    messages = document["components"]["messages"]
    for name in [name for name in messages if name.startswith("Notification.")]:
        request = messages[name]["examples"][0]["payload"]
        jsonschema_rs.validator_for(messages[name]["payload"]).validate(request)
        assert server.client.answer("notification", request).status == 200
        asked = {"event_type": request["event_type"], "identifier": {}, "from_id": "1"}
        headers = (("Content-Type", "application/json"), ("Prefer", "handling=lenient"))
        with server.client.open("replay", asked, headers) as stream:
            frames = stream.rest()
        event = messages[name.replace("Notification.", "Event.")]["payload"]
        seen = set()
        for frame in frames:
            kind = "connection_closing" if frame.event == "connection-closing" else frame.data.get("type", "")
            schema = messages[kind]["payload"] if kind in messages else event
            jsonschema_rs.validator_for(schema).validate(frame.data)
            seen.add(kind)
        assert {"replay_started", "replay_completed", "connection_closing"} < seen
