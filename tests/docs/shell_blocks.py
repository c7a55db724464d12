"""The commands of a Markdown page that are marked to be run, and what the page says they print.

A comment on the line before a fenced block marks it:

    <!-- run -->                  run it, wait for its end, it must succeed
    <!-- run and leave open -->   run it and let it go on while the rest of the page runs
    <!-- run with Python -->      the same with a piece of Python, and with `and leave open`
    <!-- shows -->                what the command before prints; … stands for anything within a line
    <!-- the open one shows -->   what the command left open has printed by now
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

__all__ = ["RUN", "RUN_OPEN", "RUN_PYTHON", "RUN_PYTHON_OPEN", "SHOWS", "SHOWS_OPEN", "Block", "blocks", "missing_line"]

RUN = "run"
RUN_OPEN = "run and leave open"
RUN_PYTHON = "run with Python"
RUN_PYTHON_OPEN = "run with Python and leave open"
SHOWS = "shows"
SHOWS_OPEN = "the open one shows"

_MARKED = re.compile(r"^<!-- (?P<mark>[^>]*?) -->\n```(?P<language>\w*)\n(?P<text>.*?)\n```$", re.MULTILINE | re.DOTALL)
_LANGUAGE = {
    RUN: "bash",
    RUN_OPEN: "bash",
    RUN_PYTHON: "python",
    RUN_PYTHON_OPEN: "python",
    SHOWS: "text",
    SHOWS_OPEN: "text",
}


class Block(NamedTuple):
    """One marked block of a page."""

    mark: str
    text: str
    place: str  # file and line, for messages


def blocks(page: Path) -> list[Block]:
    """The marked blocks of a page, in order; raise ValueError for a mark that means nothing or marks nothing."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _MARKED.finditer(text):
        place = f"{page.name}:{text.count(chr(10), 0, match.start()) + 1}"
        if _LANGUAGE.get(match["mark"]) != match["language"]:
            raise ValueError(f"{place}: '{match['mark']}' before a {match['language'] or 'plain'} block is not a mark")
        found.append(Block(match["mark"], match["text"], place))
    if text.count("<!--") != len(found):
        raise ValueError(f"{page.name}: a comment marks no block")
    return found


def missing_line(expected: str, printed: str) -> str | None:
    """The first expected line that does not follow the ones before it in what was printed; None if all are there."""
    lines = iter(printed.splitlines())
    for wanted in filter(None, expected.splitlines()):
        pattern = re.compile(".*".join(re.escape(part) for part in wanted.split("…")))
        if not any(pattern.fullmatch(line) for line in lines):
            return wanted
    return None
