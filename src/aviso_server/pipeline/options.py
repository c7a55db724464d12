"""The options of the `aviso` data source, read and checked in one place."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from aviso_server.errors import InvalidRequest, PipelineError
from aviso_server.model.span import read_end, read_start

__all__ = ["OPTIONS", "Options", "read_options"]

OPTIONS: Mapping[str, str] = {
    "url": "Address of the server, such as http://127.0.0.1:8000",
    "event_type": "One event type, or several separated by commas; for writing, what rows without that column are",
    "identifier": "A filter as a JSON object, as in a replay request",
    "from_id": "First sequence, included; default: the oldest",
    "from_date": "First point in time, included; instead of from_id",
    "to_id": "Last sequence, included; batch reads only; default: the newest when the query is planned",
    "to_date": "Last point in time, included; instead of to_id",
    "token": "A bearer token",
    "username": "Together with `password`: credentials for basic authentication",
    "password": "See `username`",
    "partitions": "Into how many partitions each event type is cut; default: by rows_per_partition",
    "rows_per_partition": "Sequences per partition; default: 250000",
    "max_rows_per_batch": "Streaming: sequences per micro-batch and at most; default: no limit",
    "poll_interval": "Streaming: seconds between two questions for news when there are none; default: 0.5",
    "fail_on_data_loss": "Streaming: stop when retention removed what was not read yet; default: true",
    "timeout": "Seconds to wait for the server to say something; default: 300",
    "retries": "How often a broken connection is made again without progress; default: 5",
    "connections": "Writing: connections to publish over; more than 1 gives up the order of rows; default: 1",
    "write_id": "Writing: a name for this write; what was published under it before is not published again. "
    "Default: a new one for a batch, the query and its micro-batch for a stream",
    "ledger": "Streaming writes: folder of the ledger that prevents duplicates; default: in checkpointLocation",
}
"""Every option and what it means."""

_SPARKS = frozenset({"checkpointlocation", "outputmode", "path", "queryname"})
_MOST_SECONDS = 86_400.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one read or write; pickles, because readers and writers travel to workers with it."""

    url: str
    event_types: tuple[str, ...]
    identifier: dict[str, Any]
    from_id: str | None
    from_date: str | None
    to_id: str | None
    to_date: str | None
    token: str | None
    username: str | None
    password: str | None
    partitions: int | None
    rows_per_partition: int
    max_rows_per_batch: int | None
    poll_interval: float
    fail_on_data_loss: bool
    timeout: float
    retries: int
    connections: int
    write_id: str | None
    ledger: str | None

    @property
    def span(self) -> dict[str, str]:
        """Start and end as members of a replay request; a start is always there."""
        names = ("from_id", "from_date", "to_id", "to_date")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return given if "from_id" in given or "from_date" in given else {"from_id": "0", **given}


def read_options(given: Mapping[str, str]) -> Options:
    """The options of a read or write; PipelineError names the option and what is accepted."""
    values = {name.lower(): value for name, value in given.items()}
    _check_names(values)
    read = _Values(values)
    options = Options(
        url=read.url(),
        event_types=tuple(name.strip() for name in values.get("event_type", "").split(",") if name.strip()),
        identifier=read.identifier(),
        from_id=values.get("from_id"),
        from_date=values.get("from_date"),
        to_id=values.get("to_id"),
        to_date=values.get("to_date"),
        token=values.get("token"),
        username=values.get("username"),
        password=values.get("password"),
        partitions=read.whole("partitions") if "partitions" in values else None,
        rows_per_partition=read.whole("rows_per_partition", 250_000),
        max_rows_per_batch=read.whole("max_rows_per_batch") if "max_rows_per_batch" in values else None,
        poll_interval=read.seconds("poll_interval", 0.5),
        fail_on_data_loss=read.truth("fail_on_data_loss", True),
        timeout=read.seconds("timeout", 300.0),
        retries=read.whole("retries", 5, minimum=0),
        connections=read.whole("connections", 1),
        write_id=values.get("write_id") or None,
        ledger=values.get("ledger") or _default_ledger(values.get("checkpointlocation")),
    )
    try:
        read_end(read_start(options.from_id, options.from_date), options.to_id, options.to_date)
    except InvalidRequest as error:
        raise PipelineError(f"option '{error.field}': {error.message}") from None
    if (options.username is None) != (options.password is None):
        raise PipelineError("options 'username' and 'password' go together; one of them is missing")
    if options.token is not None and options.username is not None:
        raise PipelineError("options 'token' and 'username' exclude each other")
    return options


class _Values:
    """Option texts as values of a type."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def url(self) -> str:
        text = self._values.get("url")
        if text is None:
            raise PipelineError("option 'url' is missing: the address of a server, such as http://127.0.0.1:8000")
        try:
            parts = urlsplit(text)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            fits = False
        if not fits:
            raise PipelineError(f"option 'url': '{text}' is not an http or https address")
        if parts.username is not None or parts.password is not None:
            raise PipelineError(
                "option 'url': credentials do not belong there; use 'username' and 'password' or 'token'"
            )
        return text.rstrip("/")

    def identifier(self) -> dict[str, Any]:
        text = self._values.get("identifier", "{}")
        try:
            found: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise PipelineError(f"option 'identifier' must be a JSON object: {error}") from None
        return found

    def whole(self, name: str, default: int = 0, minimum: int = 1) -> int:
        text = self._values.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) >= minimum):
            raise PipelineError(f"option '{name}': '{text}' is not a whole number of at least {minimum}")
        return int(text)

    def seconds(self, name: str, default: float) -> float:
        text = self._values.get(name)
        try:
            number = default if text is None else float(text)
        except ValueError:
            number = -1.0
        if not 0 < number <= _MOST_SECONDS:
            raise PipelineError(f"option '{name}': '{text}' is not a number of seconds above 0")
        return number

    def truth(self, name: str, default: bool) -> bool:
        text = self._values.get(name, str(default)).lower()
        if text not in ("true", "false"):
            raise PipelineError(f"option '{name}': '{text}' is neither true nor false")
        return text == "true"


def _check_names(values: Mapping[str, str]) -> None:
    """Refuse what looks like a misspelt option of ours: a filter with a typo must never widen what is read."""
    for name in values:
        if (
            name not in OPTIONS
            and name not in _SPARKS
            and (near := difflib.get_close_matches(name.replace("-", "_"), OPTIONS, n=1, cutoff=0.75))
        ):
            raise PipelineError(f"unknown option '{name}'; did you mean '{near[0]}'?")


def _default_ledger(checkpoint: str | None) -> str | None:
    """A folder beside the checkpoint of the query; None if that is not on this machine's disk."""
    if not checkpoint:
        return None
    path = checkpoint.removeprefix("file://").removeprefix("file:")
    return None if ":" in path.split("/")[0] else f"{path.rstrip('/')}/aviso-ledger"
