"""The file in which a server writes down what is to be removed from its archive, until the archive has confirmed it.

One line of JSON each; another line when the archive has confirmed it. What a crash has cut off is a line that nobody
has relied on. Needs neither Arrow nor Spark, so that a server without history can be without them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

__all__ = ["JOURNAL", "Removal", "read_removals", "write_removals"]

JOURNAL = "removals.jsonl"
"""The name of the file, in the working folder of the archive."""


class Removal(msgspec.Struct, frozen=True, order=True):
    """One notification, or everything up to a sequence, that must not be seen again."""

    kind: Literal["delete", "wipe"]
    stream: str
    sequence: int

    def line(self, done: bool) -> bytes:
        """Return it as a line of the file; `done` if the archive has confirmed it."""
        return msgspec.json.encode(_Line(self.kind, self.stream, self.sequence, done)) + b"\n"


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: Literal["delete", "wipe"]
    stream: str
    sequence: int
    done: bool = False


_line = msgspec.json.Decoder(_Line).decode


def read_removals(file: Path) -> Sequence[Removal]:
    """Return the removals that the archive has not confirmed, in the order in which they came."""
    pending: dict[Removal, None] = {}
    for text in file.read_bytes().split(b"\n") if file.exists() else []:
        try:
            line = _line(text)
        except msgspec.DecodeError:
            continue  # cut off by a crash
        removal = Removal(line.kind, line.stream, line.sequence)
        if line.done:
            pending.pop(removal, None)
        else:
            pending[removal] = None
    return list(pending)


def write_removals(file: Path, removals: Sequence[Removal]) -> None:
    """Append removals to the file, durably."""
    if removals:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as journal:
            journal.write(b"".join(each.line(done=False) for each in removals))
            journal.flush()
            os.fsync(journal.fileno())
