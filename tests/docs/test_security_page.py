"""The threat model: every threat has a test that keeps what stands against it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "security.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.partition("| Asset |")[2].partition("\n\n")[0].splitlines()[2:] if line.startswith("|")]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row.split("|")[1:3]))
def test_every_threat_names_tests_that_exist(row: str) -> None:
    _, asset, threat, defence, kept_by, _ = (cell.strip() for cell in row.split("|"))
    assert all([asset, threat, defence])
    named = re.findall(r"`([^`]+\.py)::(test_\w+)`", kept_by)
    assert named, "no test keeps it"
    for file, name in named:
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        functions = [each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        assert name in functions, f"tests/{file} has no {name}"


def test_the_table_is_there() -> None:
    assert len(ROWS) > 15
