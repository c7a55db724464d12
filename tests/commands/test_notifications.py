"""`aviso-server publish`, `watch` and `replay`: against a real server, and against one that plays a script."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from aviso_server.cli import main
from tests.commands.scripted import CLOSING, COMPLETED, STARTED, Script, frame, notification, serving
from tests.harness.metrics import free_port
from tests.harness.server import Server

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


def test_all_faults_are_passed_on() -> None:
    errors = [{"field": "x", "message": "Unknown field 'x'"}, {"field": "y", "message": "Unknown field 'y'"}]
    body = json.dumps({"code": "INVALID_REPLAY_REQUEST", "message": "Unknown field 'x'", "errors": errors})
    result = run(Script([body.encode()], 400, "application/json"))
    assert result.stderr == "aviso-server: 2 things are wrong:\n  Unknown field 'x'\n  Unknown field 'y'\n"


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


CONFIG = {
    "application": {"port": 0},
    "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
    "notification_schema": {
        "tide": {
            "identifier": {
                "port": {"type": "StringHandler", "required": True},
                "level": {"type": "IntHandler", "range": [0, 9], "required": False},
            },
            "topic": {"base": "tide", "key_order": ["port", "level"]},
        }
    },
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Server(CONFIG, tmp_path_factory.mktemp("server")) as server:
        for port, level in (("oslo", 1), ("oslo", 5), ("bergen", 7)):
            body = {"event_type": "tide", "identifier": {"port": port, "level": level}, "payload": {"at": level}}
            httpx.post(f"{server.url}/api/v1/notification", json=body, trust_env=False).raise_for_status()
        yield server.url


def command(url: str, name: str, *arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, [name, "tide", "--url", url, *arguments], input=stdin)


def replay(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["replay", "tide", "--url", url, *arguments])


def ids(result: Result) -> list[str]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line)["id"] for line in result.stdout.splitlines()]


def test_schema_is_the_same_from_server_and_file(url: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(CONFIG), encoding="utf-8")  # JSON is YAML
    from_server = CliRunner().invoke(main, ["schema", "--url", url, "--json"])
    from_file = CliRunner().invoke(main, ["schema", "--config", str(file), "--json"])
    assert from_server.exit_code == 0
    assert json.loads(from_server.stdout) == json.loads(from_file.stdout)
    assert json.loads(from_server.stdout)["tide"]["identifier"]["level"]["range"] == [0, 9]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["port=oslo"], ["tide@1", "tide@2"]),
        (["--filter", '{"port": "bergen"}'], ["tide@3"]),
        (["port=oslo", 'level={"gte": 5}'], ["tide@2"]),
        (["port=*"], ["tide@1", "tide@2", "tide@3"]),
        (["port=*", "--from", "2"], ["tide@2", "tide@3"]),
        (["port=*", "--from", "tide@2", "--to", "2"], ["tide@2"]),
        (["port=*", "--from", "2001-01-01", "--to", "2001-12-31"], []),
        (["port=*", "--from", "2001-01-01"], ["tide@1", "tide@2", "tide@3"]),
        (["port=nowhere"], []),
        ([], ["tide@1", "tide@2", "tide@3"]),
        (["level=7"], ["tide@3"]),
        (["--filter", "port=oslo", "--filter", 'level={"gte": 5}'], ["tide@2"]),
    ],
)
def test_replay(url: str, arguments: list[str], expected: list[str]) -> None:
    assert ids(replay(url, *arguments, "--json")) == expected


def test_lines_for_people(url: str) -> None:
    [line] = replay(url, "port=bergen").stdout.splitlines()
    name, _, fields, payload = line.split("  ")
    assert (name, fields, payload) == ("tide@3", "level=7 port=bergen", '{"at":7}')


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(["ship=x"], "Unknown field 'ship'"), (["port=a", "--from", "junk"], "from_date")],
)
def test_refusals(url: str, arguments: list[str], word: str) -> None:
    result = replay(url, *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert word in result.stderr


def test_an_unknown_event_type(url: str) -> None:
    result = CliRunner().invoke(main, ["replay", "wave", "--url", url])
    assert result.exit_code == 1
    assert "unknown event type 'wave'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "payload"),
    [
        ([], None, None),
        (["--payload", '{"a": [1]}'], None, {"a": [1]}),
        (["--payload", "-"], '"text"\n', "text"),
    ],
)
def test_publish(url: str, arguments: list[str], stdin: str | None, payload: Any) -> None:
    name = f"port {uuid.uuid4()}"
    result = command(url, "publish", f"port={name}", "--identifier", '{"level": 4}', *arguments, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    assert re.fullmatch(r"Stored at [0-9T:-]+Z, request [0-9a-f-]{36}\.\n", result.stdout)
    [line] = replay(url, f"port={name}", "--json").stdout.splitlines()
    assert json.loads(line)["data"] == {"identifier": {"port": name, "level": "4"}, "payload": payload}


def test_publish_under_a_key_stores_once(url: str) -> None:
    name = f"port {uuid.uuid4()}"
    for _ in range(2):
        result = command(url, "publish", f"port={name}", "level=1", "--key", name, "--json")
        assert json.loads(result.stdout)["status"] == "success"
    assert len(replay(url, f"port={name}").stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["ship=x"], 1, "Unknown field 'ship'"),
        (["port=x", "--payload", "hello"], 2, "not JSON"),
        (["port=x", "port=y"], 2, "given twice"),
        (["--identifier", "x"], 2, "KEY=VALUE or a JSON object"),
    ],
)
def test_publish_refusals(url: str, arguments: list[str], code: int, word: str) -> None:
    result = command(url, "publish", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert word in result.stderr


def test_watch_from_the_past(url: str) -> None:
    lines = command(url, "watch", "port=oslo", "--from", "1", "--count", "2").stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["tide@1", "tide@2"]


def test_watch_goes_on_where_it_was_when_the_connection_ends(tmp_path: Path) -> None:
    """Every second the server ends the connection; nothing is lost or told twice."""
    config = {**CONFIG, "watch_endpoint": {"connection_max_duration_sec": 1}}
    with Server(config, tmp_path) as server:
        watching = subprocess.Popen(
            [sys.executable, "-m", "aviso_server", "watch", "tide", "port=*", "--url", server.url, "--count", "12"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            deadline = time.monotonic() + 60
            while "api.watch.stream.established" not in server.stdout:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            for number in range(12):
                server.client.publish("tide", {"port": str(number), "level": 1})
                opened = server.stdout.count("api.watch.stream.established")
                while number % 4 == 3 and number < 11 and server.stdout.count("api.watch.stream.established") == opened:
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
            out, _ = watching.communicate(timeout=60)
        finally:
            watching.kill()
    assert watching.returncode == 0
    assert [line.split("  ")[0] for line in out.splitlines()] == [f"tide@{number}" for number in range(1, 13)]


def _heed_interrupts() -> None:
    """Undo what a shell does to jobs in the background, of which these tests may be one: they ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_watch_waits_for_a_server_that_restarts_until_it_is_stopped(tmp_path: Path) -> None:
    config = {**CONFIG, "application": {"host": "127.0.0.1", "port": free_port()}}
    server = Server(config, tmp_path)
    server.start()
    command = [sys.executable, "-m", "aviso_server", "watch", "tide", "port=*", "--url", server.url, "--from", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_heed_interrupts
    ) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        try:
            server.client.publish("tide", {"port": "oslo", "level": 1})
            assert watching.stdout.readline().startswith("tide@1 ")
            server.stop()
            assert "trying again" in watching.stderr.readline()
            with Server(config, tmp_path) as restarted:
                restarted.client.publish("tide", {"port": "oslo", "level": 2})
                assert watching.stdout.readline().startswith("tide@2 ")
                watching.send_signal(signal.SIGINT)
                assert watching.wait(60) == 130
                assert "Traceback" not in watching.stderr.read()
        finally:
            watching.kill()
            server.stop()


