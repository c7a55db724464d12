"""Tokens that somebody has tampered with, headers that make no sense, and streams that outlive their token."""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness import Client, Response, Server
from tests.harness.client import body
from tests.harness.tokens import SECRET, bearer, claims, signed, token, unsigned

CHECK = "/api/v1/auth/check"
AUDIENCE, ISSUER = "aviso", "https://issuer.example.org/"

RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
CURVE = ec.generate_private_key(ec.SECP256R1())
OTHER_CURVE = ec.generate_private_key(ec.SECP384R1())
EDWARDS = ed25519.Ed25519PrivateKey.generate()
PEM = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
PEMS = b"".join(
    key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for key in (RSA, CURVE, EDWARDS)
)


def configuration(**auth: Any) -> dict[str, Any]:
    identifier = {"port": {"type": "StringHandler", "required": True}}
    return {
        "application": {"host": "127.0.0.1", "port": 0},
        "notification_backend": {"kind": "in_memory", "in_memory": {"max_history_per_topic": 1000}},
        "watch_endpoint": {"replay_batch_size": 1, "replay_batch_delay_ms": 250},
        "auth": {"enabled": True, "mode": "trusted_proxy", "admin_roles": {"localrealm": ["admin"]}, **auth},
        "notification_schema": {
            "tide": {
                "identifier": identifier,
                "topic": {"base": "tide", "key_order": ["port"]},
                "auth": {"required": True},
            }
        },
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that shares a secret with the maker of tokens."""
    with Server(configuration(jwt_secret=SECRET), tmp_path_factory.mktemp("shared")) as running:
        yield running


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that knows public keys only, and expects an audience, an issuer and a token whose time has come."""
    directory = tmp_path_factory.mktemp("public")
    (directory / "keys.pem").write_bytes(PEMS)
    demands = {"audience": AUDIENCE, "issuer": ISSUER, "verify_not_before": True}
    with Server(configuration(public_key_file="keys.pem", **demands), directory) as running:
        yield running


def check(server: Server, text: str) -> Response:
    return server.client.request("GET", CHECK, None, bearer(text))


def test_a_good_token(server: Server) -> None:
    response = check(server, token("admin-user"))
    assert response.status == 200
    assert (response.json()["username"], response.json()["admin"]) == ("admin-user", True)


def with_header(**header: Any) -> Callable[[], str]:
    return lambda: signed(claims("admin-user"), header={"alg": "HS256", **header})


def unsigned_with(algorithm: str) -> Callable[[], str]:
    return lambda: unsigned(claims("admin-user"), {"alg": algorithm}) + "."


def claiming(**changes: Any) -> Callable[[], str]:
    return lambda: token("admin-user", **changes)


def swapped() -> str:
    """The claims of an administrator under a reader's signature."""
    head, _, signature = token("reader-user").split(".")
    return ".".join([head, token("admin-user").split(".")[1], signature])


def by_library(key: Any, algorithm: str, headers: dict[str, Any] | None = None, **changes: Any) -> str:
    stated = {"aud": AUDIENCE, "iss": ISSUER, **changes}
    return jwt.encode(claims("admin-user", **stated), key, algorithm, headers)


def padded(text: str, length: int) -> str:
    return text + "A" * length


TAMPERED: dict[str, Callable[[], str]] = {
    **{f"alg {name}": unsigned_with(name) for name in ("none", "None", "NONE", "nOnE", "")},
    "alg none with a signature": with_header(alg="none"),
    "no alg": lambda: signed(claims("admin-user"), header={"typ": "JWT"}),
    "alg null": with_header(alg=None),
    "alg list": with_header(alg=["HS256"]),
    "alg in small letters": with_header(alg="hs256"),
    "HS384": lambda: jwt.encode(claims("admin-user"), SECRET, "HS384"),
    "HS512": lambda: jwt.encode(claims("admin-user"), SECRET, "HS512"),
    "RS256": lambda: jwt.encode(claims("admin-user"), RSA, "RS256"),
    "said to be RS256": with_header(alg="RS256"),
    "wrong secret": lambda: token("admin-user", secret=SECRET + "x"),
    "empty secret": lambda: token("admin-user", secret=""),
    "another user's signature": swapped,
    "no signature": lambda: token("admin-user").rpartition(".")[0] + ".",
    "two parts": lambda: token("admin-user").rpartition(".")[0],
    "four parts": lambda: token("admin-user") + ".x",
    "half a signature": lambda: token("admin-user")[:-20],
    "a longer signature": lambda: padded(token("admin-user"), 4),
    "unknown critical header": with_header(crit=["x"], x=1),
    "detached": with_header(b64=False, crit=["b64"]),
    "kid is a number": with_header(kid=5),
    "header is a list": lambda: signed(claims("admin-user"), header=[1]),
    "header is deep": lambda: signed(claims("admin-user"), header=b"[" * 5000),
    "claims are a list": lambda: signed([claims("admin-user")]),
    "claims are deep": lambda: signed(b"[" * 5000),
    "claims are text": lambda: signed("admin-user"),
    "claims are not JSON": lambda: signed(b"admin-user"),
    "claims are not UTF-8": lambda: signed(b'{"username":"\xff"}'),
    "expired": claiming(lifetime=-62),
    "long expired": claiming(exp=0),
    "no exp": claiming(exp=...),
    "exp null": claiming(exp=None),
    "exp text": claiming(exp=str(int(time.time()) + 3600)),
    "exp true": claiming(exp=True),
    "exp fraction": claiming(exp=time.time() + 3600.5),
    "exp whole, written as fraction": claiming(exp=float(int(time.time()) + 3600)),
    "exp negative": claiming(exp=-1),
    "exp too large": claiming(exp=2**64),
    "exp huge": claiming(exp=10**400),
    "exp list": claiming(exp=[int(time.time()) + 3600]),
    "roles text": claiming(roles="admin"),
    "roles null": claiming(roles=None),
    "roles numbers": claiming(roles=[1]),
    "roles map": claiming(roles={"admin": True}),
    "realm number": claiming(realm=1),
    "realm list": claiming(realm=["localrealm"]),
    "name number": claiming(username=1),
    "name list": claiming(username=["admin-user"]),
    "sub number": claiming(sub=1),
    "attributes number": claiming(attributes={"a": 1}),
    "attributes null": claiming(attributes=None),
    "attributes nested": claiming(attributes={"a": {"b": "c"}}),
    "attributes list": claiming(attributes=["a"]),
    "nobody": claiming(username=...),
    "empty": lambda: "..",
    "not a token": lambda: "x",
    "not base64": lambda: "a.b.c",
    "huge": lambda: padded("a", 40_000),
    "huge and good": claiming(attributes={"a": "x" * 20_000}),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_tampered_tokens(server: Server, name: str) -> None:
    response = check(server, TAMPERED[name]())
    assert response.status == 401, response.body
    assert response.json()["code"] == "UNAUTHORIZED"
    assert response.header("www-authenticate") == "Bearer"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"nbf": 2**40}, "x"),
        ({"iat": 2**40}, "x"),
        ({"nbf": "soon", "iat": [], "jti": 5}, "x"),
        ({"aud": "somebody else", "iss": "anybody"}, "x"),
        ({"sub": "not me"}, "x"),
        ({"exp": 2**64 - 1}, "x"),
        ({"attributes": {"a": "b"}, "more": {"of": "it"}}, "x"),
        ({"username": "é ☃"}, "é ☃"),
    ],
)
def test_what_is_not_checked(server: Server, changes: dict[str, Any], name: str) -> None:
    response = check(server, token("x", **changes))
    assert response.status == 200, response.body
    assert response.json()["username"] == name


