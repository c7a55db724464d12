"""Log records: event names, the form, the levels, no secrets, no floods, and the newest warnings."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aviso_server.config.checks import log_level
from aviso_server.config.settings import Deployment, Settings
from aviso_server.diagnostics import configure
from aviso_server.diagnostics.log_records import (
    Floodgate,
    JsonFormatter,
    RecentRecords,
    RecordCounts,
    TerminalFormatter,
)


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    """Leave the logging of this process as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    named = {name: logging.getLogger(name).level for name in ("aviso_server", "aviso_server.delivery", "uvicorn")}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in named.items():
        logging.getLogger(name).setLevel(before)


def record(message: str = "something happened", level: int = logging.INFO, **extra: Any) -> logging.LogRecord:
    return logging.getLogger("aviso_server.test").makeRecord(
        "aviso_server.test", level, __file__, 1, message, (), None, "here", extra
    )


def as_json(line: logging.LogRecord, deployment: Deployment | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(JsonFormatter(deployment or Deployment()).format(line))
    return found


def test_form() -> None:
    line = as_json(record(event="api.x", request_id="r", topic="t"), Deployment(namespace="ns", pod="p"))
    assert set(line) == {"timestamp", "severityText", "severityNumber", "body", "resource", "attributes"}
    assert line["timestamp"].endswith("Z")
    assert len(line["timestamp"]) == 20
    assert line["body"] == "something happened"
    assert line["resource"]["service.name"] == "aviso-server"
    assert line["resource"]["k8s.namespace.name"] == "ns"
    assert line["resource"]["k8s.pod.name"] == "p"
    assert line["attributes"]["event.name"] == "api.x"
    assert line["attributes"]["request_id"] == "r"
    assert line["attributes"]["code.namespace"] == "aviso_server.test"


@pytest.mark.parametrize(
    ("level", "text", "number"),
    [(5, "TRACE", 1), (10, "DEBUG", 5), (20, "INFO", 9), (30, "WARN", 13), (40, "ERROR", 17)],
)
def test_severities(level: int, text: str, number: int) -> None:
    line = as_json(record(level=level))
    assert (line["severityText"], line["severityNumber"]) == (text, number)


def test_the_trace_stands_beside_the_attributes() -> None:
    line = as_json(record(traceId="a" * 32, spanId="b" * 16))
    assert (line["traceId"], line["spanId"]) == ("a" * 32, "b" * 16)
    assert "traceId" not in line["attributes"]


@pytest.mark.parametrize("name", ["password", "jwt_secret", "access_token", "Authorization", "api_key", "NATS_TOKEN"])
def test_secrets_by_name(name: str) -> None:
    extra: dict[str, Any] = {name: "hush", "nested": {name: "hush", "list": [{name: "hush"}]}}
    shown = json.dumps(as_json(record(**extra)))
    assert "hush" not in shown
    assert shown.count("[REDACTED]") == 3


@pytest.mark.parametrize(
    "text",
    [
        "asked nats://user:hush@broker:4222",
        "header was Authorization: Bearer hush.hush-hush",
        "sent basic aHVzaDpodXNoLWh1c2g=",
    ],
)
def test_secrets_in_texts(text: str) -> None:
    for line in (record(text), record(url=text)):
        for shown in (json.dumps(as_json(line)), TerminalFormatter().format(line)):
            assert "hush" not in shown
            assert "aHVz" not in shown


def test_secrets_in_exceptions() -> None:
    try:
        raise ConnectionError("cannot reach nats://user:hush@broker")
    except ConnectionError as error:
        line = record()
        line.exc_info = (type(error), error, error.__traceback__)
    shown = as_json(line)
    assert shown["attributes"]["error.type"] == "ConnectionError"
    assert "hush" not in json.dumps(shown)
    assert "hush" not in TerminalFormatter().format(line)


def test_what_comes_from_outside_stays_on_its_line() -> None:
    line = record("name \x1b[31m\nsecond", topic="a\x1b[2Jb")
    assert "\n" not in JsonFormatter(Deployment()).format(line)
    shown = TerminalFormatter().format(line)
    assert "\n" not in shown
    assert "\x1b[2J" not in shown
    assert "\x1b[31m\n" not in shown


def test_floods_are_cut_and_counted() -> None:
    now, records = [0.0], RecordCounts()
    gate = Floodgate(per_second=3, clock=lambda: now[0], records=records)
    assert [gate.filter(record(event="a")) for _ in range(5)] == [True, True, True, False, False]
    assert gate.filter(record(event="b")), "another event has its own count"
    assert gate.filter(record(event="a", level=logging.ERROR)), "and so has another level"
    now[0] = 1.5
    after = record(event="a")
    assert gate.filter(after)
    assert as_json(after)["attributes"]["suppressed"] == 2
    assert records.suppressed == 2


@pytest.mark.parametrize(
    ("environ", "level", "modules"),
    [
        ({}, "info", {}),
        ({"RUST_LOG": "debug"}, "debug", {}),
        ({"AVISOSERVER_LOG": "warn"}, "warn", {}),
        ({"RUST_LOG": "error", "AVISOSERVER_LOG": "warn"}, "error", {}),
        ({"RUST_LOG": " ", "AVISOSERVER_LOG": "warn"}, "warn", {}),
        (
            {"RUST_LOG": "info,aviso_server.delivery=debug,aviso_server::log=off"},
            "info",
            {"aviso_server.delivery": "debug", "aviso_server.log": "off"},
        ),
        ({"RUST_LOG": "aviso_server=trace"}, "trace", {"aviso_server": "trace"}),
    ],
)
def test_levels_by_environment(environ: dict[str, str], level: str, modules: dict[str, str]) -> None:
    assert log_level(environ, "info") == (level, modules, None)


def test_levels_that_cannot_be_read_change_nothing() -> None:
    level, modules, warning = log_level({"AVISOSERVER_LOG": "info,x=loud"}, "warn")
    assert (level, modules) == ("warn", {})
    assert warning is not None
    assert warning.key == "AVISOSERVER_LOG"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """True."""
        return True


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_gets_lines_for_people_with_or_without_colour(
    no_color: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    stream = Terminal()
    configure(Settings(), stream)
    logging.getLogger("aviso_server.http").warning("careful", extra={"topic": "tide"})
    line = stream.getvalue()
    assert not line.startswith("{")
    assert ("\x1b[" in line) is (no_color == "")
    if no_color:
        assert line.endswith(" WARN  careful topic=tide\n")


def test_modules_may_say_more_or_less() -> None:
    stream = io.StringIO()
    configure(Settings(log_level="warn", log_levels={"aviso_server.delivery": "debug"}), stream)
    logging.getLogger("aviso_server.http").info("quiet")
    logging.getLogger("aviso_server.delivery.hub").debug("talkative")
    assert [json.loads(line)["body"] for line in stream.getvalue().splitlines()] == ["talkative"]


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "logging.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([a-z_.]+)` \| (\w+) \| [^|]+ \|$", PAGE.partition("\n## Events\n")[2], re.MULTILINE)
EVENTS = dict(ROWS)  # the level of each event, by name

# the names that the contract asks to keep and that can happen here
CONTRACT = [
    "startup.configuration.dumped",
    "startup.configuration.loaded",
    "startup.server.started",
    "startup.signal.sigterm.received",
    "startup.shutdown.received",
    "startup.server.stopped",
    "configuration.schema_strict.explicit_disabled",
    "api.notification.processed",
    "api.watch.stream.established",
    "api.replay.stream.established",
    "api.schema.list.succeeded",
    "api.schema.get.succeeded",
    "api.request.parse.failed",
    "api.request.validation.failed",
    "api.request.processing.failed",
    "stream.sse.initialization.failed",
    "stream.replay.batch.failed",
    "admin.stream.wipe.requested",
    "admin.stream.wipe.succeeded",
    "admin.stream.wipe.failed",
    "admin.all.wipe.requested",
    "admin.all.wipe.succeeded",
    "admin.all.wipe.failed",
    "admin.notification.delete.succeeded",
    "admin.notification.delete.not_found",
    "admin.notification.delete.invalid_id",
    "admin.notification.delete.failed",
    "auth.middleware.request.denied",
    "auth.middleware.remote.validation.failed",
    "auth.ecpds.check.allowed",
    "auth.ecpds.check.denied",
    "auth.ecpds.check.unavailable",
    "auth.ecpds.check.error",
    "auth.ecpds.fetch.failed",
    "backend.in_memory.topic.evicted",
    "backend.jetstream.connection.retry",
    "backend.jetstream.stream.create.succeeded",
    "backend.jetstream.subscription.failed",
]


def used_names() -> Iterator[tuple[str, str]]:
    """Every event name in the sources as a regular expression, with the file it is in."""
    for path in (ROOT / "src" / "aviso_server").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "event":
                        yield from ((pattern, path.name) for pattern in _patterns(value))
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_failed":
                yield from ((pattern, path.name) for pattern in _patterns(node.args[0]))
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "_log":  # of an open stream
                yield from ((pattern, path.name) for pattern in _patterns(node.args[1]))
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "event":
                yield from ((pattern, path.name) for pattern in _patterns(node.value) if r"\." in pattern)


def _patterns(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield re.escape(node.value)
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"[a-z_.]+" for part in node.values
        )


def test_every_name_in_use_is_written_down() -> None:
    for pattern, file in used_names():
        assert any(re.fullmatch(pattern, name) for name in EVENTS), (
            f"{file} uses {pattern}, which docs/logging.md does not have"
        )


def test_every_name_written_down_is_in_use() -> None:
    patterns = {pattern for pattern, _ in used_names()}
    unused = [name for name in EVENTS if not any(re.fullmatch(pattern, name) for pattern in patterns)]
    assert unused == []


def test_the_names_of_the_contract_are_kept() -> None:
    assert [name for name in CONTRACT if name not in EVENTS] == []
    for name in ("api.request.parse.failed", "api.request.validation.failed"):
        assert EVENTS[name] == "warn"
    for name in ("api.request.processing.failed", "stream.sse.initialization.failed"):
        assert EVENTS[name] == "error"


def test_every_name_is_documented_once_with_its_level() -> None:
    assert len(ROWS) == len(EVENTS) > len(CONTRACT)
    assert set(EVENTS.values()) == {"debug", "info", "warn", "error"}


def recent_record(level: int, message: str, **more: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"levelno": level, "msg": message, **more})
    made.created = 1_751_803_200.5
    return made


