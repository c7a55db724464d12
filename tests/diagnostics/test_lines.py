"""Records as lines: the form, the levels, no secrets, no floods."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from aviso_server.config.log_level import log_level
from aviso_server.config.settings import Deployment, Settings
from aviso_server.diagnostics import configure
from aviso_server.diagnostics.flood import Floodgate
from aviso_server.diagnostics.lines import JsonFormatter, TerminalFormatter
from aviso_server.diagnostics.tally import Records


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
    now, records = [0.0], Records()
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
    levels, warning = log_level(environ, "info")
    assert (levels.level, dict(levels.modules), warning) == (level, modules, None)


def test_levels_that_cannot_be_read_change_nothing() -> None:
    levels, warning = log_level({"AVISOSERVER_LOG": "info,x=loud"}, "warn")
    assert levels.level == "warn"
    assert warning is not None
    assert warning.startswith("AVISOSERVER_LOG")


def test_modules_may_say_more_or_less() -> None:
    stream = io.StringIO()
    configure(Settings(log_level="warn", log_levels={"aviso_server.delivery": "debug"}), stream)
    logging.getLogger("aviso_server.http").info("quiet")
    logging.getLogger("aviso_server.delivery.hub").debug("talkative")
    assert [json.loads(line)["body"] for line in stream.getvalue().splitlines()] == ["talkative"]
