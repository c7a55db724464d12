"""How the archive is doing, as `/ready` shows it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from aviso_server.archive.lake import Lake
from aviso_server.errors import LogError
from aviso_server.log.base import Log, Waiting

__all__ = ["archive_details"]

_PATIENCE = 1.0  # seconds for a log that lives elsewhere: whoever asks for readiness does not wait long
_MOST_STREAMS = 256  # names of generic event types are without limit


async def archive_details(archive: Lake, log: Log) -> dict[str, Any]:
    """State, reason, streams and the last audit; `log_waits` if the log lets go only of what is archived.

    `lag` is how many sequences of a stream are not archived yet, null if the log does not say.
    """
    details = await archive.describe()
    lasts: dict[str, int] = {}
    with suppress(LogError, TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            for stream in (await log.streams())[:_MOST_STREAMS]:
                lasts[stream] = (await log.state(stream)).last
    empty = {"first": 1, "last": 0, "files": 0, "bytes": 0, "last_error": None}
    streams = {**dict.fromkeys(lasts, empty), **details["streams"]}
    shown = {
        stream: {**each, "lag": max(0, lasts[stream] - each["last"]) if stream in lasts else None}
        for stream, each in sorted(streams.items())[:_MOST_STREAMS]
    }
    audit = None if archive.audited is None else archive.audited.describe()
    return {**details, "streams": shown, "log_waits": isinstance(log, Waiting), "audit": audit}
