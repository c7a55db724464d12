"""`aviso-server pipeline replay`, `report` and `lateness`: what an archive holds, as lines, as a page, as rhythms."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from aviso_server.commands.notifications import ReceivedEvent, as_line, history_options, read_identifier, read_limits
from aviso_server.commands.pipeline.place import (
    Place,
    archive_options,
    existing,
    find,
    on_spark,
    say_that_spark_starts,
)
from aviso_server.commands.terminal import (
    ReplayProgress,
    csv_option,
    fail,
    json_option,
    print_csv,
    print_json,
    print_table,
)
from aviso_server.errors import PipelineError, RequestError
from aviso_server.model.cloudevent import Renderer
from aviso_server.model.event_type import Catalogue, read_point
from aviso_server.model.filter import Filter
from aviso_server.model.json_text import printable
from aviso_server.model.lateness import combination_text, every_day
from aviso_server.model.notification import Notification
from aviso_server.model.times import Span, read_end, read_start, seconds_text
from aviso_server.spark.command_jobs import LearnReport, LearnRequest

if TYPE_CHECKING:
    from aviso_server.insight.counts import Reader
    from aviso_server.model.lateness import Learned, Rhythm, Watched
    from aviso_server.spark.archiver import Archiver

__all__ = ["lateness", "replay", "report"]


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
    filters: tuple[str, ...],
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
    wanted, span = _request(place, event_type, read_identifier(filters, fields), read_limits(start, end))
    application = place.settings.application
    renderer = Renderer(wanted.event_type, application.base_url, application.polygon_output if wanted.shaped else None)
    try:
        with ReplayProgress() as progress:
            for notification in _notifications(existing(place), wanted, span):
                progress.advance(notification.sequence)
                event = renderer.event(notification)
                click.echo(event if as_json else as_line(msgspec.json.decode(event, type=ReceivedEvent)))
    except PipelineError as error:
        fail(str(error))


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


def _notifications(place: Place, wanted: Filter, span: Span) -> Iterator[Notification]:
    """Read the archive, without Spark; PipelineError if it cannot be read."""
    from aviso_server.lake.previous import refuse_previous
    from aviso_server.lake.scan import first_since, last_until, scan
    from aviso_server.lake.table import Table

    refuse_previous(place.path)
    table = Table(place.path, wanted.stream)
    with table.held() as snapshot:
        start, end = max(span.from_sequence or 1, 1), snapshot.watermark
        if span.to_sequence is not None:
            end = min(end, span.to_sequence)
        if span.from_time is not None:
            start = first_since(table, snapshot, span.from_time)
        if span.to_time is not None:
            end = min(end, last_until(table, snapshot, span.to_time))
        for rows in scan(table, snapshot, wanted, start, end):
            for row in rows.to_pylist():
                yield Notification(
                    row["sequence"], row["time_ns"], row["topic"], row["identifier"].encode(), row["payload"].encode()
                )


@click.command()
@archive_options
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), default=Path("report.html"),
              show_default=True, help="The page to write.")  # fmt: skip
@click.option("--days", type=click.IntRange(1, 366), default=30, show_default=True,
              help="How many days before the newest notification of a stream.")  # fmt: skip
@click.option("--tables", type=click.Path(path_type=Path, file_okay=False),
              help="Also write the tables as Parquet files into this folder.")  # fmt: skip
@json_option
def report(
    file: Path | None,
    path: str | None,
    spark: str | None,
    output: Path,
    days: int,
    tables: Path | None,
    as_json: bool,
) -> None:
    """Write a page that says what was published, when, where and how late, from the archive.

    One file of HTML that needs nothing else. The tables behind it are brought up to date first, unless a server keeps
    the archive: then it does that itself, every `insight.interval`.

    \b
    Examples:
      aviso-server pipeline report
      aviso-server pipeline report --days 7 --output week.html --tables week/
      aviso-server pipeline report --path /lake/aviso --json

    \b
    Exit codes: 0 written, 1 the archive cannot be read or there is nothing in it, 2 wrong usage.
    """
    from aviso_server.insight.charts import export
    from aviso_server.insight.charts import report as page

    place = existing(find(file, path, spark=spark))
    with _opened(place) as (reader, fresh):
        states = [state for state in reader.states() if state.days]
        if not states:
            fail(f"there is nothing to report: the archive in {place.path} has no tables of insight")
        draft = output.with_name(f".{output.name}.{os.getpid()}")
        draft.write_text(page(reader, states, days, time.time_ns(), "Notifications"), encoding="utf-8")
        draft.replace(output)
        written = export(reader, states, days, tables) if tables is not None else []
    if as_json:
        counts = {state.event_type: state.count for state in states}
        print_json(
            {"output": str(output), "tables": [str(each) for each in written], "fresh": fresh, "counted": counts}
        )
        return
    click.echo(f"Wrote {output}" + (f" and {len(written)} tables to {tables}" if tables is not None else ""))
    if not fresh:
        click.echo("The archive is kept by a server: the tables are as it made them last")


@contextmanager
def _opened(place: Place) -> Iterator[tuple[Reader, bool]]:
    """Open the tables, brought up to date if nobody else does that."""
    from aviso_server.insight.counts import Reader
    from aviso_server.spark.archiver import Archiver

    archiver = Archiver(place.path, place.work, place.spark)
    try:
        try:
            archiver.lock()
            fresh = True
        except PipelineError:
            fresh = False
        if fresh:
            _bring_up_to_date(archiver, place)
        yield Reader(place.path), fresh
    except PipelineError as error:
        fail(str(error))
    finally:
        archiver.close()
        shutil.rmtree(place.work, ignore_errors=True)


def _bring_up_to_date(archiver: Archiver, place: Place) -> None:
    from aviso_server.spark.insight import Rollup, roll_up, subjects

    say_that_spark_starts()
    session = archiver.open()
    event_types = {each.name: each for each in place.settings.event_types}
    names = {each.base: each.name for each in place.settings.event_types}
    board = archiver.status
    roll_up(Rollup(session, board.tables), board, subjects(board.watermarks(), names, event_types))


_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@click.command()
@archive_options
@click.option("--event-type", metavar="NAME", help="Only this one.  [default: all that the configuration watches]")
@click.option("--show", is_flag=True, help="Show what was learned last; learn nothing.")
@json_option
@csv_option
def lateness(
    file: Path | None,
    path: str | None,
    spark: str | None,
    event_type: str | None,
    show: bool,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Learn from the archive which combinations of identifier fields arrive when, and show it.

    Event types opt in with `lateness.enabled` in their schema. A server with an archive learns by itself, every
    `lateness.interval`; a running server takes up what this command has learned.

    \b
    Examples:
      aviso-server pipeline lateness
      aviso-server pipeline lateness --event-type mars --json
      aviso-server pipeline lateness --show

    \b
    Exit codes: 0 done, 1 it did not work or no event type is watched, 2 wrong usage.
    """
    place = find(file, path, spark=spark)
    watched = [each for each in place.settings.watched if event_type in (None, each.event_type)]
    if not watched:
        whose = "no event type has" if event_type is None else f"event type '{event_type}' has not"
        fail(f"{whose} lateness.enabled: true in its schema")
    found = _learned(place, watched, show)
    if as_json:
        print_json({"archive": place.path, "event_types": {each.event_type: _shown(each) for each in found}})
        return
    if as_csv:
        rows = [(each.event_type, *row) for each in found for row in _rhythms(each)]
        print_csv(("event_type", *_RHYTHM), rows)
        return
    for each in found:
        _print(each)
    for name in {each.event_type for each in watched} - {each.event_type for each in found}:
        click.echo(f"{printable(name)}: nothing was learned yet")


