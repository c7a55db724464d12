"""The log of a server that does not run, held while the past of one of its streams is imported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aviso_server.config.settings import Settings
from aviso_server.errors import LogInUse, PipelineError
from aviso_server.log.sqlite.log import SqliteLog

__all__ = ["refuse_history", "with_untouched_stream"]


def refuse_history(settings: Settings) -> None:
    """PipelineError if a server with these settings could not go on after an imported past."""
    backend = settings.notification_backend
    if backend.kind != "sqlite":
        raise PipelineError(
            f"--history needs a log in SQLite, which can go on numbering after the past; notification_backend.kind is "
            f"{backend.kind}"
        )
    if not settings.archive.enabled:
        raise PipelineError("--history puts rows into the archive, and archive.enabled is off: nobody would read them")


def with_untouched_stream(settings: Settings, stream: str, work: Callable[[], int]) -> int:
    """Do the work while no server can publish to the stream; then its first publication gets the next sequence.

    PipelineError if the stream has ever had a notification, or if a server is running on the log.
    """
    path = settings.notification_backend.sqlite.path
    path.mkdir(parents=True, exist_ok=True)
    log = SqliteLog(path)
    with asyncio.Runner() as loop:
        try:
            loop.run(log.open())
        except LogInUse as error:
            raise PipelineError(f"history is imported while no server runs: {error}") from None
        try:
            state = loop.run(log.state(stream))
            if state.last:
                raise PipelineError(
                    f"stream '{stream}' has notifications already, up to sequence {state.last} in the log: history can "
                    "be imported only before the first notification. Publish these rows instead"
                )
            count = work()
            if count:
                loop.run(log.advance(stream, count))
            return count
        finally:
            loop.run(log.close())
