"""A run of notifications in Arrow columns, as a log reads them: no Python object for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import compress
from typing import overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from aviso_server.model.notification import Box, Notification
from aviso_server.model.run import Part, Rendered, Run
from aviso_server.model.timestamp import SECOND, event_time, seconds_text

__all__ = ["ArrowRun", "event_times"]

_REMEMBERED = 256  # constants of renderings
_MANY = 16  # times that are worth the preparations


class ArrowRun(Run):
    """Columns of texts; all are equally long."""

    def __init__(
        self,
        sequences: pa.BinaryArray,  # decimal
        times: pa.BinaryArray,  # decimal
        topics: Callable[[], Sequence[str]],  # asked for only where they are needed: most readers do without
        identifiers: pa.BinaryArray,
        payloads: pa.BinaryArray,
        boxes: Sequence[Box | None] | None = None,
    ) -> None:
        self._sequences = sequences
        self._times = times
        self._topics = topics
        self._identifiers = identifiers
        self._payloads = payloads
        self._boxes = boxes

    @property
    def last(self) -> int:
        """The sequence of the newest of them."""
        return int(self._sequences[-1].as_py())

    @cached_property
    def times(self) -> Sequence[int]:
        """When they were stored."""
        times: list[int] = _numbers(self._times).to_pylist()
        return times

    @property
    def boxes(self) -> Sequence[Box | None] | None:
        """Where they lie; None if none of them lies anywhere."""
        return self._boxes

    @cached_property
    def values(self) -> list[Notification]:
        """The notifications themselves."""
        columns = (
            _numbers(self._sequences).to_pylist(),
            self.times,
            self._topics(),
            self._identifiers.to_pylist(),
            self._payloads.to_pylist(),
        )
        if self._boxes is None:
            return list(map(Notification, *columns))
        return list(map(Notification, *columns, self._boxes))

    def having(self, members: Sequence[bytes]) -> ArrowRun:
        """Those whose identifiers hold all these bytes."""
        found = self
        for member in members:
            found = found._where(pc.match_substring(found._identifiers, member))
        return found

    def joined(self, parts: Sequence[Part]) -> Rendered:
        """For each notification all the parts, one after the other; times as events show them."""
        if not len(self):
            return b""
        times = self._shown_times()
        if isinstance(times, bytes):
            parts = _with_constant("time", times, parts)
        columns = [
            _scalar(part) if isinstance(part, bytes) else times if part == "time" else self._column(part)
            for part in parts
        ]
        joined = pc.binary_join_element_wise(*columns, _scalar(b""))
        return memoryview(joined.buffers()[2]).cast("B")

    def _column(self, name: Part) -> pa.BinaryArray:
        match name:
            case "sequence":
                return self._sequences
            case "identifier":
                return self._identifiers
            case "payload":
                return self._payloads
        raise ValueError(f"no column {name!r}")

    def _shown_times(self) -> bytes | pa.BinaryArray:
        """The times as events show them; one if all are the same."""
        first = self._times[0]
        if pc.all(pc.equal(self._times, first)).as_py():  # what was stored together has one time
            return event_time(int(first.as_py())).encode()
        encoded = self._times.dictionary_encode()
        shown = event_times(_numbers(encoded.dictionary))
        return shown if len(shown) == len(self) else shown.take(encoded.indices)

    def _where(self, kept: pa.BooleanArray) -> ArrowRun:
        if kept.true_count == len(self):
            return self
        flags = kept.to_pylist()
        return ArrowRun(
            self._sequences.filter(kept),
            self._times.filter(kept),
            lambda: list(compress(self._topics(), flags)),
            self._identifiers.filter(kept),
            self._payloads.filter(kept),
            None if self._boxes is None else list(compress(self._boxes, flags)),
        )

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Notification]:
        return iter(self.values)

    @overload
    def __getitem__(self, place: int) -> Notification: ...
    @overload
    def __getitem__(self, place: slice) -> ArrowRun: ...
    def __getitem__(self, place: int | slice) -> Notification | ArrowRun:
        if isinstance(place, int):
            return self.values[place]
        return ArrowRun(
            self._sequences[place],
            self._times[place],
            lambda: self._topics()[place],
            self._identifiers[place],
            self._payloads[place],
            None if self._boxes is None else self._boxes[place],
        )


@lru_cache(_REMEMBERED)
def _scalar(constant: bytes) -> pa.BinaryScalar:
    return pa.scalar(constant, pa.binary())


def _with_constant(name: Part, value: bytes, parts: Sequence[Part]) -> list[Part]:
    """The parts with a column replaced by its only value, and constants that are neighbours made one."""
    merged: list[Part] = []
    for part in parts:
        constant = value if part == name else part
        if merged and isinstance(constant, bytes) and isinstance(merged[-1], bytes):
            merged[-1] += constant
        else:
            merged.append(constant)
    return merged


def _numbers(texts: pa.BinaryArray) -> pa.Int64Array:
    return texts.cast(pa.string()).cast(pa.int64())


def event_times(times: pa.Int64Array) -> pa.BinaryArray:
    """What `event_time` makes of each of many times."""
    numbers = times.to_numpy()
    seconds, fractions = np.divmod(numbers, SECOND)
    short = fractions % 1000 == 0  # those with less than nine digits
    if len(numbers) < _MANY or np.count_nonzero(short) > len(numbers) // 2:
        return _one_by_one(numbers)
    distinct, places = np.unique(seconds, return_inverse=True)
    starts = pa.array([seconds_text(second)[:-1].encode() + b"." for second in distinct.tolist()], pa.binary())
    digits = pc.utf8_slice_codeunits(pa.array(fractions + SECOND).cast(pa.string()), 1).cast(pa.binary())
    shown = pc.binary_join_element_wise(starts.take(pa.array(places)), digits, _scalar(b"Z"), _scalar(b""))
    return pc.replace_with_mask(shown, pa.array(short), _one_by_one(numbers[short])) if short.any() else shown


def _one_by_one(times: npt.NDArray[np.int64]) -> pa.BinaryArray:
    return pa.array([event_time(time).encode() for time in times.tolist()], pa.binary())
