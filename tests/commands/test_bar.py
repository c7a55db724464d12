"""The bar of a long command: for people at a terminal, with what is done and what is being worked on."""

from __future__ import annotations

import io
from contextlib import redirect_stderr

import pytest

from aviso_server.commands.bar import bar


class Screen(io.StringIO):
    """What a person sees, or a file."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        """True for a terminal."""
        return self._terminal


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the screen itself says what it is."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


def test_it_shows_how_far_it_is_and_what_it_works_on() -> None:
    with redirect_stderr(Screen(terminal=True)) as screen, bar("auditing") as moved:
        moved(3, 12, "mars")
    assert "auditing mars" in screen.getvalue()
    assert "3/12" in screen.getvalue()


@pytest.mark.parametrize("at_once", [True, False])
def test_it_may_wait_until_there_is_something_to_show(at_once: bool) -> None:
    with redirect_stderr(Screen(terminal=True)) as screen, bar("checking", at_once):
        pass
    assert ("checking" in screen.getvalue()) is at_once


def test_a_file_gets_no_bar() -> None:
    with redirect_stderr(Screen(terminal=False)) as screen, bar("loading") as moved:
        moved(1, 2)
    assert "loading" not in screen.getvalue()
