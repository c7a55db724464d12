"""The counter appears for people who wait, and for nobody else."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from aviso_server.commands.progress import PATIENCE, Progress


@pytest.mark.parametrize(
    ("terminal", "patience", "seen"), [(True, 0.0, True), (True, 60.0, False), (False, 0.0, False)]
)
def test_who_sees_the_counter(terminal: bool, patience: float, seen: bool) -> None:
    screen = io.StringIO()
    with Progress(Console(file=screen, force_terminal=terminal), patience) as progress:
        for _ in range(200):
            progress.advance()
        deadline = time.monotonic() + (5.0 if seen else 0.2)
        while "200 notifications" not in screen.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert ("200 notifications" in screen.getvalue()) is seen
    assert progress.count == 200


def test_two_seconds() -> None:
    assert PATIENCE == 2.0
