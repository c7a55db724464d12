"""The file that says where a server listens, there only while it does."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

__all__ = ["make_way", "remove", "write"]


def make_way(path: Path) -> None:
    """Remove what an earlier run left, so that nobody takes it for ours; OSError if none can be written there."""
    path.unlink(missing_ok=True)
    draft = _draft(path)
    draft.write_bytes(b"")
    draft.unlink()


def write(path: Path, host: str, port: int) -> None:
    """Say where the server listens; whoever waits for the file sees all of it or none."""
    draft = _draft(path)
    draft.write_text(json.dumps({"host": host, "port": port, "pid": os.getpid()}))
    draft.rename(path)


def remove(path: Path) -> None:
    """Take our word back, unless somebody else has put theirs in its place."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if json.loads(path.read_bytes())["pid"] == os.getpid():
            path.unlink()


def _draft(path: Path) -> Path:
    return path.with_name(path.name + ".new")
