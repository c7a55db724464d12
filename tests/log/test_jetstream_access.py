"""Brokers that want to know who is calling: a token, a credentials file, certificates."""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import json
from pathlib import Path
from typing import Any

import nkeys
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from aviso_server.errors import LogUnavailable
from aviso_server.log.jetstream.client import BrokerOptions
from aviso_server.log.jetstream.local_broker import LocalBroker
from aviso_server.log.jetstream.log import JetStreamLog
from tests.log.scenario import draft, in_event_loop, opened, sequences


async def works(url: str, **options: Any) -> None:
    """Something can be stored and read."""
    async with opened(JetStreamLog(BrokerOptions(nats_url=url, retry_attempts=1, **options))) as log:
        await log.append(draft(1))
        assert await sequences(log, "mars") == [1]
        await log.wipe("mars")


async def refused(url: str, **options: Any) -> None:
    """The broker does not let it in, and no secret is in the message."""
    log = JetStreamLog(BrokerOptions(nats_url=url, retry_attempts=1, timeout_seconds=3, **options))
    with pytest.raises(LogUnavailable, match="cannot use the broker") as failure:
        await log.open()
    assert "s3cret" not in str(failure.value)
    await log.close()


@in_event_loop
async def test_token(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "broker", more='authorization { token: "s3cret" }') as broker:
        await works(broker.url, token="s3cret")
        await refused(broker.url)
        await refused(broker.url, token="wrong")


def certificate(
    directory: Path, name: str, issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A certificate for this machine in `<name>.pem`, its key in `<name>.key`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key if issuer is None else issuer[1], hashes.SHA256())
    )
    (directory / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (directory / f"{name}.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return made, key


@in_event_loop
async def test_certificates_on_both_sides(tmp_path: Path) -> None:
    authority = certificate(tmp_path, "authority")
    certificate(tmp_path, "broker", authority)
    certificate(tmp_path, "client", authority)
    files = {
        "cert_file": str(tmp_path / "broker.pem"),
        "key_file": str(tmp_path / "broker.key"),
        "ca_file": str(tmp_path / "authority.pem"),
        "verify": True,
    }
    with LocalBroker(tmp_path / "data", more=f"tls {json.dumps(files)}") as broker:
        ours = {"cert_file": tmp_path / "client.pem", "key_file": tmp_path / "client.key"}
        await works(broker.url, ca_file=tmp_path / "authority.pem", **ours)
        await refused(broker.url, ca_file=tmp_path / "authority.pem")
        await refused(broker.url, **ours)


OPERATOR, ACCOUNT, USER = 14 << 3, 0, 20 << 3


def seed(prefix: int, number: int = 0) -> bytes:
    """A secret key in the broker's own text form."""
    raw = hashlib.sha256(b"%d %d" % (prefix, number)).digest()
    first = (18 << 3) | (prefix >> 5)
    body = bytes([first, (prefix & 31) << 3]) + raw
    return base64.b32encode(body + checksum(body).to_bytes(2, "little")).rstrip(b"=")


def checksum(data: bytes) -> int:
    """CRC-16, as it ends every key of the broker."""
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc


def token(claims: dict[str, Any], signer: nkeys.KeyPair) -> str:
    """A signed claim in the broker's form."""

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    head = part(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    body = part(json.dumps({"iss": signer.public_key.decode(), "jti": "x", "iat": 1_700_000_000, **claims}).encode())
    return f"{head}.{body}.{part(signer.sign(f'{head}.{body}'.encode()))}"


@in_event_loop
async def test_credentials_file(tmp_path: Path) -> None:
    seeds = [seed(OPERATOR), seed(ACCOUNT), seed(ACCOUNT, 1), seed(USER)]
    operator, account, system, user = (nkeys.from_seed(bytearray(each)) for each in seeds)
    everything = ("subs", "data", "payload", "imports", "exports", "conn", "leaf", "mem_storage", "disk_storage")
    limits = {**dict.fromkeys((*everything, "streams", "consumer"), -1), "wildcards": True}

    def claim(pair: nkeys.KeyPair, signer: nkeys.KeyPair, kind: str, **members: Any) -> str:
        nats = {"type": kind, "version": 2, **members}
        return token({"sub": pair.public_key.decode(), "name": kind, "nats": nats}, signer)

    accounts = {
        account.public_key.decode(): claim(account, operator, "account", limits=limits),
        system.public_key.decode(): claim(system, operator, "account"),
    }
    more = "\n".join(
        [
            f"operator: {claim(operator, operator, 'operator')}",
            f"system_account: {system.public_key.decode()}",
            "resolver: MEMORY",
            f"resolver_preload: {json.dumps(accounts)}",
        ]
    )
    file = tmp_path / "aviso.creds"
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{claim(user, account, 'user', subs=-1, data=-1, payload=-1)}\n"
        "------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed(USER).decode()}\n------END USER NKEY SEED------\n"
    )
    with LocalBroker(tmp_path / "broker", more=more) as broker:
        await works(broker.url, credentials_file=file)
        await refused(broker.url)
        await refused(broker.url, credentials_file=tmp_path / "missing.creds")
