"""A server on each embedded log, and its subscriptions, which are removed after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness import Server
from tests.subscriptions.scene import Api, configuration


@pytest.fixture(scope="module", params=["in_memory", "sqlite"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(configuration(request.param), tmp_path_factory.mktemp("subscriptions")) as running:
        yield running


@pytest.fixture
def sea(request: pytest.FixtureRequest) -> str:
    """A sea that no other test has."""
    return str(request.node.name)[:60].replace("[", "-").replace("]", "")


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    api = Api(server.client)
    yield api
    for each in api.ok("GET")["subscriptions"]:
        api.ok("DELETE", f"/{each['id']}")
