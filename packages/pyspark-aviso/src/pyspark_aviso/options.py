"""The options of the `aviso` data source, read and checked in one place."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import urlsplit

from pyspark_aviso.errors import PipelineError

__all__ = ["ALIASES", "OPTIONS", "Options", "event_time", "instant", "read_options"]

ALIASES: Mapping[str, str] = {
    "from_id": "startingOffsets",
    "to_id": "endingOffsets",
    "partitions": "numPartitions",
    "max_rows_per_batch": "maxRecordsPerBatch",
    "fail_on_data_loss": "failOnDataLoss",
}
"""Other names of options; from_id and to_id are those of a replay request."""

_SPARKS = frozenset({"checkpointlocation", "outputmode", "path", "queryname"})
_MOST_SECONDS = 86_400.0
_HIGHEST = 2**64 - 1
_PLACES = {"earliest": "0", "latest": str(_HIGHEST)}

Start = Literal["earliest", "latest"] | int | Mapping[str, int]
End = Literal["latest"] | int | Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one read or write; pickles, because readers and writers travel to workers with it."""

    url: str
    event_types: tuple[str, ...] = ()
    identifier: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    start: Start = "earliest"
    end: End = "latest"
    from_date: str | None = None
    to_date: str | None = None
    token: str | None = None
    username: str | None = None
    password: str | None = None
    partitions: int | None = None
    rows_per_partition: int = 250_000
    max_rows_per_batch: int | None = None
    poll_interval: float = 0.5
    fail_on_data_loss: bool = True
    timeout: float = 300.0
    retries: int = 5
    connections: int = 1
    write_id: str | None = None
    ledger: str | None = None

    @property
    def has_end(self) -> bool:
        """Return whether the options say where reading ends."""
        return self.end != "latest" or self.to_date is not None

    def span(self, event_type: str) -> dict[str, str]:
        """Return start and end for an event type, as members of a replay request; a start is always there."""
        first = self.start.get(event_type, 0) if isinstance(self.start, Mapping) else self.start
        last = self.end.get(event_type) if isinstance(self.end, Mapping) else self.end
        start = (
            {"from_date": self.from_date}
            if self.from_date is not None
            else {"from_id": _PLACES.get(str(first), str(first))}
        )
        if self.to_date is not None:
            return {**start, "to_date": self.to_date}
        return {**start, "to_id": str(last)} if isinstance(last, int) else start


def read_options(given: Mapping[str, str]) -> Options:
    """Return the options of a read or write; PipelineError names the option and what is accepted."""
    said: dict[str, str] = {}
    read: dict[str, Any] = {}
    for key, text in given.items():
        name = _KNOWN.get(key.lower())
        if name is None:
            _check_name(key.lower())
            continue
        option = ALIASES.get(name, name)
        if option in said:
            raise PipelineError(f"options '{said[option]}' and '{name}' are the same: set one of them")
        said[option] = name
        attribute, reader = _READERS[option]
        read[attribute] = reader(name, text)
    if "url" not in said:
        raise PipelineError("option 'url' is missing: the address of a server, such as http://127.0.0.1:8000")
    for one, other in (("startingOffsets", "from_date"), ("endingOffsets", "to_date"), ("token", "username")):
        if one in said and other in said:
            raise PipelineError(f"options '{said[one]}' and '{other}' exclude each other")
    if ("username" in said) != ("password" in said):
        raise PipelineError("options 'username' and 'password' go together; one of them is missing")
    options = Options(**{"ledger": _default_ledger(given), **read})
    if isinstance(options.start, int) and isinstance(options.end, int) and options.end < options.start:
        words = f"option '{said['endingOffsets']}' ({options.end}) must not be lower than"
        raise PipelineError(f"{words} '{said['startingOffsets']}' ({options.start})")
    return options


def _text(name: str, text: str) -> str | None:
    return text or None


