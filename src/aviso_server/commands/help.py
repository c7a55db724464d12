"""`aviso-server help`: how a command is used."""

from __future__ import annotations

import click

__all__ = ["show_help"]


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
