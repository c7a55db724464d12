"""Every key is documented, and a configuration file of the reference works as it is."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from aviso_server.config import inspect, shown
from aviso_server.config.reading import ENTRY_KEYS, settings_keys
from aviso_server.config.settings import Duration, Roles, Secret, Settings
from aviso_server.config.sources import Node, read_yaml
from tests.config.configurations import inspected
from tests.harness import Server
from tests.harness.auth_service import AuthOTron, basic
from tests.harness.broker import single
from tests.harness.client import body
from tests.harness.patience import PATIENCE
from tests.harness.tokens import SECRET, bearer, token

FILE = Path(__file__).parents[2] / "examples" / "reference-config.yaml"

# Keys of this server that the reference does not have.
OURS = (
    "subscriptions.",
    "application.allowed_hosts",
    "application.homepage.",
    "application.polygon_output",
    "archive.",
    "auth.algorithms",
    "auth.audience",
    "auth.issuer",
    "auth.jwks_url",
    "auth.public_key_file",
    "auth.verify_not_before",
    "idempotency.",
    "insight.",
    "lateness.",
    "limits.",
    "logging.otlp.",
    "notification_backend.jetstream.credentials_file",
    "notification_backend.jetstream.tls.",
    "notification_backend.sqlite.",
    "watch_endpoint.buffer_bytes",
)


def leaves(node: Node, prefix: str = "") -> Iterator[str]:
    for name, child in node.members.items():
        yield f"{prefix}{name}"
        yield from leaves(child, f"{prefix}{name}.")


def test_the_file_uses_every_key_of_the_reference() -> None:
    tree, problems = read_yaml(FILE)
    assert problems == []
    used = set(leaves(tree))
    known = [name for name, _ in settings_keys() if not name.startswith(OURS)]
    assert [name for name in known if name not in used] == []
    entries = tree.members["notification_schema"].members.values()
    used_by_entries = {name for entry in entries for name in leaves(entry)}
    known = [name for name in ENTRY_KEYS if not name.startswith(OURS)]
    assert [name for name in known if name not in used_by_entries] == ["max_historical_notifications"]


def test_the_file_uses_no_other_key() -> None:
    found = inspect({}, FILE)
    assert found.problems == ()
    assert [warning.key for warning in found.warnings] == ["notification_backend.jetstream.enable_auto_reconnect"]
    used = set(leaves(read_yaml(FILE)[0]))
    assert [name for name in used if name.startswith(OURS)] == []


@pytest.fixture(scope="module")
def service() -> Iterator[AuthOTron]:
    """The authentication service."""
    with AuthOTron() as running:
        yield running


@pytest.fixture(scope="module")
def metrics_port() -> int:
    """A port that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, service: AuthOTron, metrics_port: int) -> Iterator[Server]:
    """A server with the file as it is; the environment says where things are on this machine."""
    with single(tmp_path_factory.mktemp("broker")) as broker:
        environment = {
            "AVISOSERVER_APPLICATION__PORT": "0",
            "AVISOSERVER_METRICS__PORT": str(metrics_port),
            "AVISOSERVER_NOTIFICATION_BACKEND__JETSTREAM__NATS_URL": broker.url,
            "AVISOSERVER_AUTH__AUTH_O_TRON_URL": service.url,
            "AVISOSERVER_AUTH__JWT_SECRET": SECRET,
        }
        with Server(FILE, tmp_path_factory.mktemp("server"), environment) as running:
            yield running


def test_it_serves(server: Server) -> None:
    assert server.client.get("/health").status == 200
    assert server.client.get("/ready").status == 200
    assert server.client.get("/api/v1/schema").json()["event_types"] == ["dissemination", "extreme_event", "mars"]


def test_publish_and_replay(server: Server) -> None:
    mars = {
        "class": "od",
        "expver": "1",
        "domain": "g",
        "date": "2025-07-06",
        "time": "12",
        "stream": "enfo",
        "step": 6,
    }
    server.client.publish("mars", mars, {"location": "here"})
    with server.client.watch("mars", {"class": "od"}, from_id="1") as stream:
        event = stream.notification()
    assert event["id"] == "mars@1"
    assert event["source"] == "https://aviso.example.org"
    assert event["data"]["identifier"]["date"] == "20250706"
    assert event["data"]["payload"] == {"location": "here"}


