"""`aviso-server replay` shows who is asking."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from aviso_server.cli import main
from tests.harness import Client, Server
from tests.harness.client import body, encode
from tests.harness.tokens import SECRET, bearer, token

GUARDED = {
    "application": {"host": "127.0.0.1", "port": 0},
    "notification_backend": {"kind": "in_memory"},
    "auth": {
        "enabled": True,
        "mode": "trusted_proxy",
        "jwt_secret": SECRET,
        "admin_roles": {"localrealm": ["admin"]},
    },
    "notification_schema": {
        "tide": {
            "identifier": {"port": {"type": "StringHandler", "required": True}},
            "topic": {"base": "tide", "key_order": ["port"]},
            "auth": {"required": True},
        }
    },
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with one notification that only users may read."""
    with Server(GUARDED, tmp_path_factory.mktemp("guarded")) as server:
        publisher = Client(server.host, server.port)
        request, admin = encode(body("tide", {"port": "oslo"})), bearer(token("admin-user"))
        assert publisher.request("POST", "/api/v1/notification", request, admin).status == 200
        yield f"http://{server.host}:{server.port}"


def test_a_token_opens_the_stream(url: str) -> None:
    shown = CliRunner().invoke(main, ["replay", "tide", "port=oslo", "--url", url, "--token", token()])
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.startswith("tide@1 ")


def test_the_token_may_come_from_the_environment(url: str) -> None:
    shown = CliRunner().invoke(main, ["replay", "tide", "port=oslo", "--url", url], env={"AVISO_TOKEN": token()})
    assert shown.exit_code == 0, shown.stderr


def test_without_credentials_the_server_refuses(url: str) -> None:
    refused = CliRunner().invoke(main, ["replay", "tide", "port=oslo", "--url", url])
    assert refused.exit_code == 1
    assert refused.stdout == ""
    assert "AVISO_TOKEN" in refused.stderr, "what to do about it"


@pytest.mark.parametrize("wrong", [["--user", "nobody"], ["--user", "a:b", "--token", "x"]])
def test_credentials_that_make_no_sense_are_wrong_usage(url: str, wrong: list[str]) -> None:
    assert CliRunner().invoke(main, ["replay", "tide", "port=oslo", "--url", url, *wrong]).exit_code == 2
