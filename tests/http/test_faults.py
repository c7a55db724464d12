"""Refusals list everything that is wrong, beside what the contract asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Client, Server
from tests.http.configurations import EVERY_FIELD_TYPE, LENIENT

GOOD = {
    "text": "abc",
    "day": "2025-01-01",
    "clock": "12",
    "word": "blue",
    "whole": 11,
    "number": 0.5,
    "version": "1",
    "polygon": [[0, 0], [0, 1], [1, 1], [0, 0]],
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with Server(EVERY_FIELD_TYPE, tmp_path_factory.mktemp("faults")) as server:
        yield server.client


def fields(answer: Any) -> list[str]:
    assert answer.status == 400
    listed = answer.json()["errors"]
    assert listed[0]["message"] == answer.json()["message"], "the first is what the contract asks for"
    return [each["field"] for each in listed]


def test_publishing(api: Client) -> None:
    bad = {**GOOD, "text": "abcd", "clock": "25", "whole": 9, "colour": "red"}
    del bad["word"]
    answer = api.notify("everything", bad)
    assert fields(answer)[0] == "colour"
    assert sorted(fields(answer)) == ["clock", "colour", "payload", "text", "whole", "word"]


def test_a_single_fault_is_told_as_the_contract_has_it(api: Client) -> None:
    answer = api.notify("everything", {**GOOD, "whole": 9}, payload={})
    assert answer.json().keys() == {"code", "details", "error", "message", "request_id"}


@pytest.mark.parametrize("path", ["watch", "replay"])
def test_reading(api: Client, path: str) -> None:
    asked = {
        "event_type": "everything",
        "identifier": {"whole": {"gt": "x"}, "clock": "25", "colour": "red", "polygon": "(0,0)"},
        "from_id": "first",
        "from_date": "yesterday",
    }
    found = fields(api.answer(path, asked))
    assert found[0] == "from_id"
    assert sorted(found) == sorted(["from_id", "from_date", "whole", "clock", "colour", "polygon", "text", "word"])


@pytest.mark.parametrize("operation", ["watch", "replay"])
def test_what_is_right_is_not_listed(api: Client, operation: str) -> None:
    right = {"text": "a", "word": {"in": ["red", "blue"]}, "whole": {"gte": 12}, "point": "1,1"}
    asked = {"event_type": "everything", "identifier": {**right, "clock": "25", "day": "noon"}, "from_id": "1"}
    assert sorted(fields(api.answer(operation, asked))) == ["clock", "day"]


def test_a_replay_without_a_start_names_its_other_faults(api: Client) -> None:
    answer = api.answer("replay", {"event_type": "everything", "identifier": {"word": "green"}})
    assert fields(answer) == ["from_id", "word", "text"]


def test_an_area_stands_for_a_required_shape(api: Client) -> None:
    square = [[0, 0], [0, 1], [1, 1], [0, 0]]
    asked = {"event_type": "cloud", "identifier": {"polygon": square, "network": 1, "a": 1, "b": 1}, "from_id": "1"}
    assert fields(api.answer("replay", asked)) == ["a", "b"]


def test_event_types_without_a_schema(tmp_path: Path) -> None:
    with Server(LENIENT, tmp_path) as server:
        assert fields(server.client.notify("free", {"a": "", "b": "x", "c": ""})) == ["a", "c"]


def test_the_list_is_bounded(api: Client) -> None:
    answer = api.notify("everything", {f"unknown{number}": 1 for number in range(500)})
    assert len(answer.json()["errors"]) == 100


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/api/v1/notifcation", "/api/v1/notification"),
        ("/api/v1/stream", "/api/v1/streams"),
        ("/api/v1/replays", "/api/v1/replay"),
        ("/api/notification", "/api/v1/notification"),
    ],
)
def test_a_mistyped_path_names_the_one_that_was_meant(api: Client, path: str, meant: str) -> None:
    answer = api.request("GET", path, headers=[("User-Agent", "curl/8.5.0")])
    assert answer.status == 404
    assert f"Did you mean {meant}?" in answer.body.decode()


@pytest.mark.parametrize(
    ("path", "agent"),
    [
        ("/api/v1/notifcation", "python-requests/2.32"),
        ("/api/v1/notification", "curl/8.5.0"),  # a method that it does not have
        ("/api/v1/watch/", "curl/8.5.0"),
        ("/nothing", "curl/8.5.0"),
        ("/api/v1/" + "x" * 300, "curl/8.5.0"),
    ],
)
def test_the_contracts_404_stays_empty(api: Client, path: str, agent: str) -> None:
    answer = api.request("GET", path, headers=[("User-Agent", agent)])
    assert (answer.status, answer.body) == (404, b"")
