"""The watch over late notifications of a server: made from its settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from aviso_server.config.settings import Settings
from aviso_server.delivery.history import History
from aviso_server.lateness.model_files import ModelFiles
from aviso_server.lateness.state_file import StateFile
from aviso_server.lateness.watch import Watch
from aviso_server.log.base import Log
from aviso_server.model.lateness.learned import FOLDER

__all__ = ["make_watch"]


def make_watch(settings: Settings, log: Log, history: History, clock: Callable[[], int]) -> Watch | None:
    """The watch that the settings ask for, not started yet; None if no event type is watched."""
    if not settings.watched:
        return None
    event_types = {each.name: each for each in settings.event_types}
    return Watch(
        [(each, event_types[each.event_type]) for each in settings.watched],
        log,
        history,
        ModelFiles(_folder(settings), settings.watched),
        StateFile(settings.lateness.path),
        clock,
    )


def _folder(settings: Settings) -> Path:
    """Where the files with what was learned lie; of an archive elsewhere there are copies on this machine."""
    archive = settings.archive
    parts = urlsplit(archive.path)
    if parts.scheme == "file":
        return Path(unquote(parts.path)) / FOLDER
    return archive.work_path / "lateness" if parts.scheme else Path(archive.path) / FOLDER
