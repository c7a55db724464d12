"""The reference page of the command line names every command and option there is, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from aviso_server.cli import main

PAGE = (Path(__file__).parents[1] / "docs" / "cli.md").read_text(encoding="utf-8")
SHARED = {"--url", "--token", "--user", "--json"}


def test_options_for_a_running_server_are_those_of_many_commands() -> None:
    [text] = re.findall(r"^## Options for a running server$(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    assert _rows(text) == SHARED


def test_every_command_with_its_options() -> None:
    chapter = r"^## `aviso-server ([a-z]+(?: [a-z]+)*)[^`]*`$(.*?)(?=^## |\Z)"
    chapters = re.findall(chapter, PAGE, re.MULTILINE | re.DOTALL)
    documented = {name: sorted(_rows(text) | (SHARED if _takes_shared(text) else set())) for name, text in chapters}
    assert documented == {name: _options(command) for name, command in _commands(main)}


def _rows(text: str) -> set[str]:
    return set(re.findall(r"^\| `(--[\w-]+)` \|", text, re.MULTILINE))


def _takes_shared(text: str) -> bool:
    """Whether a chapter says that its command takes the options of the first one."""
    return re.search(r"^(.*Takes|Besides) \[the options for a running server\]", text, re.MULTILINE) is not None


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
