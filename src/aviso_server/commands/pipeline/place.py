"""Which archive a command is about, of which server, and on which Spark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from aviso_server.commands.client import configured_url_option, connected, token_option, user_option
from aviso_server.commands.output import FAILED, complain, fail
from aviso_server.config import load
from aviso_server.config.settings import Settings
from aviso_server.errors import ConfigError, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aviso_server.pipeline.archive.keeper import Keeper
    from aviso_server.pipeline.archive.streams import LogStream
    from aviso_server.pipeline.options import Options

__all__ = [
    "Place",
    "archive_options",
    "ask_streams",
    "connection",
    "existing",
    "find",
    "kept",
    "place_options",
    "spark_session",
]

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
    """Which archive a command is about: `--config`, `--path`, `--spark`."""
    return _config_option(_path_option(_spark_option(command)))


def place_options(command: F) -> F:
    """Which archive of which server: `--config`, `--url`, `--path`, `--spark`, `--token`, `--user`."""
    for option in (user_option, token_option, _spark_option, _path_option, configured_url_option, _config_option):
        command = option(command)
    return command


class Place(msgspec.Struct, frozen=True):
    """An archive and its server."""

    settings: Settings
    path: str
    url: str
    spark: str

    @property
    def work(self) -> Path:
        """A folder for what Spark writes for itself during this command."""
        return self.settings.archive.work_path / f"command-{os.getpid()}"


def find(file: Path | None, path: str | None, url: str | None = None, spark: str | None = None) -> Place:
    """What the options say, and the configuration where they say nothing."""
    try:
        settings = load(os.environ, file)
    except ConfigError as error:
        complain(error.problems)
        raise SystemExit(FAILED) from None
    host = _EVERY_ADDRESS.get(settings.application.host, settings.application.host)
    return Place(
        settings,
        path or settings.archive.path,
        url or f"http://{host}:{settings.application.port}",
        spark or settings.archive.spark,
    )


def existing(place: Place) -> Place:
    """The place, if there can be an archive; ends the command with a clear word if it is a folder that is not there."""
    from aviso_server.pipeline.archive.storage import is_local, local_path

    if is_local(place.path) and not local_path(place.path).is_dir():
        fail(f"there is no archive in '{place.path}': no such folder; name it with --path, or with archive.path")
    return place


@contextmanager
def kept(place: Place, with_spark: bool = True, alone: bool = True) -> Iterator[Keeper]:
    """The archive, held for this command; ends it with a clear word if something is in the way."""
    from aviso_server.pipeline.archive.keeper import Keeper  # Spark is large: only who needs it waits for it
    from aviso_server.pipeline.archive.storage import is_local

    keeper = Keeper(place.path, place.work, place.spark)
    made = [folder for folder in place.work.parents if not folder.exists()]
    try:
        if alone:
            keeper.lock()
        if with_spark or not is_local(place.path):
            keeper.open()
        else:
            keeper.board.read()
        yield keeper
    except PipelineError as error:
        fail(str(error))
    finally:
        keeper.close()
        shutil.rmtree(place.work, ignore_errors=True)
        for folder in made:
            with suppress(OSError):  # it was never made, or others have begun to use it
                folder.rmdir()


@contextmanager
def spark_session(place: Place, name: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Spark for this command; PipelineError if it does not start. A session that was open before stays open."""
    from aviso_server.pipeline.archive.job import reason
    from aviso_server.pipeline.session import has_session, open_session

    borrowed = has_session()
    try:
        session = open_session(place.work / "spark", place.spark, name, settings)
    except PipelineError:
        raise
    except Exception as error:  # Spark has many ways to say that Java is gone
        raise PipelineError(f"Spark does not start: {reason(error)}") from None
    try:
        yield session
    finally:
        if not borrowed:
            session.stop()


def connection(place: Place, token: str | None, user: str | None, **more: str) -> Options:
    """How Spark reaches the server, and as whom."""
    from aviso_server.pipeline.options import read_options

    given = {"url": place.url, **more}
    if token:
        given["token"] = token
    if user:
        given["username"], _, given["password"] = user.partition(":")
    return read_options(given)


def ask_streams(url: str, headers: dict[str, str]) -> dict[str, LogStream]:
    """The streams of a running server."""
    from aviso_server.pipeline.archive.streams import fetch_streams

    with connected(url, headers) as client:
        try:
            return fetch_streams(client)
        except PipelineError as error:
            fail(str(error))
