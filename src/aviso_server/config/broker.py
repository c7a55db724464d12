"""Rules of `notification_backend.jetstream`: addresses the client can dial and files it can use."""

from __future__ import annotations

import importlib.util
import re
import ssl
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from aviso_server.config.settings import Backend, Tls
from aviso_server.config.tree import Findings

__all__ = ["check_broker"]

_SECTION = "notification_backend.jetstream"
_PLAIN, _WEB = ("nats", "tls"), ("ws", "wss")
_ADDRESSES = "nats://host:port, several separated by commas; also tls://, ws:// and wss://"
_CERTIFICATE = re.compile(rb"-----BEGIN (TRUSTED |X509 )?CERTIFICATE-----")
_PRIVATE_KEY = re.compile(rb"-----BEGIN ([A-Z]+ )*PRIVATE KEY-----")
_SEED = re.compile(rb"BEGIN USER NKEY SEED[^\n]*\n([^\n]+)\n")


def check_broker(backend: Backend, findings: Findings) -> None:
    """Report what keeps a server from reaching its broker, as far as it shows without one."""
    jetstream = backend.jetstream
    if jetstream.tls.key_file is not None and jetstream.tls.cert_file is None:
        findings.refuse(f"{_SECTION}.tls.cert_file", "must be set when key_file is", "the certificate of that key")
    if backend.kind != "jetstream":
        return
    if not findings.broken(f"{_SECTION}.nats_url"):
        _addresses([each.strip() for each in jetstream.nats_url.split(",")], findings)
    _authorities(jetstream.tls.ca_file, findings)
    _own_certificate(jetstream.tls, findings)
    _credentials(jetstream.credentials_file, findings)


def _addresses(addresses: list[str], findings: Findings) -> None:
    """Messages count the addresses instead of repeating them: there may be a password inside."""
    for number, address in enumerate(addresses, 1):
        reason = _address_problem(address)
        if reason is not None:
            which = f"address {number} of {len(addresses)} " if len(addresses) > 1 else ""
            findings.refuse(f"{_SECTION}.nats_url", which + reason, _ADDRESSES)
    if not findings.broken(f"{_SECTION}.nats_url") and len({_scheme(each) in _WEB for each in addresses}) > 1:
        findings.refuse(f"{_SECTION}.nats_url", "mixes ws:// or wss:// with other addresses", "all of them, or none")


def _address_problem(address: str) -> str | None:
    if not address:
        return "is empty"
    if any(character.isspace() or not character.isprintable() for character in address):
        return "contains blanks or control characters"
    scheme = _scheme(address)
    if scheme not in (*_PLAIN, *_WEB):
        return f"has the scheme '{scheme}://'"
    if scheme in _WEB and importlib.util.find_spec("aiohttp") is None:
        return f"needs the package 'aiohttp' for {scheme}://, and it is not installed"
    try:
        parts = urlsplit(address if "://" in address else f"nats://{address}")
        port = parts.port
    except ValueError:
        return "has a port that is not a number from 1 to 65535, or brackets that do not match"
    if port == 0:
        return "has the port 0"
    return None if parts.hostname else "has no host"


def _scheme(address: str) -> str:
    scheme, separator, _ = address.partition("://")
    return scheme if separator else "nats"


def _authorities(file: Path | None, findings: Findings) -> None:
    key = f"{_SECTION}.tls.ca_file"
    if file is None or _content(file, key, "a PEM file with certificates", findings) is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=str(file))
    except ssl.SSLError:
        findings.refuse(key, "the file holds no certificate that can be read", "a PEM file with certificates")


def _own_certificate(tls: Tls, findings: Findings) -> None:
    cert_key, key_key = f"{_SECTION}.tls.cert_file", f"{_SECTION}.tls.key_file"
    cert_accepted, key_accepted = "a PEM file with a certificate", "a PEM file with the private key, not encrypted"
    cert = None if tls.cert_file is None else _content(tls.cert_file, cert_key, cert_accepted, findings)
    key = cert if tls.key_file is None else _content(tls.key_file, key_key, key_accepted, findings)
    if cert is not None and not _CERTIFICATE.search(cert):
        findings.refuse(cert_key, "the file holds no certificate in PEM form", cert_accepted)
    if key is not None and not _PRIVATE_KEY.search(key):
        beside = "must be set: cert_file holds no private key"
        message = beside if tls.key_file is None else "the file holds no private key in PEM form"
        findings.refuse(key_key, message, key_accepted)
    if tls.cert_file is None or None in (cert, key) or findings.broken(cert_key) or findings.broken(key_key):
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_password)
    except ssl.SSLError as error:
        mismatch = error.reason == "KEY_VALUES_MISMATCH"
        message = "is not the key of the certificate" if mismatch else f"cannot be used: {error.reason or error}"
        findings.refuse(key_key if mismatch else cert_key, message, key_accepted if mismatch else cert_accepted)
    except ValueError as error:
        findings.refuse(key_key, str(error), key_accepted)


def _no_password() -> NoReturn:
    # without this OpenSSL asks on the terminal, where nobody sits
    raise ValueError("the private key is encrypted")


def _credentials(file: Path | None, findings: Findings) -> None:
    key, accepted = f"{_SECTION}.credentials_file", "a NATS credentials file with a user JWT and a seed"
    content = None if file is None else _content(file, key, accepted, findings)
    if content is None:
        return
    seed = _SEED.search(content)
    if b"BEGIN NATS USER JWT" not in content or seed is None:
        findings.refuse(key, "the file holds no user JWT with its seed", accepted)
        return
    import nkeys  # most servers do without it

    try:
        nkeys.from_seed(bytearray(seed[1].strip()))
    except Exception:  # the library has many words for a seed that is none
        findings.refuse(key, "the seed in the file is not valid", accepted)


def _content(file: Path, key: str, accepted: str, findings: Findings) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError as error:
        findings.refuse(key, f"the file '{file}' cannot be read: {error.strerror or error}", accepted)
        return None
