"""What has been deleted from the archive: marks that readers honour at once and that compaction turns into fact.

    <stream folder>/_tombstones/deleted-00000000000000000042
    <stream folder>/_tombstones/wiped-00000000000000001000

The names say everything: notification 42 is gone, and all up to 1000 are.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right

import msgspec

from aviso_server.pipeline.archive.absences import gather
from aviso_server.pipeline.archive.layout import TOMBSTONES, DataFile, listing
from aviso_server.pipeline.archive.storage import LOCAL, Storage, joined

__all__ = ["Tombstones", "forget", "look", "mark_deleted", "mark_wiped", "read_tombstones"]

_NAME = re.compile(r"(deleted|wiped)-(\d{20})", re.ASCII)


class Tombstones(msgspec.Struct, frozen=True):
    """What is deleted in a stream."""

    wiped_through: int = 0  # everything up to here
    deleted: tuple[int, ...] = ()  # and these, all above, ascending

    def hides(self, sequence: int) -> bool:
        """True if the notification of this sequence must not be shown."""
        if sequence <= self.wiped_through:
            return True
        place = bisect_left(self.deleted, sequence)
        return place < len(self.deleted) and self.deleted[place] == sequence

    def within(self, first: int, last: int) -> tuple[int, ...]:
        """The single sequences in a range that are deleted."""
        return self.deleted[bisect_left(self.deleted, first) : bisect_right(self.deleted, last)]

    def touches(self, first: int, last: int) -> bool:
        """True if something in the range is deleted."""
        return first <= self.wiped_through or bool(self.within(first, last))


def read_tombstones(folder: str, storage: Storage = LOCAL) -> Tombstones:
    """The marks in the folder of a stream."""
    wiped, deleted = 0, []
    for kind, sequence, _ in _marks(folder, storage):
        if kind == "wiped":
            wiped = max(wiped, sequence)
        else:
            deleted.append(sequence)
    return Tombstones(wiped, tuple(sorted(each for each in deleted if each > wiped)))


def look(folder: str, storage: Storage = LOCAL) -> tuple[Tombstones, list[DataFile]]:
    """What a reader needs to know of a stream: the marks and then the files.

    In this order: a mark goes only after the files that still had the notification.
    """
    return read_tombstones(folder, storage), listing(folder, storage)


def mark_deleted(folder: str, sequence: int, storage: Storage = LOCAL) -> None:
    """From now on the notification of this sequence is gone, whether it has been archived yet or not."""
    storage.write(joined(folder, f"{TOMBSTONES}/deleted-{sequence:020d}"), b"")


def mark_wiped(folder: str, through: int, storage: Storage = LOCAL) -> None:
    """From now on everything up to this sequence is gone, whether it has been archived yet or not."""
    storage.write(joined(folder, f"{TOMBSTONES}/wiped-{through:020d}"), b"")


def forget(folder: str, settled: Tombstones, through: int, storage: Storage = LOCAL) -> None:
    """Remove the marks of what is physically gone: those in `settled` that are not above `through`.

    What they said goes into the record of absences first.
    """
    known = read_tombstones(folder, storage)
    done: list[tuple[str, int, str]] = []
    for kind, sequence, path in _marks(folder, storage):
        if sequence > through:
            continue
        gone = sequence <= settled.wiped_through if kind == "wiped" else settled.hides(sequence)
        if gone or (kind == "wiped" and sequence < known.wiped_through):
            done.append((kind, sequence, path))
    wiped = max((sequence for kind, sequence, _ in done if kind == "wiped"), default=0)
    gather(folder, wiped, [sequence for kind, sequence, _ in done if kind == "deleted"], storage)
    for _, _, path in done:
        storage.remove(path)


def _marks(folder: str, storage: Storage) -> list[tuple[str, int, str]]:
    found = []
    for each in storage.list(joined(folder, TOMBSTONES)):
        name = _NAME.fullmatch(each.name)
        if name is not None:
            found.append((name[1], int(name[2]), each.path))
    return found
