"""Which log a command is about."""

from __future__ import annotations

import os
from pathlib import Path

import click

from aviso_server.commands.output import FAILED, complain, fail
from aviso_server.config import load
from aviso_server.errors import ConfigError

__all__ = ["config_option", "log_directory", "path_option"]

config_option = click.option(
    "--config", "file", type=click.Path(path_type=Path), help="The configuration that names the log."
)
path_option = click.option("--path", type=click.Path(path_type=Path), help="The directory of the log itself.")


def log_directory(file: Path | None, path: Path | None) -> Path:
    """The directory of the sqlite log; ends the command with a clear word if there can be none."""
    if path is not None:
        if file is not None:
            raise click.UsageError("--config and --path exclude each other")
        return path
    try:
        backend = load(os.environ, file).notification_backend
    except ConfigError as error:
        complain(error.problems)
        raise SystemExit(FAILED) from None
    if backend.kind != "sqlite":
        fail(f"only a sqlite log has a directory; notification_backend.kind is {backend.kind}")
    return backend.sqlite.path
