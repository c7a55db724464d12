"""One server per backend for all modules; cases that need another configuration launch their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.configuration import changed, conformance
from tests.harness import Client, Server
from tests.harness.broker import single

pytest.register_assert_rewrite("tests.conformance.expectations")

Launch = Callable[..., Server]

_HERE = Path(__file__).parent
_shared: dict[str, Server] = {}
_closing = ExitStack()


@pytest.fixture(scope="module", params=["in_memory", "sqlite", "jetstream"])
def backend(request: pytest.FixtureRequest) -> str:
    """Where the server under test keeps its notifications."""
    return str(request.param)


@pytest.fixture(scope="module")
def launch(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """Start a server with the conformance configuration and changes to it; it runs to the end of the module."""
    with ExitStack() as running:

        def start(
            changes: Mapping[str, Any] | None = None,
            without: Sequence[str] = (),
            environment: Mapping[str, str] | None = None,
        ) -> Server:
            return _start(running, backend, tmp_path_factory.mktemp("server"), changes, without, environment)

        yield start


@pytest.fixture(scope="module")
def server(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """The server of this backend, which modules share: leave it as it is."""
    if backend not in _shared:
        _shared[backend] = _start(_closing, backend, tmp_path_factory.mktemp("server"))
    return _shared[backend]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leave no server behind for tests that have no use for it."""
    if nextitem is None or not nextitem.path.is_relative_to(_HERE):
        _shared.clear()
        _closing.close()


def _start(
    running: ExitStack,
    backend: str,
    directory: Path,
    changes: Mapping[str, Any] | None = None,
    without: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Server:
    if backend == "jetstream":
        broker = running.enter_context(single(directory / "broker"))
        changes = changed({"notification_backend": {"jetstream": {"nats_url": broker.url}}}, changes or {})
    return running.enter_context(Server(conformance(backend, changes, without), directory, environment))


@pytest.fixture
def api(server: Server) -> Client:
    """A client of the shared server, which holds no notifications when the test begins."""
    server.client.wipe_all()
    return server.client
