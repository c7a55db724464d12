"""The keys that tokens are checked with: exactly one kind, public ones really public, algorithms pinned."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

from aviso_server.config.public_keys import algorithms_of, read_public_keys
from tests.config.configurations import inspected, keys

RSA = rsa.generate_private_key(65537, 2048)
P256 = ec.generate_private_key(ec.SECP256R1())
P384 = ec.generate_private_key(ec.SECP384R1())
K256 = ec.generate_private_key(ec.SECP256K1())
EDWARDS = ed25519.Ed25519PrivateKey.generate()


def pem(private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | dsa.DSAPrivateKey) -> str:
    return private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def certificate() -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "issuer")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(RSA.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    return builder.sign(RSA, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


PRIVATE = EDWARDS.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def section(**members: object) -> str:
    usual = {"enabled": True, "mode": "trusted_proxy", "admin_roles": {"r": ["admin"]}}
    return json.dumps({"auth": {**usual, **members}})


@pytest.mark.parametrize(
    ("text", "algorithms"),
    [
        (pem(RSA), {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
        (certificate(), {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
        (pem(P256), {"ES256"}),
        (pem(P384), {"ES384"}),
        (pem(EDWARDS), {"EdDSA"}),
    ],
    ids=["rsa", "certificate", "p-256", "p-384", "ed25519"],
)
def test_a_key_is_good_for_its_own_algorithms_only(text: str, algorithms: set[str], tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text(f"the key of the issuer\n{text}")
    (key,) = read_public_keys(file)
    assert set(algorithms_of(key)) == algorithms


def test_a_file_may_hold_several_keys(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text(pem(RSA) + pem(EDWARDS))
    assert len(read_public_keys(file)) == 2
    assert inspected(tmp_path, section(public_key_file=str(file))).problems == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no PEM block"),
        ("hello", "no PEM block"),
        ("é", "not PEM text"),
        (PRIVATE, "private key"),
        (pem(RSA) + PRIVATE, "private key"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "not a public key"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "not a public key or a certificate"),
        (pem(rsa.generate_private_key(65537, 1024)), "too weak"),
        (pem(K256), "no accepted algorithm"),
        (pem(dsa.generate_private_key(2048)), "no accepted algorithm"),
    ],
    ids=["empty", "words", "not ascii", "private", "public and private", "key", "certificate", "short", "curve", "dsa"],
)
def test_what_is_not_a_public_key(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text(text, encoding="utf-8")
    found = inspected(tmp_path, section(public_key_file=str(file)))
    [problem] = found.problems
    assert problem.key == "auth.public_key_file"
    assert words in problem.message


def test_a_missing_file(tmp_path: Path) -> None:
    [problem] = inspected(tmp_path, section(public_key_file=str(tmp_path / "none.pem"))).problems
    assert problem.key == "auth.public_key_file"
    assert "cannot be read" in problem.message


def test_one_kind_of_key_and_no_more(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text(pem(RSA))
    given = {"jwt_secret": "s3cret", "public_key_file": str(file), "jwks_url": "https://issuer.example.org/keys"}
    for name, value in given.items():
        assert inspected(tmp_path, section(**{name: value})).problems == ()
    for left_out, expected in (
        ("jwt_secret", {"auth.jwks_url"}),
        ("public_key_file", {"auth.jwks_url"}),
        ("jwks_url", {"auth.public_key_file"}),
        ("", {"auth.public_key_file", "auth.jwks_url"}),
    ):
        members = {name: value for name, value in given.items() if name != left_out}
        assert keys(inspected(tmp_path, section(**members))) == expected
    assert keys(inspected(tmp_path, section())) == {"auth.jwt_secret"}


@pytest.mark.parametrize(
    ("members", "key"),
    [
        ({"algorithms": ["HS256"]}, "auth.algorithms[0]"),
        ({"algorithms": ["RS256", "none"]}, "auth.algorithms[1]"),
        ({"algorithms": ["rs256"]}, "auth.algorithms[0]"),
        ({"algorithms": "RS256"}, "auth.algorithms"),
        ({"audience": " aviso"}, "auth.audience"),
        ({"issuer": "me "}, "auth.issuer"),
        ({"jwks_url": "http://issuer.example.org/keys"}, "auth.jwks_url"),
        ({"jwks_url": "https://u:p@issuer.example.org/keys"}, "auth.jwks_url"),
        ({"jwks_url": "issuer.example.org"}, "auth.jwks_url"),
    ],
)
def test_values(members: dict[str, object], key: str, tmp_path: Path) -> None:
    found = inspected(tmp_path, section(**{"jwks_url": "https://issuer.example.org/keys?v=1", **members}))
    assert keys(found) == {key}


def test_algorithms_need_public_keys(tmp_path: Path) -> None:
    assert keys(inspected(tmp_path, section(jwt_secret="s", algorithms=["RS256"]))) == {"auth.algorithms"}
    assert keys(inspected(tmp_path, section(jwt_secret="s", algorithms=["HS256"]))) == {"auth.algorithms"}


def test_algorithms_must_fit_the_key(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text(pem(P384))
    assert keys(inspected(tmp_path, section(public_key_file=str(file)))) == {"auth.algorithms"}
    assert inspected(tmp_path, section(public_key_file=str(file), algorithms=["ES384"])).problems == ()
