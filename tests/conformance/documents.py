"""Reads the examples of a documentation page: commands, what they should do, and tables."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Example", "examples", "table"]


class Example(NamedTuple):
    """A section of a page with commands to run."""

    title: str
    commands: list[str]
    expected: list[str]


def examples(text: str) -> list[Example]:
    """The sections of a page that have both shell commands and a list of what to expect."""
    found = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, rest = section.partition("\n")
        blocks = re.findall(r"^```bash\n(.*?)^```$", rest, flags=re.MULTILINE | re.DOTALL)
        _, _, promises = rest.partition("\nExpected:\n")
        expected = [line.removeprefix("- ") for line in promises.splitlines() if line.startswith("- ")]
        if blocks and expected:
            commands = [command for block in blocks for command in _commands(block)]
            found.append(Example(title.strip(), commands, expected))
    return found


def _commands(block: str) -> list[str]:
    """The curl commands of a shell block; each begins at the start of a line."""
    return [f"curl {command.strip()}" for command in re.split(r"^curl ", block, flags=re.MULTILINE)[1:]]


def table(text: str, heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, without the marks for code."""
    _, _, rest = text.partition(f"# {heading}\n")
    lines = [line for line in rest.partition("\n#")[0].splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:]]