@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (CURVE, "ES256"), (EDWARDS, "EdDSA")])
def test_public_keys(strict_server: Server, key: Any, algorithm: str) -> None:
    for changes in ({}, {"aud": ["other", AUDIENCE]}, {"nbf": int(time.time())}):
        response = check(strict_server, by_library(key, algorithm, **changes))
        assert response.status == 200, response.body
        assert response.json()["admin"] is True


def public_jwk() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(OTHER_RSA.public_key()))
    return content


def demanded(**changes: Any) -> dict[str, Any]:
    return claims("admin-user", **{"aud": AUDIENCE, "iss": ISSUER, **changes})


CONFUSED: dict[str, Callable[[], str]] = {
    "signed with the file as a secret": lambda: signed(demanded(), PEMS.decode()),
    "signed with one public key as a secret": lambda: signed(demanded(), PEM.decode()),
    "the same, said to be RS256": lambda: signed(demanded(), PEM.decode(), {"alg": "RS256"}),
    "signed with the secret of others": lambda: signed(demanded()),
    "alg none": lambda: unsigned(demanded(), {"alg": "none"}) + ".",
    "another RSA key": lambda: by_library(OTHER_RSA, "RS256"),
    "another curve": lambda: by_library(OTHER_CURVE, "ES384"),
    "RS512, which is not pinned": lambda: by_library(RSA, "RS512"),
    "PS256, which is not pinned": lambda: by_library(RSA, "PS256"),
    "a key of its own": lambda: by_library(OTHER_RSA, "RS256", {"jwk": public_jwk()}),
    "a key from elsewhere": lambda: by_library(OTHER_RSA, "RS256", {"jku": "http://127.0.0.1:1/", "kid": "../../etc"}),
    "RS256 said to be ES256": lambda: by_library(RSA, "RS256", {"alg": "ES256"}),
    "no audience": lambda: by_library(RSA, "RS256", aud=...),
    "another audience": lambda: by_library(RSA, "RS256", aud="other"),
    "audience null": lambda: by_library(RSA, "RS256", aud=None),
    "audience list": lambda: by_library(RSA, "RS256", aud=["other", "aviso2"]),
    "audience map": lambda: by_library(RSA, "RS256", aud={AUDIENCE: 1}),
    "no issuer": lambda: by_library(RSA, "RS256", iss=...),
    "another issuer": lambda: by_library(RSA, "RS256", iss=ISSUER[:-1]),
    "not yet": lambda: by_library(RSA, "RS256", nbf=int(time.time()) + 120),
    "not before text": lambda: by_library(RSA, "RS256", nbf="soon"),
    "expired": lambda: by_library(RSA, "RS256", exp=int(time.time()) - 62),
    "no exp": lambda: by_library(RSA, "RS256", exp=...),
}


