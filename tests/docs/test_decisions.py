"""Every decision says whether it still holds, and the list of decisions says the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
DECISIONS = sorted(FOLDER.glob("0*.md"))
STATUS = re.compile(r"Status: (accepted|withdrawn|replaced by \[(\d+)\]\(([^)]+)\))\.")


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_decision_has_a_status_and_a_line_in_the_list(path: Path) -> None:
    title, blank, status = path.read_text(encoding="utf-8").splitlines()[:3]
    number = int(path.name[:4])
    assert title.startswith(f"# {number}. ")
    assert blank == ""
    found = STATUS.match(status)
    assert found, f"'{status}' is not a status"
    line = f"| {number} | [{title.partition('. ')[2]}]({path.name}) | {found[1]} |"
    assert line in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    if found[2]:
        successor = FOLDER / found[3]
        assert int(successor.name[:4]) == int(found[2]) > number
        assert STATUS.search(successor.read_text(encoding="utf-8"))


def test_numbers_are_used_once_and_without_a_gap() -> None:
    assert [int(path.name[:4]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))
