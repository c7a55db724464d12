"""Ranges of sequences: joined, cut and counted."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Range", "clipped", "joined_ranges", "length", "without_ranges"]

Range = tuple[int, int]
"""The first and the last sequence, both included."""


def joined_ranges(ranges: Iterable[Range]) -> list[Range]:
    """The same sequences in as few ranges as possible, ascending."""
    found: list[Range] = []
    for first, last in sorted(each for each in ranges if each[0] <= each[1]):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def without_ranges(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """The sequences of the first that are not in the second."""
    left = joined_ranges(ranges)
    gone = joined_ranges(others)
    found: list[Range] = []
    place = 0
    for first, last in left:
        while place < len(gone) and gone[place][1] < first:
            place += 1
        at, start = place, first
        while at < len(gone) and gone[at][0] <= last:
            if start < gone[at][0]:
                found.append((start, gone[at][0] - 1))
            start = gone[at][1] + 1
            at += 1
        if start <= last:
            found.append((start, last))
    return found


def clipped(ranges: Iterable[Range], first: int, last: int) -> list[Range]:
    """The parts that lie between two sequences."""
    cut = ((max(first, low), min(last, high)) for low, high in ranges)
    return [each for each in cut if each[0] <= each[1]]


def length(ranges: Iterable[Range]) -> int:
    """How many sequences there are in ranges that do not overlap."""
    return sum(last - first + 1 for first, last in ranges)