def test_watch_asks_for_what_comes_after_the_last() -> None:
    stream = [STARTED, notification(4), COMPLETED, CLOSING]
    script = Script([part.replace(b'"id"', b'"specversion":"1.0","id"') for part in stream])
    with serving(script) as server:
        result = CliRunner().invoke(main, ["watch", "tide", "--url", server, "--count", "3", "--from", "2"])
    assert result.exit_code == 0, result.stderr
    asked = [body.get("from_id") for _, body in script.requests]
    assert asked == ["2", "5", "5"]


def test_exec_gets_the_notification_as_environment_and_on_stdin(url: str, tmp_path: Path) -> None:
    file = tmp_path / "told"
    program = f"""echo "$AVISO_ID $AVISO_EVENT_TYPE $AVISO_FIELD_PORT $AVISO_FIELD_LEVEL $AVISO_PAYLOAD" >> {file}
        cat >> {file}; exit 3"""
    result = command(url, "watch", "port=bergen", "--from", "3", "--count", "1", "--json", "--exec", program)
    assert result.exit_code == 0
    assert "--exec ended with code 3 for tide@3" in result.stderr
    variables, event = file.read_text().split("\n", 1)
    assert variables == 'tide@3 tide bergen 7 {"at":7}'
    assert event == result.stdout.removesuffix("\n")


def test_exec_is_safe_from_what_a_notification_holds(url: str, tmp_path: Path) -> None:
    name = f"$(touch {tmp_path / 'harm'}); \0 {uuid.uuid4()}"
    payload = json.dumps("x" * 200_000)  # more than a variable may hold
    identifier = json.dumps({"port": name, "level": 1})
    published = command(url, "publish", "--identifier", identifier, "--payload", payload)
    assert published.exit_code == 0, published.stderr
    program = f'printf "%s" "$AVISO_FIELD_PORT" > {tmp_path / "told"}; cat > {tmp_path / "event"}'
    wanted = ["--filter", json.dumps({"port": name}), "--from", "1", "--count", "1"]
    result = command(url, "watch", *wanted, "--exec", program)
    assert (result.exit_code, result.stderr) == (0, "")
    assert (tmp_path / "told").read_text() == name.replace("\0", "")
    assert len(json.loads((tmp_path / "event").read_text())["data"]["payload"]) == 200_000
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(("arguments", "code"), [(["ship=x"], 1), (["port=*", "--count", "0"], 2)])
def test_watch_refusals(url: str, arguments: list[str], code: int) -> None:
    assert command(url, "watch", *arguments).exit_code == code
