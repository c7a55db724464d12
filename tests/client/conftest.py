"""A server per module, the published client for it, and an environment without anybody's own settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyaviso import AvisoClient

from tests.client.aviso_command import AvisoCommand
from tests.client.configuration import configuration
from tests.client.connection import connect
from tests.client.listening import Open
from tests.harness import Server


@pytest.fixture(autouse=True)
def nobodys_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The client finds no address, credentials or state but those of the test."""
    for name in [name for name in os.environ if name.startswith("AVISO_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of this module. What a test publishes is still there for the next one."""
    with Server(configuration(), tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def client(server: Server) -> AvisoClient:
    """The published client, connected to the server of this module."""
    return connect(server)


@pytest.fixture
def listen() -> Iterator[Open]:
    """Opens listeners that are closed at the end of the test."""
    with ExitStack() as closing:
        yield Open(closing)


@pytest.fixture
def aviso(server: Server, tmp_path: Path) -> AvisoCommand:
    """The `aviso` command, told where the server of this module is."""
    return AvisoCommand(server.url, tmp_path)
