"""Ranges of sequences are sets of sequences."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from aviso_server.lake.ranges import clipped, joined_ranges, length, without_ranges

RANGES = some.lists(some.tuples(some.integers(1, 60), some.integers(0, 8)).map(lambda pair: (pair[0], sum(pair))))


def numbers(ranges: list[tuple[int, int]]) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


@given(RANGES, RANGES)
def test_ranges_are_sets_of_sequences(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    assert numbers(joined_ranges(one)) == numbers(one)
    assert numbers(without_ranges(one, other)) == numbers(one) - numbers(other)
    assert numbers(clipped(one, 10, 20)) == numbers(one) & set(range(10, 21))
    assert length(joined_ranges(one)) == len(numbers(one))
