"""`aviso-server pipeline lateness`: learn from the archive what is expected when, and show it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from aviso_server.commands.output import fail, json_option, print_json, printable
from aviso_server.commands.pipeline.place import Place, archive_options, find, kept
from aviso_server.model.lateness.rhythm import every_day
from aviso_server.model.lateness.watched import combination_text
from aviso_server.model.timestamp import seconds_text

if TYPE_CHECKING:
    from aviso_server.model.lateness.learned import Learned
    from aviso_server.model.lateness.rhythm import Rhythm
    from aviso_server.model.lateness.watched import Watched

__all__ = ["lateness"]

_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@click.command()
@archive_options
@click.option("--event-type", metavar="NAME", help="Only this one.  [default: all that the configuration watches]")
@click.option("--show", is_flag=True, help="Show what was learned last; learn nothing.")
@json_option
def lateness(
    file: Path | None, path: str | None, spark: str | None, event_type: str | None, show: bool, as_json: bool
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
    for each in found:
        _print(each)
    for name in {each.event_type for each in watched} - {each.event_type for each in found}:
        click.echo(f"{printable(name)}: nothing was learned yet")


def _learned(place: Place, watched: list[Watched], show: bool) -> list[Learned]:
    from aviso_server.pipeline.lateness.shelf import Shelf

    found = []
    with kept(place, with_spark=not show, alone=False) as keeper:
        storage = keeper.board.storage
        shelf = Shelf(place.path, storage, place.settings.archive.work_path / "lateness")
        for each in watched:
            if show:
                known = shelf.get(each.event_type)
                found += [] if known is None else [known]
                continue
            from aviso_server.pipeline.lateness.learning import learn

            learned = learn(keeper.session, place.path, storage, each, int(time.time()))
            shelf.put(learned)
            found.append(learned)
    return found


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


def _print(learned: Learned) -> None:
    console = Console(highlight=False)
    until = f"archive up to {seconds_text(learned.until)}" if learned.until else "nothing in the archive"
    console.print(
        printable(learned.event_type)
        + f": {len(learned.rhythms)} combinations are expected, {learned.irregular} come without a rhythm, "
        f"{learned.left_out} are beyond max_combinations; learned {seconds_text(learned.learned_at)}, {until}",
        soft_wrap=True,
    )
    if not learned.rhythms:
        return
    table = Table(box=None, pad_edge=False)
    for name in ("combination", "days", "expected", "overdue", "spread", "seen"):
        table.add_column(name, justify="right" if name in ("spread", "seen") else "left", overflow="fold")
    for rhythm in learned.rhythms:
        table.add_row(
            printable(combination_text(learned.by, rhythm.values)),
            _days(rhythm),
            _clock(rhythm.expected),
            _clock(rhythm.overdue),
            f"{rhythm.spread} s",
            str(rhythm.seen),
        )
    console.print(table)


def _days(rhythm: Rhythm) -> str:
    if every_day(rhythm):
        return "every day"
    return " ".join(name for place, name in enumerate(_WEEKDAYS) if rhythm.weekdays >> place & 1)


def _clock(offset: int) -> str:
    """Seconds after midnight of the day it belongs to, as a time of day in UTC."""
    day, second = divmod(offset, 86_400)
    text = f"{second // 3600:02d}:{second % 3600 // 60:02d}"
    return f"{text} {day:+d}d" if day else text