def _learned(place: Place, watched: list[Watched], show: bool) -> list[Learned]:
    folder = place.settings.archive.work_path.absolute() / "lateness"
    if not show:
        request = LearnRequest(root=place.root, folder=str(folder), watched=watched)
        try:
            answer = on_spark(place, "learn", msgspec.to_builtins(request), lambda step, done, total: None)
        except PipelineError as error:
            fail(str(error))
        finally:
            shutil.rmtree(place.work, ignore_errors=True)
        return msgspec.convert(answer, LearnReport).learned
    from aviso_server.spark.lateness_model import LearnedFiles

    try:
        files = LearnedFiles(place.path, folder)
        return [known for each in watched if (known := files.get(each.event_type)) is not None]
    except PipelineError as error:
        fail(str(error))


def _shown(learned: Learned) -> dict[str, Any]:
    members = msgspec.to_builtins(learned)
    members["learned_at"] = seconds_text(learned.learned_at)
    members["until"] = seconds_text(learned.until) if learned.until else None
    members["rhythms"] = [
        {
            "combination": combination_text(learned.by, rhythm.values),
            **msgspec.to_builtins(rhythm),
            "weekdays": [name for place, name in enumerate(_WEEKDAYS) if rhythm.weekdays >> place & 1],
        }
        for rhythm in learned.rhythms
    ]
    return members  # type: ignore[no-any-return]  # to_builtins makes a dict of a struct


_RHYTHM = ("combination", "days", "expected", "overdue", "spread", "seen")


def _rhythms(learned: Learned) -> list[tuple[Any, ...]]:
    return [
        (
            combination_text(learned.by, rhythm.values),
            _days(rhythm),
            _clock(rhythm.expected),
            _clock(rhythm.overdue),
            rhythm.spread,
            rhythm.seen,
        )
        for rhythm in learned.rhythms
    ]


def _print(learned: Learned) -> None:
    until = f"archive up to {seconds_text(learned.until)}" if learned.until else "nothing in the archive"
    click.echo(
        f"{printable(learned.event_type)}: {len(learned.rhythms)} combinations are expected, {learned.irregular} come "
        f"without a rhythm, {learned.left_out} are beyond max_combinations; learned "
        f"{seconds_text(learned.learned_at)}, {until}"
    )
    if learned.rhythms:
        print_table(_RHYTHM, [(*row[:4], f"{row[4]} s", row[5]) for row in _rhythms(learned)])


def _days(rhythm: Rhythm) -> str:
    if every_day(rhythm):
        return "every day"
    return " ".join(name for place, name in enumerate(_WEEKDAYS) if rhythm.weekdays >> place & 1)


def _clock(offset: int) -> str:
    """Write seconds after midnight of the day it belongs to as a time of day in UTC."""
    day, second = divmod(offset, 86_400)
    text = f"{second // 3600:02d}:{second % 3600 // 60:02d}"
    return f"{text} {day:+d}d" if day else text
