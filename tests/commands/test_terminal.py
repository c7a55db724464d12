"""Output of commands: tables, bars and the progress of a replay."""

from __future__ import annotations

import io
import time
from contextlib import redirect_stderr, redirect_stdout

import pytest
from rich.console import Console
from rich.text import Text

from aviso_server.commands.terminal import PATIENCE, ReplayProgress, bar, print_csv, print_table, range_text


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


def test_only_numbers_stand_at_the_right() -> None:
    with redirect_stdout(Screen(terminal=False)) as screen:
        print_table(("key", "value", "lag"), [("id", "e69142", 7), ("batch", 1, ""), ("name", "x", 12)])
    assert screen.getvalue().splitlines() == [
        "key    value   lag",
        "id     e69142    7",
        "batch  1",
        "name   x        12",
    ]


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
    with ReplayProgress(Console(file=screen, force_terminal=terminal), patience) as progress:
        for sequence in range(11, 211):
            progress.advance(sequence)
        assert shown("200 notifications", screen, 5.0 if seen else 0.2) is seen
    assert progress.count == 200


def test_the_bar_is_full_at_the_end_that_was_told() -> None:
    screen = io.StringIO()
    with ReplayProgress(Console(file=screen, force_terminal=True, no_color=True, width=100), 0.0) as progress:
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


ROWS = [("mars", 1234567890123456789, "a place with a long description of itself"), ("tide", 7, "")]
HEADINGS = ("stream", "count", "about")


def table(terminal: bool, width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    with redirect_stdout(Screen(terminal)) as screen:
        print_table(HEADINGS, ROWS, title="streams")
    return Text.from_ansi(screen.getvalue()).plain.splitlines()


@pytest.mark.parametrize("width", [20, 200])
def test_a_piped_table_is_plain_columns(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert table(False, width, monkeypatch) == [
        "streams",
        "stream                count  about",
        "mars    1234567890123456789  a place with a long description of itself",
        "tide                      7",
    ]


def test_a_table_on_a_terminal_folds_text_and_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, tight = table(True, 100, monkeypatch), table(True, 60, monkeypatch)
    assert any("1234567890123456789 │ a place with a long description of itself" in line for line in wide)
    assert any("1234567890123456789 │ a place with a long" in line for line in tight)
    assert all(len(line) <= 60 for line in tight)


def test_a_narrow_terminal_gets_one_value_per_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = table(True, 30, monkeypatch)
    assert lines[:4] == [
        "streams",
        "  stream: mars",
        "  count: 1234567890123456789",
        "  about: a place with a long description of itself",
    ]


def test_comma_separated_values_have_a_heading_and_quotes_where_needed() -> None:
    with redirect_stdout(Screen(terminal=False)) as screen:
        print_csv(("name", "count", "about"), [("a,b", 7, None), ('say "x"', 0, "")])
    assert screen.getvalue() == 'name,count,about\n"a,b",7,\n"say ""x""",0,\n'


@pytest.mark.parametrize(("first", "last", "words"), [(1, 7, "1 to 7"), (8, 7, "empty"), (3, 3, "3 to 3")])
def test_ranges_are_shown_in_one_way(first: int, last: int, words: str) -> None:
    assert range_text(first, last) == words
