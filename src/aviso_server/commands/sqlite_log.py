"""`aviso-server backup`, `restore` and `log repair`: the files of a sqlite log."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from aviso_server.commands.terminal import FAILED, bar, fail, load_settings, print_json, print_result
from aviso_server.errors import LogError, LogUnavailable, PipelineError
from aviso_server.log.sqlite.backup import Copy, back_up
from aviso_server.log.sqlite.backup import restore as restore_copy
from aviso_server.log.sqlite.damage import Fetch, Found, Repaired, numbers
from aviso_server.log.sqlite.damage import repair as repair_log
from aviso_server.model.notification import Box, Notification

__all__ = ["backup", "log", "restore"]


_config_option = click.option(
    "--config", "file", type=click.Path(path_type=Path), help="The configuration that names the log."
)
_path_option = click.option("--path", type=click.Path(path_type=Path), help="The directory of the log itself.")


def _log_directory(file: Path | None, path: Path | None) -> Path:
    """Return the directory of the sqlite log; exits with a message if there can be none."""
    if path is not None:
        if file is not None:
            raise click.UsageError("--config and --path exclude each other")
        return path
    backend = load_settings(file).notification_backend
    if backend.kind != "sqlite":
        fail(f"only a sqlite log has a directory; notification_backend.kind is {backend.kind}")
    return backend.sqlite.path


@click.command()
@click.argument("dest", type=click.Path(path_type=Path))
@_config_option
@_path_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object about the copy.")
def backup(dest: Path, file: Path | None, path: Path | None, as_json: bool) -> None:
    """Copy the sqlite log to the file DEST, whether the server runs or not.

    The copy is the log as it was at one moment; a running server is not interrupted. DEST must not exist; it appears
    only when it is complete and verified.

    \b
    Examples:
      aviso-server backup /backups/aviso-2025-07-06.sqlite
      aviso-server backup copy.sqlite --config examples/config.yaml
      aviso-server backup copy.sqlite --path data/log --json

    \b
    Exit codes: 0 the copy is there, 1 it is not, 2 wrong usage.
    """
    directory = _log_directory(file, path)
    try:
        with bar("copying") as report:
            copy = back_up(directory, dest, report)
    except LogError as error:
        fail(str(error))
    _show_copy(copy, f"Copied {directory} to {dest}", as_json)


@click.command()
@click.argument("src", type=click.Path(path_type=Path))
@_config_option
@_path_option
@click.option("--advance", type=click.IntRange(min=0, max=10**15), default=0, show_default=True,
              help="Skip this many sequences of every stream.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object about the log.")
def restore(src: Path, file: Path | None, path: Path | None, advance: int, as_json: bool) -> None:
    """Make a sqlite log from the copy SRC, where there is none.

    Refuses if the directory holds a log already or if a server uses it. What was published after the copy was taken
    is lost, and its sequences would be assigned a second time: with --advance numbering continues further up, so that
    clients that have seen them miss nothing.

    \b
    Examples:
      aviso-server restore /backups/aviso-2025-07-06.sqlite
      aviso-server restore copy.sqlite --path data/log --advance 1000000

    \b
    Exit codes: 0 the log is there, 1 it is not, 2 wrong usage.
    """
    directory = _log_directory(file, path)
    try:
        with bar("restoring") as report:
            copy = restore_copy(src, directory, advance, report)
    except LogError as error:
        fail(str(error))
    _show_copy(copy, f"Restored {src} to {directory}", as_json)


def _show_copy(copy: Copy, words: str, as_json: bool) -> None:
    held = f"{copy.notifications} notifications in {len(copy.streams)} streams, {copy.bytes} bytes"
    print_result(msgspec.structs.asdict(copy), f"{words}: {held}.", as_json)


@click.group()
def log() -> None:
    """Look after the sqlite log.

    \b
    Examples:
      aviso-server log repair --config examples/config.yaml

    \b
    Exit codes: 0 done, 1 a problem was found or the command failed, 2 wrong usage.
    """


@log.command()
@_config_option
@_path_option
@click.option("--archive", help="The folder of the archive to restore from, if not that of the configuration.")
@click.option("--accept-loss", is_flag=True, help="Go on without what cannot be restored.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object about the repair.")
def repair(file: Path | None, path: Path | None, archive: str | None, accept_loss: bool, as_json: bool) -> None:
    """Find damage in the sqlite log and restore what the archive holds.

    Every notification is compared with its checksum, and every stream with the ledger of what was acknowledged. What
    the archive does not hold stays damaged and the server refuses to start, until --accept-loss gives it up. No
    sequence is ever given out again. Stop the server first, and copy the log's directory before you accept a loss.

    \b
    Examples:
      aviso-server log repair --config examples/config.yaml
      aviso-server log repair --path data/log --archive data/archive
      aviso-server log repair --path data/log --accept-loss --json

    \b
    Exit codes: 0 the log can be used, 1 it cannot, 2 wrong usage.
    """
    directory = _log_directory(file, path)
    try:
        repaired = repair_log(directory, _fetch(file, path, archive), accept_loss)
    except LogError as error:
        fail(str(error))
    if as_json:
        print_json({**msgspec.to_builtins(repaired), "usable": repaired.usable})
    else:
        _show_repair(directory, repaired)
    if not repaired.usable:
        raise SystemExit(FAILED)


def _fetch(file: Path | None, path: Path | None, archive: str | None) -> Fetch | None:
    if archive is None and path is None:
        settings = load_settings(file)
        archive = settings.archive.path if settings.archive.enabled else None
    if archive is None:
        return None
    return _archived_rows(archive)


def _archived_rows(root: str) -> Fetch:
    """Return the function that reads the archive in this folder; LogUnavailable if it is not on this machine."""
    from aviso_server.lake.storage import is_local, local_path  # brings Arrow, which the other commands do without
    from aviso_server.lake.table import Table

    if not is_local(root):
        raise LogUnavailable(f"the archive '{root}' is not on this machine; copy it here and name it with --archive")

    def fetch(stream: str, first: int, last: int) -> Found:
        held: list[Notification] = []
        covered: set[int] = set()
        try:
            files = Table(root, stream).snapshot().files
        except PipelineError as error:
            raise LogUnavailable(str(error)) from error
        for file in files:
            low, high = max(first, file.first), min(last, file.last)
            if low > high:
                continue
            covered.update(range(low, high + 1))
            held += _rows(str(local_path(file.path)), low, high)
        removed = sorted(covered - {each.sequence for each in held})
        return Found(held, [(each, each) for each in removed])

    return fetch


def _rows(path: str, first: int, last: int) -> list[Notification]:
    import pyarrow as pa
    import pyarrow.dataset as ds

    from aviso_server.model.batch import BOX, STORED

    field = ds.field("sequence")
    try:
        file = ds.dataset(path, format="parquet")
        names = [column.name for column in STORED if column not in BOX or column.name in file.schema.names]
        table = file.to_table(columns=names, filter=(field >= first) & (field <= last))
        rows = table.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise LogUnavailable(f"the archive's file '{path}' cannot be read: {error}") from error
    return [
        Notification(
            row["sequence"],
            row["time_ns"],
            row["topic"],
            _raw(row["identifier"]),
            _raw(row["payload"]),
            None if row.get(BOX[0].name) is None else Box(*[row[column.name] for column in BOX]),
        )
        for row in rows
    ]


def _raw(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _show_repair(directory: Path, repaired: Repaired) -> None:
    if repaired.ledger != "sound":
        click.echo(f"The ledger was {repaired.ledger}: how far the log must reach is taken from the log itself.")
    if repaired.commits:
        click.echo(f"{repaired.commits} commits behind a damaged page of the write-ahead file can be read again.")
    for name, stream in sorted(repaired.streams.items()):
        for words, which in (
            ("missing", stream.missing),
            ("altered", stream.altered),
            ("restored", stream.restored),
            ("given up" if repaired.given_up else "not to be restored", stream.lost),
        ):
            if which:
                click.echo(f"Stream '{name}': {numbers(which)} {words}.")
    if not repaired.streams and not repaired.commits:
        click.echo(f"No damage found in {directory}.")
    elif repaired.usable:
        click.echo(f"The log in {directory} can be used again; numbering continues after the last acknowledgement.")
    else:
        click.echo("The log cannot be used. Restore it from a copy, or give these up with --accept-loss.")