def _names(name: str, text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _url(name: str, text: str) -> str:
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise PipelineError(f"option 'url': '{text}' is not an http or https address")
    if parts.username is not None or parts.password is not None:
        raise PipelineError("option 'url': credentials do not belong there; use 'username' and 'password' or 'token'")
    return text.rstrip("/")


def _identifier(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PipelineError(f"option 'identifier' must be a JSON object: {error}") from None
    if not isinstance(found, dict):
        raise PipelineError(f"option 'identifier' must be a JSON object; got {text}")
    return found


def _offsets(*words: str) -> Callable[[str, str], Any]:
    """Reads one of the words, a sequence, or a sequence for each event type."""

    def read(name: str, text: str) -> Any:
        if text in words:
            return text
        if _is_sequence(text):
            return int(text)
        try:
            found = json.loads(text) if text.startswith("{") else None
        except (ValueError, RecursionError):
            found = None
        if found and all(_is_sequence(str(each)) for each in found.values()):
            return {event_type: int(each) for event_type, each in found.items()}
        raise PipelineError(
            f"option '{name}': '{text}' is not a place in a stream; accepted: {', '.join(words)}, a sequence such as "
            '42, or a JSON object with one for each event type, such as {"mars": 42}'
        )

    return read


def _is_sequence(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= _HIGHEST


def _date(name: str, text: str) -> str:
    try:
        return event_time(instant(text))
    except (ValueError, OverflowError):
        raise PipelineError(
            f"option '{name}': '{text}' is not a point in time; accepted: RFC 3339 such as 2025-01-15T10:00:00Z, "
            "a date and time without zone (UTC), Unix seconds or milliseconds"
        ) from None


def _whole(minimum: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) >= minimum):
            raise PipelineError(f"option '{name}': '{text}' is not a whole number of at least {minimum}")
        return int(text)

    return read


def _seconds(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number <= _MOST_SECONDS:
        raise PipelineError(f"option '{name}': '{text}' is not a number of seconds above 0")
    return number


def _truth(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise PipelineError(f"option '{name}': '{text}' is neither true nor false")
    return text.lower() == "true"


_READERS: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "url": ("url", _url),
    "event_type": ("event_types", _names),
    "identifier": ("identifier", _identifier),
    "columns": ("columns", _names),
    "startingOffsets": ("start", _offsets("earliest", "latest")),
    "endingOffsets": ("end", _offsets("latest")),
    "from_date": ("from_date", _date),
    "to_date": ("to_date", _date),
    "numPartitions": ("partitions", _whole(1)),
    "rows_per_partition": ("rows_per_partition", _whole(1)),
    "maxRecordsPerBatch": ("max_rows_per_batch", _whole(1)),
    "poll_interval": ("poll_interval", _seconds),
    "failOnDataLoss": ("fail_on_data_loss", _truth),
    "timeout": ("timeout", _seconds),
    "retries": ("retries", _whole(0)),
    "connections": ("connections", _whole(1)),
    **{name: (name, _text) for name in ("token", "username", "password", "write_id", "ledger")},
}
"""Option -> the attribute of `Options` and how its text is read."""

OPTIONS = tuple(_READERS)
"""Every option; docs/spark.md says what they mean."""

_KNOWN = {name.lower(): name for name in (*OPTIONS, *ALIASES)}


def _check_name(name: str) -> None:
    """Refuse what looks like a misspelt option of ours: a filter with a typo must never widen what is read."""
    near = difflib.get_close_matches(name.replace("-", "_"), _KNOWN, n=1, cutoff=0.75)
    if near and name not in _SPARKS:
        raise PipelineError(f"unknown option '{name}'; did you mean '{_KNOWN[near[0]]}'?")


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FRACTION = re.compile(r"(.*:[0-9]{2})[.]([0-9]+)(.*)", re.ASCII)


def instant(text: str) -> int:
    """Return a point in time in nanoseconds since 1970; ValueError if it is none."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return int(text) * 10 ** (9 if len(text) <= 11 else 6)  # seconds, or milliseconds
    found = _FRACTION.fullmatch(text)
    whole, fraction = (found[1] + found[3], found[2]) if found else (text, "")
    if ":" not in whole:
        raise ValueError("a day alone has no time")
    moment = datetime.fromisoformat(whole)
    elapsed = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - _EPOCH
    return (elapsed.days * 86_400 + elapsed.seconds) * 10**9 + int(fraction[:9].ljust(9, "0"))


def event_time(nanoseconds: int) -> str:
    """Return a point in time for a request: RFC 3339 to the nanosecond."""
    second, fraction = divmod(nanoseconds, 10**9)
    return f"{(_EPOCH + timedelta(seconds=second)).replace(tzinfo=None).isoformat()}.{fraction:09d}Z"


def _default_ledger(given: Mapping[str, str]) -> str | None:
    """Return a folder beside the checkpoint of the query; None if that is not on this machine's disk."""
    checkpoint = next((value for name, value in given.items() if name.lower() == "checkpointlocation"), None)
    if not checkpoint:
        return None
    path = checkpoint.removeprefix("file://").removeprefix("file:")
    return None if ":" in path.split("/")[0] else f"{path.rstrip('/')}/aviso-ledger"