@pytest.mark.parametrize("name", CONFUSED)
def test_public_keys_cannot_be_confused(strict_server: Server, name: str) -> None:
    try:
        text = CONFUSED[name]()
    except (TypeError, jwt.PyJWTError):  # the library refuses to make some of these
        text = handmade(name)
    response = check(strict_server, text)
    assert response.status == 401, response.body


def handmade(name: str) -> str:
    """The token that the library does not want to make, signed with the RSA key all the same."""
    audiences: dict[str, Any] = {"audience null": None, "audience map": {AUDIENCE: 1}}
    changes = {"aud": audiences[name]} if name in audiences else {}
    algorithm = "ES256" if "ES256" in name else "RS256"
    text = unsigned(demanded(**changes), {"alg": algorithm})
    signature = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256).sign(text.encode(), RSA)
    return f"{text}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def test_a_short_secret_is_reported_and_works(tmp_path: Path) -> None:
    with Server(configuration(jwt_secret="short"), tmp_path) as running:
        assert check(running, token("x", secret="short")).status == 200
        running.stop()
        warning = "auth.jwt_secret: is only 5 bytes long and could be guessed"
        assert warning in running.stdout
        assert warning in running.stderr
        assert len(running.stderr.splitlines()) == 1


def raw(server: Server, value: bytes, path: str = CHECK, method: str = "GET") -> tuple[int, bytes]:
    """Status and body of the answer to a request with this Authorization header, byte for byte."""
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n".encode()
    with socket.create_connection((server.host, server.port), timeout=60) as connection:
        connection.sendall(head + b"Authorization: " + value + b"\r\n\r\n")
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return int(answer.split(b" ", 2)[1]), answer.partition(b"\r\n\r\n")[2]


