"""`aviso-server pipeline replay`: print what the archive holds of an event type."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from aviso_server.commands.notifications import Event, as_line, history_options, read_identifier, read_limits
from aviso_server.commands.output import fail
from aviso_server.commands.pipeline.place import Place, archive_options, existing, find, kept
from aviso_server.commands.progress import Progress
from aviso_server.errors import RequestError
from aviso_server.model.cloudevent import Renderer
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Notification
from aviso_server.model.schema import Catalogue, read_point
from aviso_server.model.span import Span, read_end, read_start

if TYPE_CHECKING:
    from aviso_server.pipeline.bridge.operations import Cold

__all__ = ["replay"]


@click.command()
@archive_options
@history_options
def replay(
    event_type: str,
    fields: tuple[str, ...],
    file: Path | None,
    path: str | None,
    spark: str | None,
    start: str,
    end: str | None,
    filter_text: str | None,
    as_json: bool,
) -> None:
    """Print the archived notifications of EVENT_TYPE, oldest first, without asking a server.

    Filters, start and end are those of 'aviso-server replay'. Event types come from the configuration.

    \b
    Examples:
      aviso-server pipeline replay mars class=od
      aviso-server pipeline replay mars 'step={"gte": 6}' --from 2025-06-09 --to 2025-06-10 --json

    \b
    Exit codes: 0 all of it was printed, 1 the archive cannot be read, 2 wrong usage.
    """
    place = find(file, path, spark=spark)
    wanted, span = _request(place, event_type, read_identifier(filter_text, fields), read_limits(start, end))
    renderer = Renderer(wanted.event_type, place.settings.application.base_url)
    with kept(existing(place), alone=False) as keeper, Progress() as progress:
        last = keeper.board.watermark(wanted.stream)
        for notification in _notifications(keeper.cold(), wanted, span, last):
            progress.advance(notification.sequence)
            event = renderer.event(notification)
            click.echo(event if as_json else as_line(msgspec.json.decode(event, type=Event)))


def _request(place: Place, event_type: str, identifier: dict[str, Any], limits: dict[str, str]) -> tuple[Filter, Span]:
    settings = place.settings
    catalogue = Catalogue({each.name: each for each in settings.event_types}, settings.strict)
    try:
        span = read_end(
            read_start(limits.get("from_id"), limits.get("from_date")), limits.get("to_id"), limits.get("to_date")
        )
        found = catalogue.find(event_type)
        return found.compile(identifier, "replay", read_point(identifier), lenient=True), span
    except RequestError as error:
        fail(error.message)


def _notifications(cold: Cold, wanted: Filter, span: Span, last: int) -> Iterator[Notification]:
    start = max(span.from_sequence or 1, 1)
    end = last if span.to_sequence is None else min(span.to_sequence, last)
    if span.from_time is not None:
        start = cold.first_since(wanted.stream, span.from_time)
    if span.to_time is not None:
        end = min(end, cold.last_until(wanted.stream, span.to_time))
    if start > end:
        return
    for batch in cold.read(wanted, start, end, threading.Event()):
        for row in batch.to_pylist():
            yield Notification(
                row["sequence"], row["time_ns"], row["topic"], row["identifier"].encode(), row["payload"].encode()
            )
