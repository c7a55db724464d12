"""The broker of `notification_backend.jetstream`: addresses that can be dialled and files that can be used."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from aviso_server.config import Inspection
from tests.config.configurations import inspected, keys

SECTION = "notification_backend.jetstream"
KEY, OTHER_KEY = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())


def certificate() -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "aviso")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(KEY.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    return builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.PEM)


def private(key: ec.EllipticCurvePrivateKey = KEY, how: KeySerializationEncryption | None = None) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how or NoEncryption())


CERTIFICATE = certificate()


def with_broker(folder: Path, **members: object) -> Inspection:
    return inspected(folder, json.dumps({"notification_backend": {"kind": "jetstream", "jetstream": members}}))


def with_files(folder: Path, **contents: bytes) -> Inspection:
    """A configuration whose `tls` section names a file with each of these contents."""
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return with_broker(folder, tls={name: str(folder / name) for name in contents})


@pytest.mark.parametrize(
    "url",
    [
        "nats://localhost:4222",
        "nats://localhost",
        "nats://user:p%40ss@broker:4222",
        "tls://broker:4222",
        "nats://a:4222,nats://b:4222",
        "nats://a, nats://b",
        "broker",
        "broker:4222",
        "user:pw@broker:4222",
        "nats://[::1]:4222",
    ],
)
def test_addresses(url: str, tmp_path: Path) -> None:
    assert with_broker(tmp_path, nats_url=url).problems == ()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nats://127.0.0.1:notaport", "port"),
        ("nats://127.0.0.1:70000", "port"),
        ("nats://127.0.0.1:0", "port 0"),
        ("nats://:4222", "no host"),
        ("nats://", "no host"),
        ("nats://a b", "blanks"),
        ("nats://a,,nats://b", "address 2 of 3 is empty"),
        ("nats://a,", "address 2 of 2 is empty"),
        ("http://foo", "scheme 'http://'"),
        ("NATS://foo", "scheme 'NATS://'"),
        ("nats://a,http://u:hush@b", "address 2 of 2 has the scheme 'http://'"),
        ("nats://u:hush@:x", "port"),
    ],
)
def test_what_is_no_address(url: str, words: str, tmp_path: Path) -> None:
    [problem] = with_broker(tmp_path, nats_url=url).problems
    assert problem.key == f"{SECTION}.nats_url"
    assert words in problem.message
    assert "nats://host:port" in problem.accepted
    assert "hush" not in str(problem)


def test_web_sockets_need_their_package(tmp_path: Path) -> None:
    """The client of the broker speaks them with aiohttp, which this server does not bring along."""
    [problem] = with_broker(tmp_path, nats_url="wss://broker").problems
    assert "aiohttp" in problem.message


def test_the_broker_counts_only_when_it_is_used(tmp_path: Path) -> None:
    members: dict[str, object] = {"nats_url": "http://foo", "credentials_file": "none", "tls": {"ca_file": "none"}}
    assert inspected(tmp_path, json.dumps({"notification_backend": {"jetstream": members}})).problems == ()
    assert keys(with_broker(tmp_path, **members)) == {
        f"{SECTION}.nats_url",
        f"{SECTION}.credentials_file",
        f"{SECTION}.tls.ca_file",
    }


def test_files_that_are_fine(tmp_path: Path) -> None:
    assert with_files(tmp_path, ca_file=CERTIFICATE, cert_file=CERTIFICATE, key_file=private()).problems == ()
    assert with_files(tmp_path, cert_file=CERTIFICATE + private()).problems == ()


@pytest.mark.parametrize(
    ("contents", "name", "words"),
    [
        ({"ca_file": b"hello"}, "ca_file", "no certificate"),
        ({"ca_file": b""}, "ca_file", "no certificate"),
        ({"cert_file": b"hello", "key_file": private()}, "cert_file", "no certificate"),
        ({"cert_file": CERTIFICATE, "key_file": b"hello"}, "key_file", "no private key"),
        ({"cert_file": CERTIFICATE}, "key_file", "must be set"),
        ({"cert_file": CERTIFICATE, "key_file": private(OTHER_KEY)}, "key_file", "not the key of the certificate"),
        ({"cert_file": CERTIFICATE, "key_file": private(KEY, BestAvailableEncryption(b"x"))}, "key_file", "encrypted"),
        (
            {
                "cert_file": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                "key_file": private(),
            },
            "cert_file",
            "cannot be used",
        ),
    ],
    ids=["words", "empty", "no certificate", "no key", "key nowhere", "other key", "encrypted", "broken"],
)
def test_files_that_are_not(contents: dict[str, bytes], name: str, words: str, tmp_path: Path) -> None:
    [problem] = with_files(tmp_path, **contents).problems
    assert problem.key == f"{SECTION}.tls.{name}"
    assert words in problem.message
    assert "PEM" in problem.accepted


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing, folder = str(tmp_path / "none"), str(tmp_path)
    found = with_broker(
        tmp_path, credentials_file=missing, tls={"ca_file": folder, "cert_file": missing, "key_file": missing}
    )
    assert keys(found) == {
        f"{SECTION}.{name}" for name in ("credentials_file", "tls.ca_file", "tls.cert_file", "tls.key_file")
    }
    assert all("cannot be read" in problem.message for problem in found.problems)
    assert all(problem.source.startswith(str(tmp_path / "config.yaml")) for problem in found.problems)


def user_seed() -> str:
    body = bytes([(18 << 3) | (20 >> 2), (20 & 3) << 6]) + bytes(range(32))
    crc = 0
    for byte in body:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return base64.b32encode(body + crc.to_bytes(2, "little")).rstrip(b"=").decode()


CREDENTIALS = """-----BEGIN NATS USER JWT-----
a.b.c
------END NATS USER JWT------
-----BEGIN USER NKEY SEED-----
%s
------END USER NKEY SEED------
"""


def test_credentials(tmp_path: Path) -> None:
    file = tmp_path / "aviso.creds"
    for content, problems in (
        (CREDENTIALS % user_seed(), 0),
        (CREDENTIALS % "SUANOSEED", 1),
        ("hello", 1),
        ("", 1),
        ((CREDENTIALS % user_seed()).partition("-----BEGIN USER")[0], 1),
    ):
        file.write_text(content)
        found = with_broker(tmp_path, credentials_file=str(file))
        assert [problem.key for problem in found.problems] == [f"{SECTION}.credentials_file"] * problems, content
