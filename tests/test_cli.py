"""The reference page of the command line names every command and option there is, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from aviso_server.cli import main

PAGE = (Path(__file__).parents[1] / "docs" / "cli.md").read_text(encoding="utf-8")


def test_every_command_with_its_options() -> None:
    chapter = r"^## `aviso-server ([a-z]+(?: [a-z]+)*)[^`]*`$(.*?)(?=^## |\Z)"
    chapters = re.findall(chapter, PAGE, re.MULTILINE | re.DOTALL)
    documented = {name: sorted(re.findall(r"^\| `(--[\w-]+)` \|", text, re.MULTILINE)) for name, text in chapters}
    assert documented == {name: _options(command) for name, command in _commands(main)}


def _commands(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """All commands with their whole names; of groups, those in them."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield before + name, command


def _options(command: click.Command) -> list[str]:
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return sorted(option.opts[0] for option in options)


def test_every_command_has_examples_and_the_group_exit_codes() -> None:
    assert all("Examples:" in (command.help or "") for _, command in _commands(main))
    assert all("Examples:" in (command.help or "") for command in main.commands.values())
    assert "Exit codes: 0" in (main.help or "")
