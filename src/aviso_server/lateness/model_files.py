"""The files with what was learned, read again when they change."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from aviso_server.model.lateness.learned import Learned, decode, file_name
from aviso_server.model.lateness.watched import Watched

__all__ = ["ModelFiles"]

logger = logging.getLogger(__name__)

_Identity = tuple[int, int, int]


class ModelFiles:
    """A folder with a file for each event type; whoever learns puts a new one in place of the old."""

    def __init__(self, folder: Path, watched: Iterable[Watched]) -> None:
        self._folder = folder
        self._watched = {each.event_type: each for each in watched}
        self._known: dict[str, _Identity | None] = {}

    def changed(self) -> Iterator[Learned]:
        """What is new since the last call; what does not fit the configuration is left alone."""
        for name, watched in self._watched.items():
            file = self._folder / file_name(name)
            try:
                facts = file.stat()
                identity = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
                if self._known.get(name) == identity:
                    continue
                learned = decode(file.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                self._say(name, f"'{file}' cannot be used: {error}")
                continue
            self._known[name] = identity
            if learned.fits(watched):
                yield learned
            else:
                self._say(name, f"'{file}' was learned for other fields; it is used again once it was learned anew")

    def _say(self, name: str, sentence: str) -> None:
        logger.warning("lateness of '%s': %s", name, sentence, extra={"event": "lateness.model.unusable"})
