"""The archive of a server: made from its settings, opened before the first request, started after."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from aviso_server.archive.audited import LastAudit
from aviso_server.archive.journal import Journal
from aviso_server.archive.known import Known
from aviso_server.archive.lake import Lake
from aviso_server.archive.numbering import align
from aviso_server.archive.supervisor import ARCHIVE_TOKEN, Supervisor
from aviso_server.config.settings import Settings
from aviso_server.delivery.archive import Coverage
from aviso_server.errors import LogError
from aviso_server.http.auth.archive_job import ArchiveJobToken
from aviso_server.log.base import Log
from aviso_server.model.fields import SpatialField
from aviso_server.model.timestamp import SECOND

__all__ = ["Archiving"]

logger = logging.getLogger(__name__)

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # addresses to listen on, not to connect to


class Archiving:
    """A lake and the credentials of the job that fills it."""

    def __init__(self, settings: Settings, host: str, port: int) -> None:
        archive = settings.archive
        self.token = ArchiveJobToken()
        self._path = archive.path
        work, host = archive.work_path.absolute(), _EVERYWHERE.get(host, host)
        ready_file = work / "bridge.json"
        command = [
            *("-m", "aviso_server.pipeline.process"),
            *("--url", f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"),
            *("--path", archive.path),
            *("--work", str(work)),
            *("--ready-file", str(ready_file)),
            *("--interval", str(archive.interval / SECOND)),
            *("--spark", archive.spark),
            *("--max-replays", str(archive.max_replays)),
        ]
        if settings.watched:
            command += ["--lateness", msgspec.json.encode(settings.watched).decode()]
            command += ["--lateness-interval", str(settings.lateness.interval / SECOND)]
        if settings.insight.enabled:
            command += ["--insight-interval", str(settings.insight.interval / SECOND)]
        shapes = {
            each.name: [name for name, field in each.fields.items() if isinstance(field, SpatialField)]
            for each in settings.event_types
        }

        def shapes_of(event_type: str) -> Sequence[str]:
            return shapes.get(event_type, ())

        self.lake = Lake(
            Supervisor(command, ready_file, {ARCHIVE_TOKEN: self.token.text}),
            Known(archive.path, work / "archived.json"),
            Journal(work / "removals.jsonl"),
            archive.max_replays,
            shapes_of,
            LastAudit(archive.path, work),
        )

    async def open(self, log: Log) -> None:
        """See what is archived, and let no sequence be given out twice; LogError if that cannot be."""
        await self.lake.open()
        await align(log, self.lake.known.streams, self._path)

        async def align_again(archived: Mapping[str, Coverage]) -> None:
            try:
                await align(log, archived, self._path)
            except LogError as error:
                logger.error("%s", error, extra={"event": "archive.numbering.refused"})  # says it all

        self.lake.on_start = align_again
