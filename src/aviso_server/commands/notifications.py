"""`aviso-server publish`, `watch` and `replay`: notifications to and from a running server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, NoReturn, TypeVar

import click
import httpx
import msgspec

from aviso_server.commands.server_connection import Server, refusal, server_options
from aviso_server.commands.terminal import ReplayProgress, fail, print_result
from aviso_server.model.json_text import printable

__all__ = [
    "Frame",
    "ReceivedEvent",
    "as_line",
    "filter_option",
    "frames",
    "history_options",
    "publish",
    "read_identifier",
    "read_limits",
    "replay",
    "watch",
]

F = TypeVar("F", bound=Callable[..., Any])

_SEQUENCE = re.compile(r"(?:[^@]+@)?([0-9]+)", re.ASCII)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_LENIENT = {"prefer": "handling=lenient"}  # our server then lets required fields be left out; others ignore it
_LONGEST_WAIT = 30.0  # seconds between two attempts to reach a server that is away
_LONGEST_VARIABLE = 65_536  # bytes; the system refuses to start a command with a longer one
_INTERRUPTED = 130

_event_type = click.argument("event_type")
_fields = click.argument("fields", nargs=-1, metavar="[KEY=VALUE]...")
_start_option = click.option(
    "--from", "start", default="0", metavar="ID|DATE", help="First notification.  [default: the oldest]"
)
_end_option = click.option("--to", "end", metavar="ID|DATE", help="Last notification, included.  [default: the newest]")
filter_option = click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="KEY=VALUE|JSON",
    help="A field to ask for, or several as a JSON object. May be repeated.",
)
_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print each notification as a CloudEvent, one per line."
)


def history_options(command: F) -> F:
    """Add EVENT_TYPE, KEY=VALUE, `--from`, `--to`, `--filter` and `--json`."""
    for option in (_json_option, filter_option, _end_option, _start_option, _fields, _event_type):
        command = option(command)
    return command


class EventData(msgspec.Struct, frozen=True):
    """The identifier and payload of a notification."""

    identifier: dict[str, Any]
    payload: Any


class ReceivedEvent(msgspec.Struct, frozen=True):
    """The members of a CloudEvent that are printed."""

    id: str
    time: str
    data: EventData

    @property
    def sequence(self) -> int:
        """The number behind the `@` of the id; 0 if there is none."""
        digits = self.id.rpartition("@")[2]
        return int(digits) if digits.isascii() and digits.isdecimal() else 0


def read_identifier(given: tuple[str, ...], fields: tuple[str, ...], option: str = "--filter") -> dict[str, Any]:
    """Join what an option and KEY=VALUE say into one identifier."""
    identifier: dict[str, Any] = {}
    for text in given:
        if text.lstrip().startswith("{"):
            try:
                members = msgspec.json.decode(text, type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise click.BadParameter(f"not a JSON object: {error}", param_hint=option) from None
        else:
            members = dict([_field(text, option)])
        _join(identifier, members, option)
    for text in fields:
        _join(identifier, dict([_field(text, "KEY=VALUE")]), "KEY=VALUE")
    return identifier


def _join(identifier: dict[str, Any], members: dict[str, Any], hint: str) -> None:
    for key, value in members.items():
        if key in identifier:
            raise click.BadParameter(f"'{key}' is given twice", param_hint=hint)
        identifier[key] = value


def _field(text: str, hint: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        accepted = "KEY=VALUE or a JSON object" if hint.startswith("--") else "KEY=VALUE"
        raise click.BadParameter(f"'{text}' is not of the form {accepted}", param_hint=hint)
    if not value.startswith(("{", "[")):
        return key, value
    try:
        return key, msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        reason = f"the value of '{key}' starts like JSON but is none: {error}"
        message = f'{reason}; give such text in a JSON object, as in {{"{key}": "[…"}}'
        raise click.BadParameter(message, param_hint=hint) from None


def read_limits(start: str, end: str | None) -> dict[str, str]:
    """Return the members of a request for a start and an end."""
    limits = _limit("from", start, "T00:00:00Z")
    return limits if end is None else {**limits, **_limit("to", end, "T23:59:59.999999999Z")}


def _limit(name: str, text: str, time_of_day: str) -> dict[str, str]:
    sequence = _SEQUENCE.fullmatch(text)
    if sequence is not None:
        return {f"{name}_id": sequence[1]}
    return {f"{name}_date": text + time_of_day if _DAY.fullmatch(text) else text}


def as_line(event: ReceivedEvent) -> str:
    """Format a notification for people: id, time, identifier, payload."""
    fields = " ".join(f"{key}={_shown(value)}" for key, value in event.data.identifier.items())
    return printable(f"{event.id}  {event.time}  {fields}  {_shown(event.data.payload, quoted=True)}")


def _shown(value: Any, quoted: bool = False) -> str:
    if isinstance(value, str) and not quoted and value.isprintable() and " " not in value:
        return value
    return msgspec.json.encode(value).decode()


@click.command()
@_event_type
@_fields
@click.option(
    "--identifier",
    "members",
    multiple=True,
    metavar="KEY=VALUE|JSON",
    help="A field of the identifier, or several as a JSON object. May be repeated.",
)
@click.option("--payload", metavar="JSON", help="The payload; - reads it from stdin.")
@click.option(
    "--key", metavar="TEXT", help="Idempotency key: under the same key it is stored once, however often sent."
)
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print the server's answer as one JSON object.")
def publish(
    server: Server,
    event_type: str,
    fields: tuple[str, ...],
    members: tuple[str, ...],
    payload: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Publish a notification of EVENT_TYPE; returns when the server has stored it.

    \b
    Examples:
      aviso-server publish mars class=od expver=1 domain=g date=20250706 time=12 stream=oper step=6
      aviso-server publish test_polygon date=20250706 time=12 polygon=46,8,46,9,47,9,46,8 --payload '"snow"'
      echo '{"location": "s3://bucket/field"}' | aviso-server publish mars class=od … --payload -
      aviso-server publish mars --identifier '{"class": "od", …}' --key job-4711 --json

    \b
    Exit codes: 0 stored, 1 the server is away or refused, 2 wrong usage.
    """
    request: dict[str, Any] = {"event_type": event_type, "identifier": read_identifier(members, fields, "--identifier")}
    if payload is not None:
        text = sys.stdin.read() if payload == "-" else payload
        try:
            request["payload"] = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            advice = """; text needs quotes of its own, as in '"text"'"""
            raise click.BadParameter(f"not JSON: {error}{advice}", param_hint="--payload") from None
    answer = server.ask(
        "POST", "/api/v1/notification", request, headers=None if key is None else {"idempotency-key": key}
    )
    print_result(answer, f"Stored at {answer.get('processed_at')}, request {answer.get('request_id')}.", as_json)


