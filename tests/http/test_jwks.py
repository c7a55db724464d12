"""Keys that are published at a URL: fetched when needed, not too often, and changed by their owner at any time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from aviso_server.http.auth import Jwks, Outgoing, read_key_set
from aviso_server.http.response import HttpError
from tests.harness import Server
from tests.harness.tokens import SECRET, bearer, claims, signed
from tests.harness.web_service import Said, WebService

RSA = rsa.generate_private_key(65537, 2048)
SHORT_RSA = rsa.generate_private_key(65537, 1024)
CURVE = ec.generate_private_key(ec.SECP256R1())
EDWARDS = ed25519.Ed25519PrivateKey.generate()
PINNED = ("RS256", "ES256", "EdDSA")


def jwk(private: Any, **more: Any) -> dict[str, Any]:
    kinds: dict[type, Any] = {
        rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
        ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
        ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
    }
    algorithm = next(found for kind, found in kinds.items() if isinstance(private, kind))
    return {**json.loads(algorithm.to_jwk(private.public_key())), **more}


def key_set(*keys: Any) -> bytes:
    return json.dumps({"keys": keys}).encode()


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def issuer() -> Iterator[WebService]:
    """Publishes one key."""
    with WebService(lambda asked: Said(200, key_set(jwk(RSA, kid="one")))) as running:
        yield running


def run(issuer: WebService, script: Callable[[Jwks, Clock], Awaitable[None]]) -> None:
    """Run a script against fresh keys."""

    async def main() -> None:
        outgoing, clock = Outgoing(1.0), Clock()
        try:
            await script(Jwks(f"{issuer.url}/keys", PINNED, outgoing, clock), clock)
        finally:
            await outgoing.close()

    asyncio.run(main())


def test_keys_are_fetched_once(issuer: WebService) -> None:
    async def script(keys: Jwks, clock: Clock) -> None:
        many = await asyncio.gather(*(keys.candidates("one", "RS256") for _ in range(20)))
        assert [len(found) for found in many] == [1] * 20
        assert len(await keys.candidates(None, "RS256")) == 1
        assert await keys.candidates("one", "ES256") == []

    run(issuer, script)
    assert [asked.path for asked in issuer.asked] == ["/keys"]


def test_an_unknown_id_causes_a_fetch_but_not_too_often(issuer: WebService) -> None:
    async def script(keys: Jwks, clock: Clock) -> None:
        assert len(await keys.candidates("one", "RS256")) == 1
        for number in range(50):
            assert await keys.candidates(f"invented-{number}", "RS256") == []
        assert len(issuer.asked) == 1
        issuer.answer = lambda asked: Said(200, key_set(jwk(EDWARDS, kid="two")))
        clock.now += 31
        assert len(await keys.candidates("two", "EdDSA")) == 1
        assert len(issuer.asked) == 2
        assert await keys.candidates("one", "RS256") == [], "a key that was withdrawn must not be used"

    run(issuer, script)


def test_keys_are_fetched_again_after_a_while(issuer: WebService) -> None:
    async def script(keys: Jwks, clock: Clock) -> None:
        await keys.candidates("one", "RS256")
        issuer.answer = lambda asked: Said(200, key_set(jwk(CURVE, kid="one")))
        clock.now += 601
        assert await keys.candidates("one", "RS256") == []
        assert len(await keys.candidates("one", "ES256")) == 1

    run(issuer, script)


@pytest.mark.parametrize(
    "said",
    [
        Said(500),
        Said(404),
        Said(302, headers=(("Location", "/keys"),)),
        Said(200, b"no"),
        Said(200, b"[]"),
        Said(200, b'{"keys":{}}'),
        Said(200, b'{"keys":[]}'),
        Said(200, b"x" * 2_000_000),
    ],
)
def test_keys_that_cannot_be_had(issuer: WebService, said: Said) -> None:
    usual = issuer.answer

    async def script(keys: Jwks, clock: Clock) -> None:
        issuer.answer = lambda asked: said
        for _ in range(10):
            with pytest.raises(HttpError) as refusal:
                await keys.candidates("one", "RS256")
            assert refusal.value.status == 503
        assert len(issuer.asked) == 1, "an issuer in trouble is not asked for every token"
        issuer.answer = usual
        clock.now += 6
        assert len(await keys.candidates("one", "RS256")) == 1
        issuer.answer = lambda asked: said
        clock.now += 3600
        assert len(await keys.candidates("one", "RS256")) == 1, "known keys are used while the issuer is away"
        clock.now += 86_400
        with pytest.raises(HttpError):
            await keys.candidates("one", "RS256")

    run(issuer, script)


def test_only_keys_for_signatures_are_taken() -> None:
    secret = {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA", "kid": "secret"}
    found = read_key_set(
        key_set(
            secret,
            {**secret, "alg": "HS256", "use": "sig"},
            {**secret, "alg": "RS256"},
            jwk(RSA, kid="encryption", use="enc"),
            jwk(RSA, kid="other algorithm", alg="RS512"),
            jwk(RSA, kid="wrong algorithm", alg="HS256"),
            jwk(SHORT_RSA, kid="short"),
            {"kty": "RSA", "kid": "broken", "n": "!", "e": "AQAB"},
            {"kty": "strange"},
            None,
            jwk(RSA, kid="good", alg="RS256", use="sig"),
            jwk(CURVE, kid="curve"),
            jwk(EDWARDS),
        ),
        PINNED,
    )
    assert [(key.kid, key.algorithms) for key in found] == [
        ("good", ("RS256",)),
        ("curve", ("ES256",)),
        (None, ("EdDSA",)),
    ]


def test_a_server_with_a_key_set(issuer: WebService, tmp_path: Path) -> None:
    configuration = {
        "application": {"host": "127.0.0.1", "port": 0},
        "notification_backend": {"kind": "in_memory"},
        "auth": {
            "enabled": True,
            "mode": "trusted_proxy",
            "jwks_url": f"{issuer.url}/keys",
            "admin_roles": {"localrealm": ["admin"]},
        },
    }
    issuer.answer = lambda asked: Said(200, key_set(jwk(RSA, kid="one"), jwk(CURVE, kid="two")))
    with Server(configuration, tmp_path) as server:

        def status(text: str) -> int:
            return server.client.request("GET", "/api/v1/auth/check", None, bearer(text)).status

        assert issuer.asked == []
        assert status(jwt.encode(claims(), RSA, "RS256", {"kid": "one"})) == 200
        assert status(jwt.encode(claims(), CURVE, "ES256", {"kid": "two"})) == 200
        assert status(jwt.encode(claims(), CURVE, "ES256")) == 200
        assert status(jwt.encode(claims(), RSA, "RS256", {"kid": "two"})) == 401
        assert status(jwt.encode(claims(), EDWARDS, "EdDSA", {"kid": "one"})) == 401
        assert status(signed(claims(), SECRET, {"alg": "HS256", "kid": "one"})) == 401
        assert len(issuer.asked) == 1
