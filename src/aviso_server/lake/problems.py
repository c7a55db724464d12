"""What is in the way of an archive, a sentence each: where it lies, its format, and tables that others have altered."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path
from urllib.parse import urlsplit

from aviso_server.errors import PipelineError
from aviso_server.lake.previous import refuse_previous
from aviso_server.lake.storage import is_local, joined, local_path, remove, table_uri, write_file
from aviso_server.lake.table import Tables

__all__ = ["problems", "refuse_unusable"]

_NO_BUCKET = re.compile(r"NO_SUCH_BUCKET|NoSuchBucket")
_NO_ENTRY = re.compile(r"ACCESS_DENIED|ACCESS_KEY|SIGNATURE|CREDENTIALS|TOKEN|HTTP status 40[13]", re.IGNORECASE)


def problems(root: str) -> list[str]:
    """Find everything that is wrong with the archive at an address; nothing if it can be used or made there."""
    try:
        refuse_unusable(root)
        tables = Tables(root)
        streams = tables.streams()
    except PipelineError as error:
        return [str(error)]
    found = []
    for stream in streams:
        try:
            refused = tables.of(stream).snapshot().refused
        except PipelineError as error:
            refused = str(error)
        found += [] if refused is None else [refused]
    return found


def refuse_unusable(root: str) -> None:
    """Raise PipelineError if nothing can be archived there: it cannot be written, or has the previous format."""
    table_uri(root)  # or it cannot be reached at all
    sentence = _unwritable_folder(local_path(root)) if is_local(root) else _unwritable_store(root)
    if sentence is not None:
        raise PipelineError(f"archive.path: {sentence}")
    refuse_previous(root)


def _unwritable_folder(folder: Path) -> str | None:
    folder = folder.absolute()
    there = next((each for each in (folder, *folder.parents) if os.path.lexists(each)), Path("/"))
    if not there.is_dir():
        return f"'{folder}' cannot be written: '{there}' is not a folder"
    if there != folder:
        return None if os.access(there, os.W_OK | os.X_OK) else f"'{folder}' cannot be made: '{there}' is not writable"
    probe = folder / f"_probe-{uuid.uuid4().hex}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        return f"'{folder}' cannot be written: {error.strerror}"
    return None


def _unwritable_store(root: str) -> str | None:
    probe = joined(root, f"_probe-{uuid.uuid4().hex}")
    try:
        write_file(probe, b"-")
        remove(probe)
    except OSError as error:
        words = " ".join(str(error).split())
        if _NO_BUCKET.search(words):
            return f"'{root}' cannot be written: there is no bucket '{urlsplit(root).netloc}'"
        if _NO_ENTRY.search(words):
            return (
                f"'{root}' cannot be written: the store refuses the credentials; set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or a profile that may write there"
            )
        return f"'{root}' cannot be written: {words}"
    return None
