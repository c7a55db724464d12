"""The published client against a server that asks who is calling."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyaviso import Anonymous, AuthError, AvisoClient, Basic, Bearer, HttpError

from tests.client.configuration import configuration
from tests.client.connection import connect
from tests.client.listening import Open, open_streams, payloads, wait_until
from tests.harness import Server
from tests.harness.auth_service import AuthOTron
from tests.harness.tokens import SECRET, token

READER = Basic("reader-user", "reader-pass")


@pytest.fixture
def service() -> Iterator[AuthOTron]:
    """The authentication service."""
    with AuthOTron() as running:
        yield running


@pytest.fixture
def server(tmp_path: Path, service: AuthOTron) -> Iterator[Server]:
    """A server where `tide` is for users and written by producers."""
    auth = {
        "enabled": True,
        "auth_o_tron_url": service.url,
        "jwt_secret": SECRET,
        "admin_roles": {"localrealm": ["admin"]},
    }
    config: dict[str, Any] = configuration(auth=auth)
    config["notification_schema"]["tide"]["auth"] = {"required": True, "write_roles": {"localrealm": ["producer"]}}
    with Server(config, tmp_path / "server") as running:
        yield running


def publish(client: AvisoClient, payload: object) -> None:
    client.notify(event_type="tide", identifier={"gauge": "g"}, payload=payload)


def producer(server: Server) -> AvisoClient:
    return connect(server, auth=Basic("producer-user", "producer-pass"))


def test_who_may_publish(server: Server) -> None:
    publish(producer(server), 1)
    publish(connect(server, auth=Bearer(token("producer-user"))), 2)
    for auth, status in ((Anonymous(), 401), (READER, 403)):
        with pytest.raises(HttpError) as refused:
            publish(connect(server, auth=auth), 3)
        assert refused.value.status == status


def test_wrong_credentials_are_final(server: Server) -> None:
    client = connect(server, auth=Basic("reader-user", "wrong"))
    with pytest.raises(AuthError):
        next(client.listen("tide"))


def test_a_new_token_behind_a_password_is_not_noticed(server: Server, service: AuthOTron, listen: Open) -> None:
    """The service gives tokens for two or three seconds; the client has a password and never sees them."""
    service.lifetime = -57.5  # the leeway is a minute
    publisher = producer(server)
    listening = listen(server, lambda: connect(server, auth=READER).listen("tide", start_from=0))
    opened, number = open_streams(server), 0
    until = time.monotonic() + 6
    while time.monotonic() < until:
        number += 1
        publish(publisher, number)
        time.sleep(0.05)
    publish(publisher, "last")
    assert payloads(listening.up_to("last")) == [*range(1, number + 1), "last"]
    wait_until(lambda: open_streams(server) > opened, "the listener has come back")


def test_a_token_that_has_expired_ends_the_listener(server: Server, listen: Open) -> None:
    client = connect(server, auth=Bearer(token("reader-user", lifetime=-55.5)))
    listening = listen(server, lambda: client.listen("tide"))
    publish(producer(server), "in time")
    assert payloads(listening.take()) == ["in time"]
    with pytest.raises(AuthError):
        listening.take()