@click.command()
@server_options
@history_options
def replay(
    server: Server,
    event_type: str,
    fields: tuple[str, ...],
    start: str,
    end: str | None,
    filters: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print the stored notifications of EVENT_TYPE, oldest first.

    A start or an end is a sequence number (42 or mars@42) or a date (2025-06-09, 2025-06-09T13:15:00Z).
    A filter is given as KEY=VALUE, with --filter, or both; a value may be a constraint object. Fields that are left
    out may have any value.

    \b
    Examples:
      aviso-server replay mars
      aviso-server replay mars class=od 'step={"gte": 6}' --from 2025-06-09 --json
      aviso-server replay mars --filter '{"class": "od"}' --from 100 --to 200

    \b
    Exit codes: 0 all of it was printed, 1 the server is away, refused or stopped early, 2 wrong usage.
    """
    identifier = read_identifier(filters, fields)
    request = {"event_type": event_type, "identifier": identifier, **read_limits(start, end)}
    with (
        server.connected(_LENIENT) as client,
        client.stream("POST", "/api/v1/replay", json=request) as response,
        ReplayProgress() as progress,
    ):
        _print_replay(response, as_json, progress)


def _print_replay(response: httpx.Response, as_json: bool, progress: ReplayProgress) -> None:
    completed = False
    last = "none"
    try:
        for frame in _frames(response):
            if frame.event == "replay":
                event = msgspec.json.decode(frame.data, type=ReceivedEvent)
                last = event.id
                progress.advance(event.sequence)
                click.echo(frame.data if as_json else as_line(event))
                continue
            body = _control(frame, last)
            if body.get("type") == "replay_started" and isinstance(body.get("end_sequence"), int):
                progress.expect(body["end_sequence"])
            completed = completed or body.get("type") == "replay_completed"
    except msgspec.DecodeError as error:
        _unreadable(error, last)
    if not completed:
        fail(f"the stream ended before the replay was complete; last notification: {last}")


def _frames(response: httpx.Response) -> Iterator[Frame]:
    if response.status_code != 200:
        response.read()
        fail(refusal(response))
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        fail(f"what answers at {response.url} is not an aviso server")
    return frames(response.iter_bytes())


def _control(frame: Frame, last: str) -> dict[str, Any]:
    body = msgspec.json.decode(frame.data, type=dict[str, Any]) if frame.data else {}
    if frame.event == "error":
        fail(f"the server reports: {body.get('message') or body.get('error')}; last notification: {last}")
    if body.get("type") == "notification_replay_limit_reached":
        fail(f"the server stops after {body.get('max_allowed')} notifications; continue with --from after {last}")
    return body


def _unreadable(error: msgspec.DecodeError, last: str) -> NoReturn:
    fail(f"the server sent a frame that cannot be read: {error}; last notification: {last}")


@click.command()
@_event_type
@_fields
@filter_option
@click.option("--from", "start", metavar="ID|DATE", help="Print stored notifications from here first.")
@click.option("--exec", "command", metavar="COMMAND", help="Run this with the shell for every notification.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many notifications.")
@server_options
@_json_option
def watch(
    server: Server,
    event_type: str,
    fields: tuple[str, ...],
    filters: tuple[str, ...],
    start: str | None,
    command: str | None,
    count: int | None,
    as_json: bool,
) -> None:
    """Print the notifications of EVENT_TYPE as they are published, until stopped with Ctrl-C.

    Reconnects when the server ends the connection or goes away, and continues where it left off. With --exec the
    command gets AVISO_ID, AVISO_TIME, AVISO_EVENT_TYPE, AVISO_PAYLOAD (JSON) and AVISO_FIELD_NAME for every field in
    its environment, and the whole CloudEvent on stdin; one command runs after the other, and one that fails is
    reported.

    \b
    Examples:
      aviso-server watch mars class=od
      aviso-server watch mars class=od --filter 'step={"gte": 6}' --from 2025-06-09 --json
      aviso-server watch mars class=od --exec 'fetch.sh "$AVISO_FIELD_DATE" "$AVISO_FIELD_STEP"'

    \b
    Exit codes: 0 --count was reached, 1 the server is away or refused, 2 wrong usage, 130 stopped with Ctrl-C.
    """
    request = {"event_type": event_type, "identifier": read_identifier(filters, fields)}
    feed = _Feed(request, {} if start is None else read_limits(start, None))
    try:
        for number, data in enumerate(feed.follow(server), 1):
            event = msgspec.json.decode(data, type=ReceivedEvent)
            click.echo(data if as_json else as_line(event))
            if command is not None:
                _run(command, event_type, event, data)
            if number == count:
                return
    except msgspec.DecodeError as error:
        _unreadable(error, feed.last)
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None


class _Feed:
    """A watch that survives the end of its connection."""

    def __init__(self, request: dict[str, Any], limits: dict[str, str]) -> None:
        self.last = "none"
        self._request = request
        self._limits = limits
        self._reached = False  # True once the server has answered: from then on it is waited for

    def follow(self, server: Server) -> Iterator[bytes]:
        """Yield the notifications as they come, as JSON."""
        wait = 0.0
        with server.connected() as client:
            while True:
                before = self._limits
                try:
                    body = {**self._request, **self._limits}
                    with client.stream("POST", "/api/v1/watch", json=body) as response:
                        if not (self._reached and response.status_code >= 500):
                            yield from self._read(response)
                except httpx.TransportError as error:
                    if not self._reached:
                        raise
                    reason = str(error) or type(error).__name__
                    click.echo(f"aviso-server: no connection to {server.url} ({reason}); trying again", err=True)
                wait = 0.0 if self._limits != before else min(max(1.0, 2 * wait), _LONGEST_WAIT)
                time.sleep(wait)

    def _read(self, response: httpx.Response) -> Iterator[bytes]:
        live = False  # False while stored notifications are being sent
        for frame in _frames(response):
            self._reached = True
            body = _control(frame, self.last)
            if "specversion" in body:
                event = msgspec.json.decode(frame.data, type=ReceivedEvent)
                self.last, self._limits = event.id, {"from_id": str(event.sequence + 1)}
                yield frame.data
            live = live or body.get("type") in ("connection_established", "replay_completed")
            if live and self.last == "none" and isinstance(body.get("timestamp"), str):
                # nothing has come until now, so nothing before now is missed
                self._limits = {"from_date": body["timestamp"]}


def _run(command: str, event_type: str, event: ReceivedEvent, data: bytes) -> None:
    variables = {"ID": event.id, "TIME": event.time, "EVENT_TYPE": event_type}
    variables["PAYLOAD"] = msgspec.json.encode(event.data.payload).decode()
    for name, value in event.data.identifier.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        variables["FIELD_" + re.sub(r"[^A-Z0-9_]", "_", name.upper())] = text.replace("\0", "")
    given = {f"AVISO_{name}": text for name, text in variables.items() if len(text.encode()) <= _LONGEST_VARIABLE}
    ended = subprocess.run(command, shell=True, check=False, input=data, env={**os.environ, **given})
    if ended.returncode:
        click.echo(f"aviso-server: --exec ended with code {ended.returncode} for {event.id}", err=True)


class Frame(NamedTuple):
    """One event of a stream: its name and its data as sent."""

    event: str
    data: bytes


def frames(chunks: Iterable[bytes]) -> Iterator[Frame]:
    """Yield the complete frames of a stream, however it was cut into chunks; drop an unfinished last one.

    Lines end with LF only: other line separators may stand unescaped inside JSON text.
    """
    rest: list[bytes] = []
    tail = b""
    for chunk in chunks:
        if b"\n\n" not in tail + chunk:
            rest.append(chunk)
            tail = chunk[-1:] or tail
            continue
        *complete, last = b"".join([*rest, chunk]).split(b"\n\n")
        rest, tail = [last], last[-1:]
        for block in complete:
            yield _frame(block)


def _frame(block: bytes) -> Frame:
    event, data = "", []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            event = value.decode("utf-8", "replace")
        elif name == b"data":
            data.append(value)
    return Frame(event, b"\n".join(data))
