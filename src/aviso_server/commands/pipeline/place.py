"""Which archive a command is about, of which server, and on which Spark."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from aviso_server.archive.flight_client import Refused, Unreachable, do_job, find_address
from aviso_server.commands.server_connection import configured_url_option, connected, token_option, user_option
from aviso_server.commands.terminal import fail, load_settings
from aviso_server.config.settings import Settings
from aviso_server.errors import PipelineError
from aviso_server.spark.command_jobs import SETTINGS, Heard, run_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aviso_server.spark.archiver import Archiver, LogStream
    from pyspark_aviso.options import Options

__all__ = [
    "READY_FILE",
    "Place",
    "archive_options",
    "ask_streams",
    "connection",
    "existing",
    "find",
    "kept",
    "on_spark",
    "place_options",
    "say_that_spark_starts",
    "spark_session",
]

READY_FILE = "flight.json"
"""The file in `archive.work_path` in which a server says where its Spark can be asked."""

F = TypeVar("F", bound=Callable[..., Any])

_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # listening on all of them: one is enough to ask

_config_option = click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="The configuration of the server.  [default: as for serve]",
)
_path_option = click.option(
    "--path",
    metavar="FOLDER",
    help="The archive: a folder, or any address that Spark can write.  [default: archive.path]",
)
_spark_option = click.option(
    "--spark",
    metavar="MASTER",
    help="local, local[N], the address of a cluster, or sc://host:port for Spark Connect.  [default: archive.spark]",
)


def archive_options(command: F) -> F:
    """Add the options that name an archive: `--config`, `--path`, `--spark`."""
    return _config_option(_path_option(_spark_option(command)))


def place_options(command: F) -> F:
    """Add the options that name an archive and its server: also `--url`, `--token`, `--user`."""
    for option in (user_option, token_option, _spark_option, _path_option, configured_url_option, _config_option):
        command = option(command)
    return command


class Place(msgspec.Struct, frozen=True):
    """An archive and its server."""

    settings: Settings
    path: str
    url: str
    spark: str
    shares_spark: bool = False  # the Spark of a server with the same `archive.work_path` will do

    def event_type(self, stream: str) -> str:
        """Return the name of the event type whose notifications are in a stream."""
        return next((each.name for each in self.settings.event_types if each.base == stream), stream)

    @property
    def root(self) -> str:
        """Return the archive as a process elsewhere finds it."""
        return self.path if "://" in self.path else str(Path(self.path).absolute())

    @property
    def work(self) -> Path:
        """Return a folder for what Spark writes for itself during this command."""
        return self.settings.archive.work_path / f"command-{os.getpid()}"


def find(file: Path | None, path: str | None, url: str | None = None, spark: str | None = None) -> Place:
    """Find what the options say, and the configuration where they say nothing."""
    settings = load_settings(file)
    host = _EVERY_ADDRESS.get(settings.application.host, settings.application.host)
    return Place(
        settings,
        path or settings.archive.path,
        url or f"http://{host}:{settings.application.port}",
        spark or settings.archive.spark,
        spark is None and path in (None, settings.archive.path),
    )


def existing(place: Place) -> Place:
    """Return the place; end the command with a clear word if the archive is a folder that is not there."""
    from aviso_server.lake.storage import is_local, local_path

    if is_local(place.path) and not local_path(place.path).is_dir():
        fail(f"there is no archive in '{place.path}': no such folder; name it with --path, or with archive.path")
    return place


@contextmanager
def kept(place: Place, with_spark: bool = True, alone: bool = True) -> Iterator[Archiver]:
    """Hold the archive for this command; end it with a clear word if something is in the way."""
    if with_spark:
        say_that_spark_starts()
    from aviso_server.spark.archiver import Archiver  # Spark is large: only who needs it waits for it

    archiver = Archiver(place.path, place.work, place.spark)
    made = [folder for folder in place.work.parents if not folder.exists()]
    try:
        if alone:
            archiver.lock()
        if with_spark:
            archiver.open()
        else:
            archiver.look()
        yield archiver
    except PipelineError as error:
        fail(str(error))
    finally:
        archiver.close()
        shutil.rmtree(place.work, ignore_errors=True)
        for folder in made:
            with suppress(OSError):  # it was never made, or others have begun to use it
                folder.rmdir()


@contextmanager
def spark_session(place: Place, name: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Open Spark for this command; PipelineError if it does not start. A session that was open before stays open."""
    from aviso_server.spark.session import close_session, open_session

    session = open_session(place.work / "spark", place.spark, name, settings)
    try:
        yield session
    finally:
        close_session(session)


def say_that_spark_starts() -> None:
    """Tell whoever waits, before anything large is imported; nobody waits if there is a session already."""
    if "pyspark" in sys.modules:
        from aviso_server.spark.session import has_session

        if has_session():
            return
    click.echo("Starting Spark…", err=True)


def on_spark(place: Place, job: str, request: dict[str, Any], heard: Heard, is_small: bool = True) -> dict[str, Any]:
    """Have a job done by the Spark of a running server with the same work path, or by one that is started for it."""
    if place.shares_spark and is_small:
        address = find_address(place.settings.archive.work_path / READY_FILE)
        if address is not None:
            with suppress(Unreachable, Refused):  # it has not begun, so our own can
                return do_job(address, job, request, heard)
    say_that_spark_starts()
    with ExitStack() as stack:
        # opened when the job asks for it: what is wrong with a request is said before
        session = cache(lambda: stack.enter_context(spark_session(place, f"aviso-{job}", SETTINGS[job])))
        return run_job(session, job, request, heard)


def connection(place: Place, token: str | None, user: str | None, **more: str) -> Options:
    """Return how Spark reaches the server, and as whom."""
    from pyspark_aviso.options import read_options

    given = {"url": place.url, **more}
    if token:
        given["token"] = token
    if user:
        given["username"], _, given["password"] = user.partition(":")
    return read_options(given)


def ask_streams(url: str, headers: dict[str, str]) -> dict[str, LogStream]:
    from aviso_server.spark.archiver import fetch_streams

    with connected(url, headers) as client:
        try:
            return fetch_streams(client)
        except PipelineError as error:
            fail(str(error))
