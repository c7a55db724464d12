"""Counts by time and by place."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from aviso_server.model.batch import ArrowRun
from aviso_server.model.explain import Tally
from aviso_server.model.notification import Box, Notification
from aviso_server.model.shapes import cells_of

HOUR = 3600 * 10**9


def note(sequence: int, time: int, box: Box | None = None) -> Notification:
    return Notification(sequence, time, "tides.oslo", b"{}", b"null", box)


@pytest.mark.parametrize(
    ("box", "cell"),
    [
        (Box(0, 0, 2, 2), (1, 1)),
        (Box(0, 0, 1, 1), (0, 0)),
        (Box(-1, -1, 0, 0), (-1, -1)),
        (Box(-90, -180, -90, -180), (-90, -180)),
        (Box(90, 180, 90, 180), (89, 179)),
        (Box(52.4, 13.4, 52.6, 13.6), (52, 13)),
        (Box(-0.1, -0.1, -0.1, -0.1), (-1, -1)),
    ],
)
def test_cells(box: Box, cell: tuple[int, int]) -> None:
    assert tuple(cells_of(np.array([box]))[0].tolist()) == cell


def test_a_box_as_files_keep_it_lies_in_the_same_cell() -> None:
    chance = random.Random(3)
    pairs = np.array([[chance.uniform(-90, 90), chance.uniform(-180, 180)] for _ in range(2000)])
    boxes = np.hstack([pairs, pairs + chance.random()])
    kept = boxes.astype(np.float32)
    kept[:, :2] = np.where(kept[:, :2] > boxes[:, :2], np.nextafter(kept[:, :2], np.float32(-np.inf)), kept[:, :2])
    kept[:, 2:] = np.where(kept[:, 2:] < boxes[:, 2:], np.nextafter(kept[:, 2:], np.float32(np.inf)), kept[:, 2:])
    assert cells_of(kept.astype(np.float64)).tolist() == cells_of(boxes).tolist()


def test_each_notification_counts_once() -> None:
    tally = Tally(HOUR)
    tally.add([note(1, 0), note(2, HOUR - 1, Box(0, 0, 1, 1)), note(3, HOUR, Box(0.2, 0.2, 0.3, 0.3))])
    assert tally.times == {0: 2, 1: 1}
    assert tally.cells == {(0, 0): 2}
    assert (tally.total, tally.placed) == (3, 2)


def test_columns_count_like_values() -> None:
    boxes: list[Box | None] = [None, Box(0, 0, 1, 1)]
    sequences, times, identifiers, payloads = (
        pa.array(column, pa.binary()) for column in ([b"1", b"2"], [b"5", b"%d" % HOUR], [b"{}"] * 2, [b"null"] * 2)
    )
    run = ArrowRun(sequences, times, lambda: ["t", "t"], identifiers, payloads, lambda: boxes)
    tally = Tally(HOUR)
    tally.add(run)
    assert (tally.times, tally.cells) == ({0: 1, 1: 1}, {(0, 0): 1})


def test_counts_travel_and_add_up() -> None:
    tally = Tally(HOUR)
    tally.add([note(1, 5, Box(0, 0, 1, 1)), note(2, HOUR)])
    arrived = Tally.of_members(HOUR, tally.members())
    assert (arrived.times, arrived.cells) == (tally.times, tally.cells)
    arrived.merge(tally)
    assert (arrived.times, arrived.cells) == ({0: 2, 1: 2}, {(0, 0): 2})
    with pytest.raises(ValueError, match="times"):
        Tally.of_members(HOUR, {"cells": []})
