"""Asking for a recount: rows in the archive were replaced, which nobody sees who only counts them.

    <archive.path>/_insight/stream=<stream>/recount-<first>-<last>-<name>

Whoever replaces rows asks before and afterwards, so that a roll-up in between takes nothing for settled.
"""

from __future__ import annotations

import re
import uuid

from aviso_server.insight.tables import STATE, folder_of
from aviso_server.pipeline.archive.ranges import Range
from aviso_server.pipeline.archive.storage import Storage, joined

__all__ = ["ask_recount", "asked_recounts", "is_recount"]

_NAME = re.compile(r"recount-(\d+)-(\d+)-[0-9a-f]{32}", re.ASCII)


def ask_recount(root: str, stream: str, first: int, last: int, storage: Storage) -> None:
    """Let the next roll-up count these sequences anew; a stream without tables is counted from nothing anyway."""
    folder = folder_of(root, stream)
    if any(each.name == STATE for each in storage.list(folder)):
        storage.write(joined(folder, f"recount-{first}-{last}-{uuid.uuid4().hex}"), b"")


def asked_recounts(root: str, stream: str, storage: Storage) -> dict[str, Range]:
    """What is to be counted anew, by the path that is to be removed when that is done."""
    found = {}
    for each in storage.list(folder_of(root, stream)):
        if (name := _NAME.fullmatch(each.name)) is not None:
            found[each.path] = (int(name[1]), int(name[2]))
    return found


def is_recount(name: str) -> bool:
    """True if a file of this name asks for a recount."""
    return _NAME.fullmatch(name) is not None
