"""What the marks on a page mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.shell_blocks import RUN, SHOWS, Block, blocks, missing_line


def test_marked_blocks_are_found_with_their_place_and_unmarked_ones_are_not(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n```bash\nrm everything\n```\n\n"
        "<!-- run -->\n```bash\necho 1\necho 2\n```\n"
        "<!-- shows -->\n```text\n1\n```\n"
    )
    assert blocks(page) == [Block(RUN, "echo 1\necho 2", "page.md:6"), Block(SHOWS, "1", "page.md:11")]


@pytest.mark.parametrize(
    "text",
    [
        "<!-- walk -->\n```bash\necho\n```\n",
        "<!-- run -->\n```text\necho\n```\n",
        "<!-- run -->\n\n```bash\necho\n```\n",
    ],
    ids=["unknown mark", "wrong language", "no block"],
)
def test_a_mark_that_means_nothing_is_an_error(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match=r"page\.md"):
        blocks(page)


@pytest.mark.parametrize(
    ("expected", "printed", "missing"),
    [
        ("a\n\nc", "a\nb\nc\n", None),
        ("c\na", "a\nb\nc\n", "a"),
        ("x…z", "xyz", None),
        ("x…z", "xyz and more", "x…z"),
        ("1.5", "115", "1.5"),
        ("a\na", "a", "a"),
    ],
    ids=["lines between", "order", "ellipsis", "whole line", "literal", "once each"],
)
def test_expected_lines_must_follow_each_other(expected: str, printed: str, missing: str | None) -> None:
    assert missing_line(expected, printed) == missing
