"""The `aviso` command against our server: what it does, and what it says when something is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.client.aviso_command import AvisoCommand
from tests.client.listening import open_streams, wait_until
from tests.harness import Server


def published(aviso: AvisoCommand, parameters: str, *more: str) -> None:
    finished = aviso("notify", parameters, *more)
    assert finished.code == 0, finished.err
    [answer] = finished.lines
    assert answer["status"] == "success"


def replayed(aviso: AvisoCommand, *arguments: str) -> list[Any]:
    finished = aviso("replay", *arguments)
    assert finished.code == 0, finished.err
    return finished.lines


def test_notify_and_replay(aviso: AvisoCommand) -> None:
    storm = "event=storm,region=south,anomaly=42.50,run_time=6,day=2025-07-06"
    published(aviso, f'{storm},severity=4,data={{"x":[1,"a"]}}')
    published(aviso, f"{storm},severity:=5,data=null")
    published(aviso, f"{storm},severity:=7")
    lines = replayed(aviso, "--event", "storm", "--identifier", "region=south", "--from", "0")
    canonical = {"region": "south", "anomaly": "42.5", "run_time": "0600", "day": "20250706"}
    assert lines == [
        {
            "event_type": "storm",
            "sequence": 1,
            "identifier": {**canonical, "severity": "4"},
            "payload": {"x": [1, "a"]},
        },
        {"event_type": "storm", "sequence": 2, "identifier": {**canonical, "severity": "5"}, "payload": None},
        {"event_type": "storm", "sequence": 3, "identifier": {**canonical, "severity": "7"}, "payload": None},
    ]
    above = ("--event", "storm", "--identifier", 'severity:={"gte":5}')
    assert [line["sequence"] for line in replayed(aviso, *above, "--from", "0", "--until", "2")] == [2]
    assert [line["sequence"] for line in replayed(aviso, *above, "--from", "2020-01-01")] == [2, 3]
    assert replayed(aviso, *above, "--from", "2020-01-01", "--until", "2020-01-02") == []


def test_listen_live(server: Server, aviso: AvisoCommand) -> None:
    before = open_streams(server)
    with aviso.running(["listen", "--event", "wave", "--identifier", "gauge=live"]) as listening:
        wait_until(lambda: open_streams(server) > before, "the listener is connected")
        published(aviso, "event=wave,gauge=other")
        published(aviso, "event=wave,gauge=live,data=1")
        published(aviso, "event=wave,gauge=live,data=2")
        assert [line["payload"] for line in listening.await_lines(2)] == [1, 2]
        finished = listening.interrupt()
    assert finished.code == 0, finished.err


def test_listen_with_a_file_goes_on_where_it_stopped(server: Server, aviso: AvisoCommand) -> None:
    (aviso.home / "tides.yaml").write_text(
        "listeners:\n  - name: tides\n    event: tide\n    identifiers: {gauge: g}\n    triggers: [{type: echo}]\n"
    )
    for value in ("a", "b"):
        server.client.publish("tide", {"gauge": "g"}, value)
    with aviso.running(["listen", "tides.yaml", "--from", "0"]) as listening:
        assert [line["payload"] for line in listening.await_lines(2)] == ["a", "b"]
        assert listening.interrupt().code == 0
    server.client.publish("tide", {"gauge": "g"}, "c")
    with aviso.running(["listen", "tides.yaml"]) as listening:
        assert [line["payload"] for line in listening.await_lines(1)] == ["c"]
        assert listening.interrupt().code == 0


def test_areas(aviso: AvisoCommand) -> None:
    published(aviso, 'event=area,name=text,polygon="46,8,46,9,47,9,47,8,46,8"')
    published(aviso, "event=area,name=list", "--identifier", "polygon:=[[46,8],[46,9],[47,9],[47,8],[46,8]]")
    for wanted in ("point=46.5,8.5", "point:=[46.5,8.5]", "polygon=46,8,46,9,47,9,47,8,46,8"):
        lines = replayed(aviso, "--event", "area", "--identifier", wanted, "--from", "0")
        assert [line["identifier"]["name"] for line in lines] == ["text", "list"]


def test_schema(aviso: AvisoCommand) -> None:
    names = [line["event_type"] for line in aviso("schema", "list", "--json").lines]
    assert sorted(names) == ["area", "buoys", "delivery", "storm", "tide", "wave"]
    schema = json.loads(aviso("schema", "get", "delivery").out)
    assert schema["event_type"] == "delivery"
    assert schema["schema"]["identifier"]["customer"]["description"] == "Who gets it"
    unknown = aviso("schema", "get", "nope")
    assert unknown.code == 1
    assert "Available event_types: area, buoys, delivery, storm, tide, wave." in unknown.err


def test_admin(server: Server, aviso: AvisoCommand) -> None:
    for value in ("a", "b"):
        server.client.publish("delivery", {"customer": "ann", "item": 1}, value)
    stored = ("--event", "delivery", "--identifier", "customer=ann", "--from", "0")
    assert aviso("admin", "delete", "delivery@1", "--yes").code == 0
    assert [line["sequence"] for line in replayed(aviso, *stored)] == [2]
    missing = aviso("admin", "delete", "delivery@1", "--yes")
    assert missing.code == 1
    assert "Notification not found: delivery@1" in missing.err
    malformed = aviso("admin", "delete", "delivery", "--yes")
    assert malformed.code == 1
    assert "suggestion: the notification id is malformed." in malformed.err
    assert aviso("admin", "wipe-stream", "Delivery", "--yes").code == 0
    assert replayed(aviso, *stored) == []
    unknown = aviso("admin", "wipe-stream", "nope", "--yes")
    assert unknown.code == 1
    assert "Stream not found: nope" in unknown.err
    server.client.publish("delivery", {"customer": "ann", "item": 1}, "c")
    assert [line["sequence"] for line in replayed(aviso, *stored)] == [3]
    assert aviso("admin", "wipe-all", "--yes").code == 0
    assert replayed(aviso, *stored) == []


STORM = "event=storm,region=south,severity=4,anomaly=1,run_time=6,day=2025-07-06"


@pytest.mark.parametrize(
    ("parameters", "words", "hint"),
    [
        ("event=nope,a=b", "unknown event type 'nope'", "the event_type is not configured on the server"),
        ("event=delivery,customer=ann,data=1", "missing for notify operation", "every identifier listed in the schema"),
        ("event=delivery,customer=somebody else,item=1,data=1", "exceeds maximum length", "max_length"),
        (STORM.replace("south", "up"), "Allowed: [north, south, east, west]", "enum identifier value"),
        (STORM.replace("severity=4", "severity=8"), "outside allowed range [1, 7]", "numeric identifier value"),
        (STORM.replace("07-06", "02-30"), "contains invalid date", "date identifier value did not parse"),
        (STORM.replace("run_time=6", "run_time=25"), "invalid hours", "time identifier value out of range"),
        (STORM.replace("run_time=6", "run_time=12:60"), "invalid minutes", "time identifier value out of range"),
        ('event=area,name=x,polygon="1,2,3"', "odd number of values", "must come in lat,lon pairs"),
        ('event=area,name=x,polygon="a,2,3,4,5,6,a,2"', "could not parse latitude", "must be a number"),
        ('event=area,name=x,polygon="1,b,3,4,5,6,1,b"', "could not parse longitude", "must be a number"),
        ('event=area,name=x,polygon="0,0,1,0,0,0"', "at least 4 coordinate pairs", "3 unique vertices"),
        ('event=area,name=x,polygon="91,0,0,1,1,1,91,0"', "outside the valid range", "latitude must be in [-90, 90]"),
        ("event=area,name=x,polygon=", "polygon coordinate string is empty", "polygon value cannot be empty"),
    ],
    ids=lambda text: text[:40],
)
def test_hints_of_notify(aviso: AvisoCommand, parameters: str, words: str, hint: str) -> None:
    finished = aviso("notify", parameters)
    assert finished.code == 1
    assert words in finished.err
    [suggestion] = [line for line in finished.err.splitlines() if line.startswith("suggestion: ")]
    assert hint in suggestion


@pytest.mark.parametrize(
    ("arguments", "words", "hint"),
    [
        (["nope", "--identifiers", "{}"], "unknown event type 'nope'", "the event_type is not configured"),
        (["delivery", "--identifiers", "{}"], "missing for watch operation", "with `required: true` must appear"),
        (["area", "--identifier", "polygon=1,2,3"], "odd number of values", "must come in lat,lon pairs"),
        (["storm", "--identifier", "severity=8"], "outside allowed range [1, 7]", "numeric identifier value"),
        (["storm", "--identifier", "region=up"], "Allowed: [north, south, east, west]", "enum identifier value"),
        (["storm", "--identifier", "day=x"], "invalid date", "date identifier value did not parse"),
        (["storm", "--identifier", "colour=red"], "Unknown field 'colour'", ""),
        (["storm", "--identifier", 'severity:={"gte":1,"lt":5}'], "exactly one operator", ""),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_listen_shows_the_servers_words(aviso: AvisoCommand, arguments: list[str], words: str, hint: str) -> None:
    finished = aviso("listen", "--event", *arguments)
    assert finished.code == 1
    assert "unrecognized response body" not in finished.err
    [error] = [line for line in finished.err.splitlines() if line.startswith("Error in listener")]
    assert words in error
    assert '"request_id":"' in error
    assert hint in "".join(line for line in finished.err.splitlines() if line.startswith("  Hint: "))


def test_replay_shows_the_servers_words(aviso: AvisoCommand) -> None:
    finished = aviso("replay", "--event", "delivery", "--identifiers", "{}", "--from", "0")
    assert finished.code == 1
    assert "missing for replay operation" in finished.err
    assert "suggestion: schema fields with `required: true` must be supplied" in finished.err
