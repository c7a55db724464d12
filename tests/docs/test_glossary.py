"""The glossary in CONTRIBUTING.md has the words of the code, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py"))).lower()
GLOSSARY = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Glossary")[2].partition("\n## ")[0]
WORDS = re.findall(r"^\| ([^|`]+) \| [^|]+ \|$", GLOSSARY, re.MULTILINE)[1:]  # the first is the heading


def is_used(word: str, source: str) -> bool:
    """Tell whether a source uses a word; code writes blanks and hyphens in its own ways."""
    return re.search(rf"(?<![a-z]){re.sub('[ -]', '[ _-]?', word.lower())}s?(?![a-z])", source) is not None


@pytest.mark.parametrize("word", WORDS)
def test_the_code_uses_the_word(word: str) -> None:
    assert is_used(word, SOURCE), f"CONTRIBUTING.md explains '{word}', which src does not use"


def test_the_glossary_is_one_page_in_length() -> None:
    assert 30 <= len(WORDS) <= 45
    assert len(set(WORDS)) == len(WORDS)


def test_a_word_that_is_gone_is_noticed() -> None:
    assert is_used("live feed", "class LiveFeed".lower())
    assert is_used("catch-up", "catch_up()")
    assert not is_used("live feed", "livery feeds")
    assert not is_used("chunk", "chunky")