GOOD = token("reader-user", lifetime=100_000).encode()


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A good header with a few bytes changed, taken away or added."""
    value = bytearray(b"Bearer " + GOOD)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(value)))
        match draw(st.sampled_from(["insert", "delete", "replace", "cut", "repeat"])):
            case "insert":
                value[place:place] = draw(st.binary(min_size=1, max_size=3))
            case "delete":
                del value[place : place + draw(st.integers(1, 5))]
            case "replace":
                value[place : place + 1] = draw(st.binary(min_size=1, max_size=1))
            case "cut":
                del value[place:]
            case "repeat":
                value += value[place:]
    return bytes(value)


schemes = st.sampled_from(
    [b"Bearer", b"bearer", b"BEARER", b"Basic", b"Digest", b"Negotiate", b"", b"Bearer,", b"\tBearer"]
)
rests = st.one_of(st.binary(max_size=80), st.just(GOOD), st.sampled_from([b"", b" ", b"..", b"a.b.c", b"\xff\xfe"]))
anything = st.one_of(
    st.binary(max_size=120),
    st.tuples(schemes, st.sampled_from([b" ", b"  ", b"\t", b"", b", "]), rests).map(b"".join),
    mutated(),
)


@settings(max_examples=250)
@given(value=anything.map(lambda value: value.replace(b"\r", b"").replace(b"\n", b"")))
def test_any_header_at_all(server: Server, value: bytes) -> None:
    status, answer = raw(server, value)
    assert status in (200, 400, 401)  # 400: not HTTP
    if status == 200:
        user = json.loads(answer)
        assert (user["username"], user["roles"], user["admin"]) == ("reader-user", ["reader"], False)


@settings(max_examples=60)
@given(value=anything.map(lambda value: value.replace(b"\r", b"").replace(b"\n", b"")))
def test_no_header_makes_an_administrator(server: Server, value: bytes) -> None:
    status, _ = raw(server, value, "/api/v1/admin/wipe/all", "DELETE")
    assert status in (400, 401, 403)


def test_a_token_that_was_good_is_refused_when_it_has_expired(server: Server) -> None:
    text = token("reader-user", lifetime=LIFETIME)
    ends = claims_of(text)["exp"] + 60
    asked = time.time()
    while check(server, text).status == 200:
        assert asked < ends + 0.5, "it had expired before it was sent"
        time.sleep(0.05)
        asked = time.time()
    assert time.time() > ends - 0.5
    assert check(server, text).status == 401


def test_two_headers_count_as_none(server: Server) -> None:
    both = (*bearer(token("reader-user")), *bearer(token("admin-user")))
    assert server.client.request("GET", CHECK, None, both).status == 401
    assert server.client.request("DELETE", "/api/v1/admin/wipe/all", None, both).status == 401


LIFETIME = -55.5  # with the leeway of a minute, four to five seconds are left


def test_a_watch_ends_with_its_token(server: Server) -> None:
    text = token("admin-user", lifetime=LIFETIME)
    ends = claims_of(text)["exp"] + 60
    with server.client.open("watch", body("tide", {"port": "oslo"}), bearer(text)) as stream:
        opening = stream.next()
        assert 0 <= opening.data["connection_will_close_in_seconds"] <= 5
        assert publish(server, "oslo") == 200
        stream.notification()
        closing = stream.rest()[-1]
    assert (closing.event, closing.data["reason"]) == ("connection-closing", "max_duration_reached")
    assert time.time() > ends - 1
    with server.client.open("watch", body("tide", {"port": "oslo"}), bearer(text)) as again:
        assert again.status == 401


def test_a_watch_with_a_long_token_goes_on(server: Server) -> None:
    with server.client.open("watch", body("tide", {"port": "oslo"}), bearer(token("admin-user"))) as stream:
        assert stream.next().data["connection_will_close_in_seconds"] == 3600


@pytest.mark.parametrize("operation", ["replay", "watch"])
def test_history_ends_with_the_token(server: Server, operation: str) -> None:
    """One notification every quarter of a second: there is history for ten seconds."""
    for _ in range(40):
        assert publish(server, "bergen") == 200
    text = token("admin-user", lifetime=LIFETIME)
    request = body("tide", {"port": "*"}, from_id="1")
    with server.client.open(operation, request, bearer(text)) as stream:
        closing = stream.rest()[-1]
    assert (closing.event, closing.data["reason"]) == ("connection-closing", "max_duration_reached")
    assert "replay_completed" not in stream.kinds
    assert 1 <= len(stream.notifications) < 40
    sequences = [event["sequence"] for event in stream.notifications]
    assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))


def claims_of(text: str) -> dict[str, Any]:
    part = text.split(".")[1]
    content: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return content


def publish(server: Server, port: str) -> int:
    client: Client = server.client
    return client.answer("notification", body("tide", {"port": port}), bearer(token("admin-user"))).status