def handled(records: RecentRecords, *given: logging.LogRecord) -> list[str]:
    logger = logging.getLogger("tests.recent")
    logger.addHandler(records)
    try:
        for each in given:
            logger.handle(each)
    finally:
        logger.removeHandler(records)
    return [each.message for each in records.newest_first()]


def test_only_warnings_and_errors_are_remembered_newest_first() -> None:
    records = RecentRecords()
    given = [recent_record(level, str(level)) for level in (10, 20, 30, 40)]
    assert handled(records, *given) == ["40", "30"]
    assert [each.level for each in records.newest_first()] == ["ERROR", "WARN"]


def test_the_oldest_are_forgotten() -> None:
    assert handled(RecentRecords(kept=2), *[recent_record(30, name) for name in "abc"]) == ["c", "b"]


def test_a_record_carries_when_and_which_request() -> None:
    records = RecentRecords()
    handled(records, recent_record(40, "disk full", event="log.failed", request_id="r-1"))
    (kept,) = records.newest_first()
    assert (kept.time, kept.event, kept.request_id) == ("2025-07-06T12:00:00.500Z", "log.failed", "r-1")


def test_credentials_are_left_out_and_long_messages_cut() -> None:
    (message,) = handled(RecentRecords(), recent_record(30, "sent Bearer abcdefghijkl to http://user:pw@host/"))
    assert "abcdefghijkl" not in message
    assert "pw" not in message
    (message,) = handled(RecentRecords(), recent_record(30, "x" * 10_000))
    assert len(message) == 500


def test_a_record_that_cannot_be_written_does_no_harm() -> None:
    records = RecentRecords()
    broken = recent_record(30, "%d")
    broken.args = ("text",)
    before, logging.raiseExceptions = logging.raiseExceptions, False
    try:
        assert handled(records, broken, recent_record(30, "fine")) == ["fine"]
    finally:
        logging.raiseExceptions = before
