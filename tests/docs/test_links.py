"""Links between our own pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.joinpath("docs").rglob("*.md")])


def targets(page: Path) -> list[Path]:
    """The files and folders of ours that a page links to."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", prose)
    return [(page.parent / link.split("#")[0]).resolve() for link in links if not re.match(r"[a-z]+:|#", link)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [target for target in targets(page) if not target.exists()] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    ahead = [ROOT / "README.md"]
    while ahead:
        place = ahead.pop()
        if place.is_dir():
            ahead += place.glob("*.md")
        elif place.suffix == ".md" and place.exists() and place not in reached:
            reached.add(place)
            ahead += targets(place)
    assert set(PAGES) - reached == set()
