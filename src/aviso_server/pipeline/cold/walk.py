"""The way through the files of a stream: groups of them in order, and in a group only what has hits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from aviso_server.model.filter import Filter
from aviso_server.pipeline.archive.layout import DataFile
from aviso_server.pipeline.cold.filter_columns import Sight, sight_of
from aviso_server.pipeline.cold.footers import Footers, RowGroup

__all__ = ["Budget", "Chunk", "Group", "Hits", "chunks", "next_group"]

Hits = npt.NDArray[np.int64]

_MOST_PICKED = 1024
"""Notifications that are picked out by their sequences in one go: each costs a look at every row group, and each go
costs something by itself."""
_FEW_PER_GROUP = 16
"""Up to so many hits in a row group it pays to look for their pages; beyond, nearly every page has one."""
_SHORTEST_GAP = 4
"""Row groups without hits that are worth to begin anew after."""


class Budget(msgspec.Struct, frozen=True):
    """How much may be read at once."""

    rows: int
    bytes: int
    files: bool = False  # only whole ones, and one at least


class Group(msgspec.Struct, frozen=True):
    """Neighbouring row groups of files that look the same to a filter."""

    first: int  # the first sequence that it covers
    last: int
    sight: Sight
    files: tuple[DataFile, ...] = ()
    row_groups: tuple[RowGroup, ...] = ()
    paged: bool = True

    @property
    def rows(self) -> int:
        """How many rows it has, those outside of what is asked for included."""
        return sum(group.rows for group in self.row_groups)

    @property
    def bytes(self) -> int:
        """The size of its notifications."""
        return sum(group.bytes for group in self.row_groups)


class Chunk(msgspec.Struct, frozen=True):
    """A part of a group that has hits, small enough to be held in memory."""

    first: int
    last: int
    files: tuple[DataFile, ...]
    picked: Hits | None = None  # the sequences to pick out; None: so many rows pass that all are tested again
    bounded: bool = True  # the files have so much outside of the part that it is worth to say where it ends


def next_group(
    files: Sequence[DataFile], footers: Footers, wanted: Filter, start: int, end: int, budget: Budget
) -> Group | None:
    """What to read next from `start` on, at least one row group; None if there is nothing more."""
    if start > end:
        return None  # a file may cover more than is asked for
    sight: Sight | None = None
    used: list[DataFile] = []
    taken: list[RowGroup] = []
    covered, rows, size, paged = start - 1, 0, 0, True
    for file in files:
        if file.last < start or file.first > end:
            continue
        facts = footers.facts(file)
        seen = sight_of(wanted, facts)
        if sight is not None and seen != sight:
            break
        sight = seen
        if taken and rows + sum(group.rows for group in facts.groups) > budget.rows:
            break
        for group in facts.groups:
            if group.last < start or group.first > end:
                continue
            full = rows + group.rows > budget.rows or size + group.bytes > budget.bytes
            if taken and full and not budget.files:
                return Group(start, group.first - 1, sight, tuple(used), tuple(taken), paged)
            if not used or used[-1] is not file:
                used.append(file)
                paged = paged and facts.paged
            taken.append(group)
            rows, size = rows + group.rows, size + group.bytes
        covered = min(end, file.last)
    return None if sight is None else Group(start, covered, sight, tuple(used), tuple(taken), paged)


def chunks(group: Group, hits: Hits, budget: Budget, soon: bool = False) -> Iterator[Chunk]:
    """The parts of a group that have hits, in order; `hits` are their sequences, ascending.

    With `soon`, the first part is small if whole row groups are read for it.
    """
    edges = np.searchsorted(hits, [each.first for each in group.row_groups] + [group.last + 1])
    counts = np.diff(edges)
    filled = int(np.count_nonzero(counts))
    picking = group.paged and filled > 0 and len(hits) <= _FEW_PER_GROUP * filled
    most = min(budget.rows, max(1, budget.bytes * group.rows // max(1, group.bytes)))
    most = min(most, _MOST_PICKED) if picking else most
    part: list[int] = []  # row groups
    for number in np.flatnonzero(counts).tolist():
        full = part and edges[number + 1] - edges[part[0]] > most
        apart = part and not picking and (soon or number - part[-1] > _SHORTEST_GAP)
        if full or apart:
            soon = False
            yield _chunk(group, part, hits[edges[part[0]] : edges[part[-1] + 1]], picking)
            part = []
        part.append(number)
    if part:
        yield _chunk(group, part, hits[edges[part[0]] : edges[part[-1] + 1]], picking)


def _chunk(group: Group, part: Sequence[int], hits: Hits, picking: bool) -> Chunk:
    with_hits = [group.row_groups[number] for number in part]
    files = tuple(
        file for file in group.files if any(file.first <= each.last and each.first <= file.last for each in with_hits)
    )
    inside = [each for each in group.row_groups if files[0].first <= each.first and each.last <= files[-1].last]
    return Chunk(
        first=int(hits[0]),
        last=int(hits[-1]),
        files=files,
        picked=hits if picking else None,
        bounded=2 * len(part) < len(inside),
    )
