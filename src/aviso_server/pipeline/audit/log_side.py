"""The log as an audit sees it: through a server and the `aviso` data source, whichever server that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import httpx
import msgspec
from pyspark.sql import DataFrame, SparkSession

from aviso_server.errors import PipelineError
from aviso_server.model.schema import EventType
from aviso_server.pipeline.archive.streams import LogStream, fetch_streams
from aviso_server.pipeline.catalogue import AnyType, event_types, fetch_catalogue
from aviso_server.pipeline.connection import connect
from aviso_server.pipeline.options import Options
from aviso_server.pipeline.planning import Planner

__all__ = ["ROW", "LogView", "ServerLog"]

ROW = "sequence bigint, time_ns bigint, topic string, identifier string, payload string"
"""What makes a notification, as a schema for Spark."""


class LogView(msgspec.Struct, frozen=True):
    """What a server says of one stream."""

    stream: str
    event_type: str
    first: int  # oldest sequence in the log
    last: int  # newest sequence that was given out
    trimmed: int = 0  # newest sequence that the log's own limits have removed
    start: int = 1  # from here on replays are read from the log
    whole: bool = True  # the server says what it has removed, so that every gap can be told
    problem: str | None = None  # why nothing can be said of it


class _Archive(msgspec.Struct, frozen=True):
    log_waits: bool = False


class _Ready(msgspec.Struct, frozen=True):
    archive: _Archive | None = None


class ServerLog:
    """Asks one server. What only our own servers know is None of others."""

    def __init__(self, options: Options, configured: Sequence[EventType]) -> None:
        self._options = options
        self._catalogue = fetch_catalogue(options)
        self._configured = {each.name: each for each in configured}
        self.lists_streams = True
        self.archives = False  # the server has an archive, and reads from it what its log has let go of
        self.log_waits = False  # and its log lets go only of what is archived
        self._look()

    def streams(self, names: Sequence[str]) -> dict[str, LogView]:
        """The streams of these names or event types, all if none are named; PipelineError if there is no such one."""
        found = self._listed() if self.lists_streams else self._searched(names)
        if not names:
            return found
        chosen = {stream: each for stream, each in found.items() if stream in names or each.event_type in names}
        known = {*chosen, *(each.event_type for each in chosen.values())}
        for name in names:
            if name not in known:
                there = ", ".join(sorted(found)) or "none"
                raise PipelineError(f"there is no stream '{name}'; streams: {there}")
        return chosen

    def again(self, view: LogView) -> LogView:
        """The same stream as it is now."""
        return self._listed().get(view.stream, view) if self.lists_streams else view

    def kind(self, view: LogView) -> tuple[AnyType, bool]:
        """The event type of a stream, and whether it is known how its topics are laid out.

        A server does not describe that; the configuration does, if it is the one of this server.
        """
        described = event_types([view.event_type], self._catalogue)[view.event_type]
        if not isinstance(described, EventType):
            return described, True
        mine = self._configured.get(view.event_type)
        if mine is not None and mine.fields.keys() == described.fields.keys() and _same_fields(mine, described):
            return mine, mine.base == view.stream or not self.lists_streams
        return described, False

    def rows(self, session: SparkSession, view: LogView, first: int, last: int) -> DataFrame:
        """The notifications from one sequence to another."""
        given = {"url": self._options.url, "event_type": view.event_type, "from_id": str(first), "to_id": str(last)}
        for name in ("token", "username", "password"):
            if (value := getattr(self._options, name)) is not None:
                given[name] = value
        return session.read.format("aviso").schema(ROW).options(**given).load()

    def _look(self) -> None:
        with connect(self._options) as client:
            try:
                self.lists_streams = client.get("/api/v1/streams").status_code != 404
                ready = msgspec.json.decode(client.get("/ready").content, type=_Ready)
            except httpx.HTTPError as error:
                reason = str(error) or type(error).__name__
                raise PipelineError(f"no server answers at {self._options.url}: {reason}") from None
            except msgspec.DecodeError:
                ready = _Ready()
        if self.lists_streams and ready.archive is not None:
            self.archives, self.log_waits = True, ready.archive.log_waits

    def _listed(self) -> dict[str, LogView]:
        with connect(self._options) as client:
            return {name: self._view(each) for name, each in fetch_streams(client).items()}

    def _view(self, held: LogStream) -> LogView:
        """With an archive behind it, replays up to `trimmed` come from there.

        Without one nobody keeps a record of wipes, and what lies before the oldest may have been wiped.
        """
        if self.archives:
            return LogView(held.stream, held.event_type, held.first, held.last, held.trimmed, held.trimmed + 1)
        trimmed = max(held.trimmed, held.first - 1)
        return LogView(held.stream, held.event_type, held.first, held.last, trimmed, held.first)

    def _searched(self, names: Sequence[str]) -> dict[str, LogView]:
        """The same of a server that has to be asked with replays; streams are named like event types there."""
        found: dict[str, LogView] = {}
        wanted: Mapping[str, AnyType] = event_types(names or sorted(self._catalogue), self._catalogue)
        with connect(self._options) as client:
            for name, kind in wanted.items():
                try:
                    held = Planner(client, name, kind, {}, self._options.retries).stretch({"from_id": "0"})
                except PipelineError as error:
                    found[name] = LogView(name, name, 1, 0, whole=False, problem=str(error))
                    continue
                if held.start > held.end:
                    found[name] = LogView(name, name, 1, 0, whole=False)
                else:
                    found[name] = LogView(name, name, held.start, held.end, held.start - 1, held.start, whole=False)
        return found


def _same_fields(one: EventType, other: EventType) -> bool:
    return bool(one.describe()["identifier"] == other.describe()["identifier"])
