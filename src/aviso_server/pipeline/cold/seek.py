"""From a point in time to a sequence, by the statistics of files and a look into one row group."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from aviso_server.pipeline.archive.layout import DataFile, watermark
from aviso_server.pipeline.cold.footers import Footers

__all__ = ["first_since", "last_until"]


def first_since(files: Sequence[DataFile], footers: Footers, time: int) -> int:
    """The lowest sequence stored at or after a time; one beyond the last if there is none."""
    found = _first(files, footers, time)
    return watermark(files) + 1 if found is None else found


def last_until(files: Sequence[DataFile], footers: Footers, time: int) -> int:
    """The highest sequence stored at or before a time; one before the first if there is none."""
    later = _first(files, footers, time + 1)
    if later is None:
        later = watermark(files) + 1
    # Between two notifications there may be sequences of deleted ones, so look for the notification before.
    for file in reversed(files[: bisect_right(files, later - 1, key=lambda each: each.first)]):
        groups = footers.facts(file).groups
        place = bisect_left(groups, later, key=lambda each: each.first)
        if not place:
            continue
        if groups[place - 1].last < later:
            return groups[place - 1].last
        sequences, _ = footers.times(file, groups[place - 1].number)
        return int(sequences[np.searchsorted(sequences, later) - 1])
    return files[0].first - 1 if files else 0


def _first(files: Sequence[DataFile], footers: Footers, time: int) -> int | None:
    """The lowest sequence stored at or after a time. Times rise with sequences, so halving finds it."""
    low, high = 0, len(files)
    while low < high:
        middle = filled = (low + high) // 2
        while filled < high and not footers.facts(files[filled]).groups:
            filled += 1
        if filled == high or footers.facts(files[filled]).groups[-1].last_time >= time:
            high = middle
        else:
            low = filled + 1
    for file in files[low:]:
        groups = footers.facts(file).groups
        place = bisect_left(groups, time, key=lambda each: each.last_time)
        if place == len(groups):
            continue
        if groups[place].first_time >= time:
            return groups[place].first
        sequences, times = footers.times(file, groups[place].number)
        return int(sequences[np.searchsorted(times, time)])
    return None
