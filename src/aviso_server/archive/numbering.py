"""Keeps sequences from being given out twice when a log is behind its archive."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from aviso_server.delivery.archive import Coverage
from aviso_server.errors import LogDamaged
from aviso_server.log.base import Advancing, Log

__all__ = ["align"]

logger = logging.getLogger(__name__)


async def align(log: Log, archived: Mapping[str, Coverage], path: str) -> None:
    """Let the log go on numbering after what is archived; LogDamaged if it cannot.

    A log is behind after it was restored from a copy or began anew. The notifications it has lost are in the archive.
    """
    known = set(await log.streams())
    for stream, covered in archived.items():
        last = (await log.state(stream)).last if stream in known else 0
        if last >= covered.last:
            continue
        if not isinstance(log, Advancing):
            raise LogDamaged(
                f"stream '{stream}' ends at sequence {last} in the log, but at {covered.last} in the archive in "
                f"'{path}': these sequences would be given out a second time. Bring the log back from a copy, set "
                "archive.path to another folder, or move the archive away"
            )
        await log.advance(stream, covered.last)
        logger.warning(
            "stream %s ended at sequence %d in the log and at %d in the archive: its numbering goes on after that",
            stream, last, covered.last,
            extra={"event": "archive.numbering.advanced", "stream": stream, "last": covered.last},
        )  # fmt: skip
