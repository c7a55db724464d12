"""Files that are replaced as a whole: a reader sees the old content or the new, also after a power cut."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["force_to_disk", "move_into_place", "replace_file"]


def replace_file(file: Path, content: bytes) -> None:
    """Give a file new content; when this returns it survives a power cut. OSError if that is not possible."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.new")
    draft.write_bytes(content)
    move_into_place(draft, file)


def move_into_place(draft: Path, file: Path) -> None:
    """Give a finished draft its name, in place of what had it; when this returns both survive a power cut."""
    force_to_disk(draft)
    draft.replace(file)
    force_to_disk(file.parent)


def force_to_disk(path: Path) -> None:
    """Return when the disk has the content of a file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
