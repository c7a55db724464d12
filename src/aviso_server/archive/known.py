"""What is known of the archive without asking Spark: from its files, or from what was known last."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from aviso_server.delivery.archive import NOTHING, Coverage
from aviso_server.disk import replace_file

__all__ = ["Known"]

logger = logging.getLogger(__name__)

_read = msgspec.json.Decoder(dict[str, Coverage]).decode


class Known:
    """The sequences that each stream's archive covers.

    Files on this machine can be looked at directly. Of an archive elsewhere the last news is kept in a file.
    """

    def __init__(self, path: str, memory: Path) -> None:
        self._path = path
        self._memory = memory
        self._local = urlsplit(path).scheme in ("", "file")
        self._coverages: dict[str, Coverage] = {}
        self._complete = False  # a stream that is not among them has never been archived

    @property
    def streams(self) -> Mapping[str, Coverage]:
        """All that is known."""
        return self._coverages

    def of(self, stream: str) -> Coverage | None:
        """The coverage of a stream as known now; None if nothing can be said."""
        found = self._coverages.get(stream)
        return NOTHING if found is None and self._complete else found

    async def look(self) -> None:
        """Look at the files, or at what was known last."""
        try:
            await asyncio.to_thread(self._look)
        except (OSError, msgspec.DecodeError) as error:
            logger.warning(
                "the archive in %s cannot be looked at: %s", self._path, error,
                extra={"event": "archive.files.unreadable"},
            )  # fmt: skip

    async def learn(self, coverages: Mapping[str, Coverage]) -> None:
        """This is what the archive holds now."""
        changed = coverages != self._coverages
        self._coverages, self._complete = dict(coverages), True
        if changed and not self._local:
            try:
                await asyncio.to_thread(replace_file, self._memory, msgspec.json.encode(self._coverages))
            except OSError as error:
                logger.warning(
                    "what the archive holds cannot be noted: %s", error, extra={"event": "archive.files.unreadable"}
                )

    def _look(self) -> None:
        if self._local:
            # imported late: it needs pyarrow
            from aviso_server.pipeline.archive.layout import listing, streams, watermark

            found = {}
            for stream, folder in streams(self._path).items():
                files = listing(folder)
                if files:
                    found[stream] = Coverage(files[0].first, watermark(files))
            self._coverages, self._complete = found, True
        elif self._memory.exists() and not self._coverages:
            self._coverages = _read(self._memory.read_bytes())
