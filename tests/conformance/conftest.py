"""One server per module and backend; cases that need another configuration launch their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from tests.conformance.configuration import changed, conformance
from tests.harness import Client, Server
from tests.harness.broker import single

pytest.register_assert_rewrite("tests.conformance.expectations")

Launch = Callable[..., Server]


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
            directory = tmp_path_factory.mktemp("server")
            if backend == "jetstream":
                broker = running.enter_context(single(directory / "broker"))
                changes = changed({"notification_backend": {"jetstream": {"nats_url": broker.url}}}, changes or {})
            return running.enter_context(Server(conformance(backend, changes, without), directory, environment))

        yield start


@pytest.fixture(scope="module")
def server(launch: Launch) -> Server:
    """The server of this module."""
    return launch()


@pytest.fixture
def api(server: Server) -> Client:
    """A client of this module's server, which holds no notifications when the test begins."""
    server.client.wipe_all()
    return server.client
