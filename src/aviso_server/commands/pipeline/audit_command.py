"""`aviso-server pipeline audit`: prove that nothing is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
import msgspec

from aviso_server.commands.pipeline.place import Place, connection, find, on_spark, place_options
from aviso_server.commands.server_connection import credentials
from aviso_server.commands.terminal import (
    FAILED,
    bar,
    csv_option,
    json_option,
    print_csv,
    print_json,
    print_table,
    range_text,
)
from aviso_server.errors import AvisoError
from aviso_server.lake.removal_journal import JOURNAL
from aviso_server.model.json_text import printable
from aviso_server.spark.command_jobs import AuditRequest, definition_of

if TYPE_CHECKING:
    from pyspark_aviso.options import Options

__all__ = ["audit"]

UNCHECKED = 2
"""The exit code that says: nobody can tell."""

Facts = Mapping[str, Any]
"""What an audit says, as JSON values."""

_CODES = {"clean": 0, "defects": FAILED, "unchecked": UNCHECKED}
_MOST_DEFECTS = 50  # of a stream
_WORDS = {"clean": "Nothing is wrong", "defects": "Defects were found", "unchecked": "Not everything could be checked"}


@click.command()
@click.argument("streams", nargs=-1, metavar="[STREAM]...")
@click.option("--repair", is_flag=True, help="Archive anew what is wrong and what the log still has; then audit again.")
@place_options
@json_option
@csv_option
def audit(
    streams: tuple[str, ...],
    repair: bool,
    file: Path | None,
    url: str | None,
    path: str | None,
    spark: str | None,
    token: str | None,
    user: str | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Prove that what was acknowledged is stored and archived, or show where it is not.

    STREAM is a stream or an event type; all if none are named. Every sequence of the log and of the archive is looked
    at: holes that neither deletes nor retention explain, duplicates, content that differs, and anything that is not
    in canonical form. The server may go on meanwhile. Of a server that is not ours only its log is checked.

    \b
    Examples:
      aviso-server pipeline audit
      aviso-server pipeline audit mars --repair
      aviso-server pipeline audit --url http://reference:8000 --json

    \b
    Exit codes: 0 nothing is wrong, 1 defects were found, 2 it could not be checked or wrong usage.
    """
    credentials(token, user)
    try:
        place = find(file, path, url, spark)
    except SystemExit:  # it has been said what is wrong with the configuration
        raise SystemExit(UNCHECKED) from None
    try:
        request = _request(place, streams, repair, connection(place, token, user))
        with bar("auditing") as moved:
            members = msgspec.to_builtins(request)
            found = on_spark(place, "audit", members, lambda stream, done, total: moved(done, total, printable(stream)))
    except AvisoError as error:
        _fail(error)
    finally:
        shutil.rmtree(place.work, ignore_errors=True)
    if as_json:
        print_json({**found, "repaired": found["repaired"] or []})
    elif as_csv:
        print_csv(
            ("event_type", "first", "last", "what", "where", "first_hour", "last_hour", "repairable", "why"),
            [
                (stream["event_type"], each["first"], each["last"], each["kind"], each["where"],
                 *(each["hours"] or (None, None)), each["repairable"], each["reason"])
                for stream in found["streams"].values() for each in stream["defects"]
            ],
        )  # fmt: skip
    else:
        _print(found)
    raise SystemExit(_CODES[found["verdict"]])


def _fail(error: AvisoError) -> NoReturn:
    click.echo(f"aviso-server: {error}", err=True)
    raise SystemExit(UNCHECKED)


def _request(place: Place, streams: Sequence[str], repair: bool, server: Options) -> AuditRequest:
    from aviso_server.lake.storage import is_local

    work = place.settings.archive.work_path.absolute()
    return AuditRequest(
        streams=list(streams),
        repair=repair,
        server=server,
        root=place.root,
        journal=str(work / JOURNAL),
        event_types=[definition_of(each) for each in place.settings.event_types],
        verdicts=[place.root] if is_local(place.path) else [place.root, str(work)],
    )


def _print(audit: Facts) -> None:
    """Print a table with a line per event type, then what is wrong with which sequences, then the verdict."""
    streams: Mapping[str, Facts] = audit["streams"]
    if streams:
        print_table(
            ("event type", "acknowledged", "log", "archive", "same", "lag",
             "deleted", "wiped", "retention", "defects", "verdict"),
            [
                (each["event_type"], each["acknowledged"], _held(each["log"]), _held(each["archive"]), each["same"],
                 each["lag"], *(each["explained"][why] for why in ("deleted", "wiped", "retention")),
                 sum(one["last"] - one["first"] + 1 for one in each["defects"]), each["verdict"])
                for each in streams.values()
            ],
        )  # fmt: skip
    for each in streams.values():
        if each["defects"]:
            click.echo()
            print_table(
                ("sequences", "what", "where", "hours", "mended by --repair", "why"),
                [_defect_row(one) for one in each["defects"][:_MOST_DEFECTS]],
                title=printable(each["event_type"]),
            )
            if len(each["defects"]) > _MOST_DEFECTS:
                click.echo(f"… and {len(each['defects']) - _MOST_DEFECTS} more; --json has all of them")
    for sentence, names in _sentences(streams.values()).items():
        click.echo(f"{', '.join(map(printable, names))}: {printable(sentence)}")
    for each in audit["repaired"] or ():
        what = "written anew" if each["reason"] is None else f"left as it is: {each['reason']}"
        name = streams[each["stream"]]["event_type"] if each["stream"] in streams else each["stream"]
        click.echo(f"{printable(name)} {each['first']} to {each['last']}: {printable(what)}")
    count = len(streams)
    click.echo(f"{_WORDS[audit['verdict']]}. {count} event type{'s' if count != 1 else ''}, {audit['seconds']:.1f} s")


def _held(held: Facts | None) -> str:
    return "not checked" if held is None else range_text(held["first"], held["last"])


def _defect_row(defect: Facts) -> tuple[str, ...]:
    first, last = defect["first"], defect["last"]
    sequences = str(first) if first == last else range_text(first, last)
    mended = "yes" if defect["repairable"] else "no"
    return sequences, defect["kind"], defect["where"], _hours(defect), mended, defect["reason"]


def _hours(defect: Facts) -> str:
    if defect["hours"] is None:
        return "unknown"
    first, last = defect["hours"]
    return str(first) if first == last else f"{first} to {last}"


def _sentences(streams: Iterable[Facts]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in streams:
        for sentence in (*each["unchecked"], *each["notes"]):
            found.setdefault(sentence, []).append(each["event_type"])
    return found
