"""`aviso-server check`: is this configuration fit to start with?"""

from __future__ import annotations

import os
from pathlib import Path

import click

from aviso_server.commands.output import FAILED, print_json, problem_record
from aviso_server.config import Inspection, inspect

__all__ = ["check"]


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with problems and warnings.")
def check(file: Path | None, as_json: bool) -> None:
    """Check a configuration and list everything that is wrong with it.

    Without FILE the usual places are read. Variables AVISOSERVER_... count either way, as they do for serve.
    Keys that nothing reads are warnings and do not change the exit code.

    \b
    Examples:
      aviso-server check
      aviso-server check configuration/config.yaml
      aviso-server check config.yaml --json

    \b
    Exit codes: 0 fit to start, 1 problems found, 2 wrong usage.
    """
    found = inspect(os.environ, file)
    if as_json:
        print_json(
            {
                "ok": not found.problems,
                "problems": [problem_record(problem) for problem in found.problems],
                "warnings": [problem_record(warning) for warning in found.warnings],
            }
        )
    else:
        _print(found)
    if found.problems:
        raise SystemExit(FAILED)


def _print(found: Inspection) -> None:
    for warning in found.settings.warnings:
        click.echo(f"warning: {warning}")
    for unknown in found.warnings:
        click.echo(f"warning: {unknown}")
    for problem in found.problems:
        click.echo(f"problem: {problem}")
    if found.problems:
        click.echo(f"Not usable: {len(found.problems)} problem{'s' if len(found.problems) != 1 else ''}.")
        return
    settings = found.settings
    names = ", ".join(event_type.name for event_type in settings.event_types) or "none"
    click.echo(f"Fit to start: {settings.notification_backend.kind} backend, event types: {names}.")