def test_access(server: Server) -> None:
    producer, reader = basic("producer-user", "producer-pass"), basic("reader-user", "reader-pass")
    admin = basic("admin-user", "admin-pass")
    request = body("dissemination", {"destination": "CIP", "target": "E1", "class": "od"}, payload="x")
    assert server.client.answer("notification", request).status == 401
    assert server.client.answer("notification", request, reader).status == 403
    assert server.client.answer("notification", request, producer).status == 200
    wanted = body("dissemination", {"destination": "CIP", "class": "od"}, from_id="1")
    assert server.client.answer("replay", wanted, admin).status == 200


def test_metrics(server: Server, metrics_port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    assert "\naviso_auth_requests_total{" in text
    assert '\naviso_ecpds_access_decisions_total{outcome="allow"} ' in text


def test_placeholders_do_not_reach_the_log(server: Server) -> None:
    assert "change-me" not in server.stdout + server.stderr
    assert SECRET not in server.stdout + server.stderr


PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
ENTRY = "notification_schema.<event_type>."


def kind_of(hint: Any) -> str:
    """What a key takes, in the words of the page."""
    kind, *rules = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if get_origin(kind) in (Union, UnionType):
        return kind_of(get_args(kind)[0])
    if rules and isinstance(rules[0], Duration):
        return "duration"
    if get_origin(kind) is Literal:
        return " / ".join(get_args(kind))
    names = {int: "integer", bool: "boolean", str: "text", Secret: "secret text", Path: "path"}
    return {**names, tuple[str, ...]: "list of texts", Roles: "roles by realm"}[kind]


def default_of(name: str) -> str:
    """What stands in for a key that is absent, as one would write it."""
    value: Any = shown(Settings())
    for part in name.split("."):
        value = value[part]
    if value in (None, "", [], {}):
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_every_key_with_its_type_and_default() -> None:
    documented = {name: (kind, default.strip("`")) for name, kind, default, _ in ROWS if not name.startswith(ENTRY)}
    assert documented == {name: (kind_of(hint), default_of(name)) for name, hint in settings_keys()}


def test_every_key_of_an_event_type() -> None:
    documented = [name.removeprefix(ENTRY) for name, *_ in ROWS if name.startswith(ENTRY)]
    assert sorted(documented) == sorted(ENTRY_KEYS)


def test_every_key_has_a_meaning() -> None:
    assert all(meaning.strip().endswith((".", ".**")) for *_, meaning in ROWS)


def test_the_example_is_a_configuration(tmp_path: Path) -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    found = inspected(tmp_path, example)
    assert (found.problems, found.warnings) == ((), ())
    assert found.settings.application.base_url == "https://aviso.example.org"


AUTH_PAGE = (Path(__file__).parents[2] / "docs" / "authentication.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", AUTH_PAGE, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_configurations(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = Ed25519PrivateKey.generate().public_key()
    (tmp_path / "keys.pem").write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    monkeypatch.chdir(tmp_path)
    found = inspected(tmp_path, example)
    assert (found.problems, found.warnings) == ((), ())
    assert found.settings.auth.enabled


def test_every_key_is_used_or_named() -> None:
    names = [name for name, _ in settings_keys() if name.startswith("auth.")]
    assert [name for name in names if name.split(".")[1] not in AUTH_PAGE] == []


def test_the_answer_about_the_caller_looks_like_this(tmp_path: Path) -> None:
    [shown] = re.findall(r"```json\n(.*?)```", AUTH_PAGE, re.DOTALL)
    secret = "something-long-and-random-that-the-proxy-knows-too"
    example = next(text for text in EXAMPLES if "read_roles" in text)
    (tmp_path / "page.yaml").write_text(example + "application: {port: 0}\nnotification_backend: {kind: in_memory}\n")
    with Server(tmp_path / "page.yaml", tmp_path / "server") as server:
        header = bearer(token("reader-user", secret=secret, exp=1_933_135_628))
        answer = server.client.request("GET", "/api/v1/auth/check", None, header).json()
    assert answer | {"request_id": ""} == json.loads(shown) | {"request_id": ""}
