"""`aviso-server replay`: print the history of an event type."""

from __future__ import annotations

import re
from typing import Any

import click
import httpx
import msgspec

from aviso_server.commands.client import (
    DEFAULT_URL,
    connected,
    credentials,
    refusal,
    token_option,
    url_option,
    user_option,
)
from aviso_server.commands.output import fail, printable
from aviso_server.commands.progress import Progress
from aviso_server.model.event_stream import Frame, frames

__all__ = ["replay"]

_SEQUENCE = re.compile(r"(?:[^@]+@)?([0-9]+)", re.ASCII)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


class _Data(msgspec.Struct, frozen=True):
    identifier: dict[str, Any]
    payload: Any


class _Event(msgspec.Struct, frozen=True):
    id: str
    time: str
    data: _Data

    @property
    def sequence(self) -> int:
        """The number behind the `@` of the id; 0 if there is none."""
        digits = self.id.rpartition("@")[2]
        return int(digits) if digits.isascii() and digits.isdecimal() else 0


@click.command()
@click.argument("event_type")
@click.argument("fields", nargs=-1, metavar="[KEY=VALUE]...")
@url_option
@token_option
@user_option
@click.option("--from", "start", default="0", metavar="ID|DATE", help="First notification.  [default: the oldest]")
@click.option("--to", "end", metavar="ID|DATE", help="Last notification, included.  [default: the newest]")
@click.option("--filter", "filter_text", metavar="JSON", help="The identifier to ask for, as a JSON object.")
@click.option("--json", "as_json", is_flag=True, help="Print each notification as a CloudEvent, one per line.")
def replay(
    event_type: str,
    fields: tuple[str, ...],
    url: str | None,
    token: str | None,
    user: str | None,
    start: str,
    end: str | None,
    filter_text: str | None,
    as_json: bool,
) -> None:
    """Print the stored notifications of EVENT_TYPE, oldest first.

    A start or an end is a sequence number (42 or mars@42) or a date (2025-06-09, 2025-06-09T13:15:00Z).
    A filter is given as KEY=VALUE, as JSON with --filter, or both; a value may be a constraint object.

    \b
    Examples:
      aviso-server replay mars class=od
      aviso-server replay mars class=od 'step={"gte": 6}' --from 2025-06-09 --json
      aviso-server replay mars --filter '{"class": "od"}' --from 100 --to 200

    \b
    Exit codes: 0 all of it was printed, 1 the server is away, refused or stopped early, 2 wrong usage.
    """
    request = {
        "event_type": event_type,
        "identifier": _identifier(filter_text, fields),
        **_limit("from", start, "T00:00:00Z"),
        **(_limit("to", end, "T23:59:59.999999999Z") if end is not None else {}),
    }
    with (
        connected(url or DEFAULT_URL, credentials(token, user)) as client,
        client.stream("POST", "/api/v1/replay", json=request) as response,
        Progress() as progress,
    ):
        _print(response, as_json, progress)


def _identifier(filter_text: str | None, fields: tuple[str, ...]) -> dict[str, Any]:
    identifier: dict[str, Any] = {}
    if filter_text is not None:
        try:
            identifier = msgspec.json.decode(filter_text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise click.BadParameter(f"not a JSON object: {error}", param_hint="--filter") from None
    for field in fields:
        key, separator, value = field.partition("=")
        if not separator or not key:
            raise click.BadParameter(f"'{field}' is not of the form KEY=VALUE", param_hint="KEY=VALUE")
        if key in identifier:
            raise click.BadParameter(f"'{key}' is given twice", param_hint="KEY=VALUE")
        identifier[key] = _value(value)
    return identifier


def _value(text: str) -> Any:
    if text.startswith(("{", "[")):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text
    return text


def _limit(name: str, text: str, time_of_day: str) -> dict[str, str]:
    sequence = _SEQUENCE.fullmatch(text)
    if sequence is not None:
        return {f"{name}_id": sequence[1]}
    return {f"{name}_date": text + time_of_day if _DAY.fullmatch(text) else text}


def _print(response: httpx.Response, as_json: bool, progress: Progress) -> None:
    if response.status_code != 200:
        response.read()
        fail(refusal(response))
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        fail(f"what answers at {response.url} is not an aviso server")
    completed = False
    last = "none"
    try:
        for frame in frames(response.iter_bytes()):
            if frame.event == "replay":
                event = msgspec.json.decode(frame.data, type=_Event)
                last = event.id
                progress.advance(event.sequence)
                click.echo(frame.data if as_json else _line(event))
            else:
                completed = _control(frame, last, progress) or completed
    except msgspec.DecodeError as error:
        fail(f"the server sent a frame that cannot be read: {error}; last notification: {last}")
    if not completed:
        fail(f"the stream ended before the replay was complete; last notification: {last}")


def _control(frame: Frame, last: str, progress: Progress) -> bool:
    body = msgspec.json.decode(frame.data, type=dict[str, Any]) if frame.data else {}
    if frame.event == "error":
        fail(f"the server reports: {body.get('message') or body.get('error')}; last notification: {last}")
    if body.get("type") == "notification_replay_limit_reached":
        fail(f"the server stops after {body.get('max_allowed')} notifications; go on with --from after {last}")
    if body.get("type") == "replay_started" and isinstance(body.get("end_sequence"), int):
        progress.expect(body["end_sequence"])
    return body.get("type") == "replay_completed"


def _line(event: _Event) -> str:
    fields = " ".join(f"{key}={_shown(value)}" for key, value in event.data.identifier.items())
    return printable(f"{event.id}  {event.time}  {fields}  {_shown(event.data.payload, quoted=True)}")


def _shown(value: Any, quoted: bool = False) -> str:
    if isinstance(value, str) and not quoted and value.isprintable() and " " not in value:
        return value
    return msgspec.json.encode(value).decode()
