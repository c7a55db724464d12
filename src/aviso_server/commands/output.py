"""How commands speak: results on stdout, complaints on stderr, JSON where asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import click
import msgspec

from aviso_server.errors import Problem

__all__ = ["FAILED", "complain", "fail", "json_option", "print_json", "printable", "problem_record"]

FAILED = 1
"""The exit code of a command that found a problem or could not do its work."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def print_json(value: Any) -> None:
    """One JSON value on one line of stdout."""
    click.echo(msgspec.json.encode(value))


def printable(text: str) -> str:
    """Text from elsewhere as one line that cannot steer a terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def problem_record(problem: Problem) -> dict[str, str]:
    """A problem as a JSON object."""
    return {
        "source": problem.source,
        "key": problem.key,
        "message": problem.message,
        "accepted": problem.accepted,
    }


def complain(problems: Iterable[Problem]) -> None:
    """Every problem of a configuration on stderr, one per line."""
    found = list(problems)
    click.echo(f"The configuration cannot be used ({len(found)} problem{'s' if len(found) != 1 else ''}):", err=True)
    for problem in found:
        click.echo(f"  {problem}", err=True)


def fail(message: str) -> NoReturn:
    """Say on stderr why it did not work and end with exit code 1."""
    click.echo(f"aviso-server: {message}", err=True)
    raise SystemExit(FAILED)
