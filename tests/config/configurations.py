"""Small ways to write a configuration and look at what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

from aviso_server.config import Inspection, inspect
from aviso_server.errors import Problem

EVENT_TYPE = """
notification_schema:
  tide:
    identifier:
      port: {type: StringHandler, required: true}
    topic: {base: tide, key_order: [port]}
"""


def inspected(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> Inspection:
    """What comes of a file with this text."""
    file = folder / "config.yaml"
    file.write_text(dedent(text), encoding="utf-8")
    return inspect(environ or {}, file)


def problems_at(found: Inspection, key: str) -> list[Problem]:
    """The problems of exactly this key."""
    return [problem for problem in found.problems if problem.key == key]


def keys(found: Inspection) -> set[str]:
    """The keys that have a problem."""
    return {problem.key for problem in found.problems}
