"""`aviso-server check`, `help` and `version`."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import click
import msgspec

from aviso_server import __version__
from aviso_server.commands.terminal import FAILED, json_option, print_json, print_result, problem_record
from aviso_server.config import Inspection, inspect
from aviso_server.config.settings import Settings
from aviso_server.errors import PipelineError, Problem
from aviso_server.spark.java import find_java

__all__ = ["check", "show_help", "version"]


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Fail on warnings too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with problems and warnings.")
def check(file: Path | None, strict: bool, as_json: bool) -> None:
    """Check a configuration and list everything that is wrong with it.

    Without FILE the usual places are read. Variables AVISOSERVER_... count either way, as they do for serve.
    Unknown keys and the like are warnings; they change the exit code only with --strict. An archive that cannot be used
    is a warning too: the server would start without it and keep everything in its log.

    \b
    Examples:
      aviso-server check
      aviso-server check configuration/config.yaml
      aviso-server check config.yaml --strict --json

    \b
    Exit codes: 0 fit to start, 1 problems (with --strict also warnings) found, 2 wrong usage.
    """
    found = inspect(os.environ, file)
    if not found.problems:
        found = msgspec.structs.replace(found, warnings=(*found.warnings, *_archive_warnings(found.settings)))
    usable = not (found.problems or (strict and found.warnings))
    if as_json:
        print_json(
            {
                "ok": usable,
                "problems": [problem_record(problem) for problem in found.problems],
                "warnings": [problem_record(warning) for warning in found.warnings],
            }
        )
    else:
        _print(found, usable)
    if not usable:
        raise SystemExit(FAILED)


def _archive_warnings(settings: Settings) -> list[Problem]:
    """Return warnings about an archive that cannot be used; the server starts without it."""
    if not settings.archive.enabled:
        return []
    from aviso_server.lake.problems import problems  # what reads tables is large

    found = [Problem("archive.path", each.removeprefix("archive.path: ")) for each in problems(settings.archive.path)]
    if not settings.archive.spark.startswith("sc://"):
        try:
            find_java(os.environ)
        except PipelineError as error:
            found.append(Problem("archive.spark", f"nothing can be archived: {error}"))
    return found


def _print(found: Inspection, usable: bool) -> None:
    for warning in found.warnings:
        click.echo(f"warning: {warning}")
    for problem in found.problems:
        click.echo(f"problem: {problem}")
    if not usable:
        kind = "problem" if found.problems else "warning"
        count = len(found.problems or found.warnings)
        strict = "" if found.problems else ", and --strict allows none"
        click.echo(f"Not usable: {count} {kind}{'s' if count != 1 else ''}{strict}.")
        return
    settings = found.settings
    names = ", ".join(event_type.name for event_type in settings.event_types) or "none"
    click.echo(f"Fit to start: {settings.notification_backend.kind} backend, event types: {names}.")


@click.command("help")
@click.argument("names", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def show_help(context: click.Context, names: tuple[str, ...]) -> None:
    """Explain this program or one of its commands, as --help does.

    \b
    Examples:
      aviso-server help
      aviso-server help serve
      aviso-server help pipeline replay
    """
    shown = context.find_root()
    for name in names:
        command = shown.command.get_command(shown, name) if isinstance(shown.command, click.Group) else None
        if command is None:
            raise click.UsageError(f"No such command '{' '.join(names)}'.")
        shown = click.Context(command, info_name=name, parent=shown)
    click.echo(shown.get_help())


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Print the version of this server.

    \b
    Examples:
      aviso-server version
      aviso-server version --json
    """
    described = {"name": "aviso-server", "version": __version__, "python": platform.python_version()}
    print_result(described, f"aviso-server {__version__}", as_json)
