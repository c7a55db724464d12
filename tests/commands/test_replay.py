"""`aviso-server replay`: what it asks for, what it prints, and when it admits failure."""

from __future__ import annotations

import json
import socket

import pytest
from click.testing import CliRunner, Result

from aviso_server.cli import main
from tests.commands.scripted import CLOSING, COMPLETED, STARTED, Script, frame, notification, serving

WHOLE = [
    STARTED,
    notification(1, {"a": [1, 2]}, port="oslo"),
    notification(7, None, port="den haag"),
    COMPLETED,
    CLOSING,
]


def run(script: Script, *arguments: str) -> Result:
    with serving(script) as url:
        return CliRunner().invoke(main, ["replay", "tide", "--url", url, *arguments])


def test_one_line_per_notification() -> None:
    result = run(Script(WHOLE))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        'tide@1  2031-04-05T06:07:08Z  port=oslo  {"a":[1,2]}',
        'tide@7  2031-04-05T06:07:08Z  port="den haag"  null',
    ]


def test_json_is_the_event_as_sent() -> None:
    result = run(Script(WHOLE), "--json")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event["id"] for event in events] == ["tide@1", "tide@7"]
    assert events[0]["data"] == {"identifier": {"port": "oslo"}, "payload": {"a": [1, 2]}}


def test_a_line_stays_a_line() -> None:
    result = run(Script([STARTED, notification(1, "\u2028\x9b31m", port="a\u2028b"), COMPLETED, CLOSING]))
    assert result.stdout == 'tide@1  2031-04-05T06:07:08Z  port="a\\u2028b"  "\\u2028\\x9b31m"\n'


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_frames_may_arrive_in_pieces(size: int) -> None:
    stream = b"".join([STARTED, notification(1, "line\u2028sep\x85arator\x0b"), notification(2), COMPLETED, CLOSING])
    result = run(Script([stream[i : i + size] for i in range(0, len(stream), size)]), "--json")
    assert result.exit_code == 0
    events = [json.loads(line) for line in result.stdout.strip("\n").split("\n")]
    assert [event["id"] for event in events] == ["tide@1", "tide@2"]
    assert events[0]["data"]["payload"] == "line\u2028sep\x85arator\x0b"


@pytest.mark.parametrize(
    ("arguments", "members"),
    [
        ([], {"identifier": {}, "from_id": "0"}),
        (["port=oslo", "kind=a=b"], {"identifier": {"port": "oslo", "kind": "a=b"}, "from_id": "0"}),
        (['level={"gte": 3}'], {"identifier": {"level": {"gte": 3}}, "from_id": "0"}),
        (["--filter", '{"level": 3}', "port=oslo"], {"identifier": {"level": 3, "port": "oslo"}, "from_id": "0"}),
        (["--from", "5", "--to", "tide@9"], {"identifier": {}, "from_id": "5", "to_id": "9"}),
        (
            ["--from", "2031-04-05T06:07:08Z", "--to", "2031-04-06 01:02:03"],
            {"identifier": {}, "from_date": "2031-04-05T06:07:08Z", "to_date": "2031-04-06 01:02:03"},
        ),
        (
            ["--from", "2031-04-05", "--to", "2031-04-05"],
            {"identifier": {}, "from_date": "2031-04-05T00:00:00Z", "to_date": "2031-04-05T23:59:59.999999999Z"},
        ),
    ],
)
def test_what_is_asked(arguments: list[str], members: dict[str, object]) -> None:
    script = Script(WHOLE)
    assert run(script, *arguments).exit_code == 0
    assert script.requests == [("/api/v1/replay", {"event_type": "tide", **members})]


@pytest.mark.parametrize(
    "arguments",
    [
        ["port"],
        ["=x"],
        ["port=a", "port=b"],
        ["--filter", "[]"],
        ["--filter", "{"],
        ['level={"gte":'],
        ["level=[1"],
        ["--url", "ftp://x"],
        ["--nobody"],
    ],
)
def test_wrong_usage(arguments: list[str]) -> None:
    script = Script(WHOLE)
    assert run(script, *arguments).exit_code == 2
    assert script.requests == []


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([STARTED, notification(1), CLOSING], ["before the replay was complete", "tide@1"]),
        ([STARTED, notification(1)], ["before the replay was complete", "tide@1"]),
        ([STARTED, notification(1), notification(2)[:-5]], ["before the replay was complete", "tide@1"]),
        ([STARTED, frame("error", error="stream_processing_failed", message="disk gone")], ["disk gone"]),
        (
            [
                STARTED,
                notification(4),
                frame("replay-control", type="notification_replay_limit_reached", max_allowed=1),
            ],
            ["stops after 1", "tide@4"],
        ),
        ([STARTED, b"event: replay\ndata: {\n\n"], ["cannot be read"]),
        ([], ["before the replay was complete"]),
    ],
)
def test_an_incomplete_replay_is_a_failure(chunks: list[bytes], words: list[str]) -> None:
    result = run(Script(chunks))
    assert result.exit_code == 1
    assert all(word in result.stderr for word in words)


def test_a_refusal_is_passed_on() -> None:
    body = json.dumps({"code": "INVALID_REPLAY_REQUEST", "message": "Unknown field 'x'", "details": "known: port"})
    result = run(Script([body.encode()], 400, "application/json"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "aviso-server: Unknown field 'x' (known: port)\n"


def test_a_refusal_without_words() -> None:
    result = run(Script([b""], 404, "text/plain"))
    assert result.exit_code == 1
    assert "404" in result.stderr


def test_something_else_answers() -> None:
    result = run(Script([b"<html>"], 200, "text/html"))
    assert result.exit_code == 1
    assert "not an aviso server" in result.stderr


def test_nobody_answers() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner().invoke(main, ["replay", "tide", "--url", url])
    assert result.exit_code == 1
    assert url in result.stderr
    assert "aviso-server serve" in result.stderr
