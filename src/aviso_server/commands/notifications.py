"""How commands ask for notifications and print them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from aviso_server.commands.output import printable

__all__ = ["Event", "as_line", "filter_option", "history_options", "read_identifier", "read_limits"]

F = TypeVar("F", bound=Callable[..., Any])

_SEQUENCE = re.compile(r"(?:[^@]+@)?([0-9]+)", re.ASCII)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)

_event_type = click.argument("event_type")
_fields = click.argument("fields", nargs=-1, metavar="[KEY=VALUE]...")
_start_option = click.option(
    "--from", "start", default="0", metavar="ID|DATE", help="First notification.  [default: the oldest]"
)
_end_option = click.option("--to", "end", metavar="ID|DATE", help="Last notification, included.  [default: the newest]")
filter_option = click.option(
    "--filter", "filter_text", metavar="JSON", help="The identifier to ask for, as a JSON object."
)
_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print each notification as a CloudEvent, one per line."
)


def history_options(command: F) -> F:
    """What a command prints of the past: EVENT_TYPE, KEY=VALUE, `--from`, `--to`, `--filter`, and how: `--json`."""
    for option in (_json_option, filter_option, _end_option, _start_option, _fields, _event_type):
        command = option(command)
    return command


class EventData(msgspec.Struct, frozen=True):
    """What an event is about and what it says."""

    identifier: dict[str, Any]
    payload: Any


class Event(msgspec.Struct, frozen=True):
    """A CloudEvent, as far as it is printed."""

    id: str
    time: str
    data: EventData

    @property
    def sequence(self) -> int:
        """The number behind the `@` of the id; 0 if there is none."""
        digits = self.id.rpartition("@")[2]
        return int(digits) if digits.isascii() and digits.isdecimal() else 0


def read_identifier(filter_text: str | None, fields: tuple[str, ...]) -> dict[str, Any]:
    """The identifier that --filter and KEY=VALUE ask for together."""
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
        identifier[key] = _value(key, value)
    return identifier


def _value(key: str, text: str) -> Any:
    if not text.startswith(("{", "[")):
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        message = f"the value of '{key}' starts like JSON but is none: {error}; text like this can be given in --filter"
        raise click.BadParameter(message, param_hint="KEY=VALUE") from None


def read_limits(start: str, end: str | None) -> dict[str, str]:
    """Start and end as members of a replay request."""
    return {
        **_limit("from", start, "T00:00:00Z"),
        **(_limit("to", end, "T23:59:59.999999999Z") if end is not None else {}),
    }


def _limit(name: str, text: str, time_of_day: str) -> dict[str, str]:
    sequence = _SEQUENCE.fullmatch(text)
    if sequence is not None:
        return {f"{name}_id": sequence[1]}
    return {f"{name}_date": text + time_of_day if _DAY.fullmatch(text) else text}


def as_line(event: Event) -> str:
    """A notification for people: id, time, identifier, payload."""
    fields = " ".join(f"{key}={_shown(value)}" for key, value in event.data.identifier.items())
    return printable(f"{event.id}  {event.time}  {fields}  {_shown(event.data.payload, quoted=True)}")


def _shown(value: Any, quoted: bool = False) -> str:
    if isinstance(value, str) and not quoted and value.isprintable() and " " not in value:
        return value
    return msgspec.json.encode(value).decode()
