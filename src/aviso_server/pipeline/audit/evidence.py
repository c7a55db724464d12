"""What explains that a sequence is missing: deletes and wipes on their way, marked, or carried out; and retention."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aviso_server.pipeline.archive.absences import read_absences
from aviso_server.pipeline.archive.layout import stream_folder
from aviso_server.pipeline.archive.ranges import Range, clipped, joined_ranges, length, without_ranges
from aviso_server.pipeline.archive.storage import Storage
from aviso_server.pipeline.archive.tombstones import read_tombstones
from aviso_server.pipeline.audit.findings import Explained

__all__ = ["Evidence", "Removals", "gather_evidence"]


class Removals(msgspec.Struct, frozen=True):
    """Deletes and wipes of a stream that the archive has not heard of yet."""

    wiped_through: int = 0
    deleted: tuple[int, ...] = ()


class Evidence(msgspec.Struct, frozen=True):
    """Sequences of a stream that may be missing."""

    wiped_through: int = 0
    deleted: tuple[Range, ...] = ()
    overtaken: tuple[Range, ...] = ()  # in the archive: the log's limits were faster
    trimmed: int = 0  # in the log: its limits may have removed everything up to here

    def unexplained(self, missing: Sequence[Range], in_log: bool) -> list[Range]:
        """What nothing explains."""
        return without_ranges(missing, [*self._removed(), *self._retention(in_log)])

    def explained(self, missing: Sequence[Range], in_log: bool) -> Explained:
        """How much is explained by what; a reason that comes first here is the one that counts."""
        wiped = without_ranges(missing, without_ranges(missing, [(1, self.wiped_through)]))
        left = without_ranges(missing, wiped)
        kept = without_ranges(left, self.deleted)
        final = without_ranges(kept, self._retention(in_log))
        return Explained(length(left) - length(kept), length(wiped), length(kept) - length(final))

    def _removed(self) -> list[Range]:
        return [(1, self.wiped_through), *self.deleted]

    def _retention(self, in_log: bool) -> Sequence[Range]:
        return [(1, self.trimmed)] if in_log else self.overtaken


def gather_evidence(
    root: str | None, stream: str, storage: Storage, pending: Removals, trimmed: int, last: int
) -> Evidence:
    """All that is known up to a sequence; looked at in the order in which removals travel, so that none slips through.

    `pending` must have been read before.
    """
    wiped, deleted = pending.wiped_through, [(each, each) for each in pending.deleted]
    overtaken: tuple[Range, ...] = ()
    if root is not None:
        folder = stream_folder(root, stream)
        marks = read_tombstones(folder, storage)
        record = read_absences(folder, storage)
        wiped = max(wiped, marks.wiped_through, record.wiped_through)
        deleted += [*((each, each) for each in marks.deleted), *record.deleted]
        overtaken = record.overtaken
    return Evidence(wiped, tuple(clipped(joined_ranges(deleted), 1, last)), overtaken, trimmed)
