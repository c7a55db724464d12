"""Reads `AVISOSERVER_…` variables into a tree."""

from __future__ import annotations

from collections.abc import Mapping

from aviso_server.config.tree import Node
from aviso_server.errors import Problem

__all__ = ["CONFIG_FILE", "PREFIX", "is_unicode", "read_environment"]

PREFIX = "AVISOSERVER_"
CONFIG_FILE = "AVISOSERVER_CONFIG_FILE"
_NO_KEYS = frozenset({CONFIG_FILE.lower(), "avisoserver_log"})


def read_environment(environ: Mapping[str, str]) -> tuple[Node, list[Problem]]:
    """The tree that the variables describe: names in any case, `__` between levels, every value text."""
    root = Node({}, "")
    problems: list[Problem] = []
    for variable in sorted(environ):
        name = variable.lower()
        if not name.startswith(PREFIX.lower()) or name in _NO_KEYS:
            continue
        levels = name[len(PREFIX) :].split("__")
        value = environ[variable]
        if not is_unicode(value):
            problems.append(Problem(".".join(levels), "the value is not Unicode text", "UTF-8 text", variable))
            continue
        node = Node(value, variable, value)
        for level in reversed(levels):
            node = Node({level: node}, variable)
        root = node.over(root)
    return root, problems


def is_unicode(text: str) -> bool:
    """False if the system gave bytes that are no UTF-8: Python keeps them as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
