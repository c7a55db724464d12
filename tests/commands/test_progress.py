"""The bar appears for people who wait, and for nobody else."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from aviso_server.commands.progress import PATIENCE, Progress


def shown(words: str, screen: io.StringIO, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while words not in screen.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    return words in screen.getvalue()


@pytest.mark.parametrize(
    ("terminal", "patience", "seen"), [(True, 0.0, True), (True, 60.0, False), (False, 0.0, False)]
)
def test_who_sees_the_bar(terminal: bool, patience: float, seen: bool) -> None:
    screen = io.StringIO()
    with Progress(Console(file=screen, force_terminal=terminal), patience) as progress:
        for sequence in range(11, 211):
            progress.advance(sequence)
        assert shown("200 notifications", screen, 5.0 if seen else 0.2) is seen
    assert progress.count == 200


def test_the_bar_is_full_at_the_end_that_was_told() -> None:
    screen = io.StringIO()
    with Progress(Console(file=screen, force_terminal=True, no_color=True, width=100), 0.0) as progress:
        progress.expect(210)
        for sequence in range(11, 111):
            progress.advance(sequence)
        assert shown("100 notifications", screen, 5.0)
        half = screen.getvalue().rpartition("reading history")[2].count("━")
        for sequence in range(111, 211):
            progress.advance(sequence)
        assert shown("200 notifications", screen, 5.0)
        full = screen.getvalue().rpartition("reading history")[2].count("━")
    assert 0 < half < full


def test_two_seconds() -> None:
    assert PATIENCE == 2.0
