"""Standard Webhooks: the secrets of subscriptions, and the signatures made with them.

Nothing that could sign is stored. Every secret is derived from the server's key, the subscription's id and a number
that rises when it is rotated; so it can be shown once, and made again whenever something is to be signed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from aviso_server.errors import LogUnavailable
from aviso_server.lockfile import move_into_place

__all__ = ["KEY_BYTES", "Signer", "Vault", "read_or_make_key"]

KEY_BYTES = 32
_NONCE = 12


def read_or_make_key(file: Path) -> bytes:
    """Read the server's key from a file that only its user can read; make it if there is none."""
    try:
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            draft = file.with_name(f"{file.name}.{os.getpid()}.new")
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(descriptor, base64.b64encode(os.urandom(KEY_BYTES)) + b"\n")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            move_into_place(draft, file)
        key = base64.b64decode(file.read_bytes().strip(), validate=True)
    except (OSError, ValueError) as error:
        raise LogUnavailable(f"the key of subscriptions in '{file}' cannot be used: {error}") from error
    if len(key) < KEY_BYTES:
        raise LogUnavailable(
            f"the key of subscriptions in '{file}' is too short: {KEY_BYTES} bytes in base64 are needed"
        )
    return key


class Signer:
    """Signs for one subscription with one of its secrets."""

    __slots__ = ("_private", "_secret")

    def __init__(self, seed: bytes, asymmetric: bool) -> None:
        self._secret = seed
        self._private = Ed25519PrivateKey.from_private_bytes(seed) if asymmetric else None

    @property
    def secret(self) -> str:
        """What a receiver checks signatures with: a secret, or the public key of ed25519."""
        if self._private is None:
            return "whsec_" + base64.b64encode(self._secret).decode()
        public = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return "whpk_" + base64.b64encode(public).decode()

    def sign(self, content: bytes) -> bytes:
        """Return the signature as it stands in the header."""
        if self._private is None:
            return b"v1," + base64.b64encode(hmac.digest(self._secret, content, "sha256"))
        return b"v1a," + base64.b64encode(self._private.sign(content))


class Vault:
    """Derives secrets, and seals what has to be stored but not read by others."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._sealing = AESGCM(self._derived(b"seal"))

    def signer(self, subscription: str, number: int, asymmetric: bool) -> Signer:
        """Return the signer with a secret of a subscription."""
        kind = b"v1a" if asymmetric else b"v1"
        return Signer(self._derived(kind, subscription.encode(), str(number).encode()), asymmetric)

    def seal(self, subscription: str, text: bytes) -> bytes:
        """Encrypt something that belongs to a subscription."""
        nonce = os.urandom(_NONCE)
        return nonce + self._sealing.encrypt(nonce, text, subscription.encode())

    def unseal(self, subscription: str, sealed: bytes) -> bytes:
        """Decrypt it; LogUnavailable if another key has sealed it."""
        try:
            return self._sealing.decrypt(sealed[:_NONCE], sealed[_NONCE:], subscription.encode())
        except InvalidTag:
            raise LogUnavailable("the headers of a subscription were sealed with another key") from None

    def _derived(self, *parts: bytes) -> bytes:
        return hmac.new(self._key, b"\x00".join((b"aviso-subscriptions", *parts)), hashlib.sha256).digest()
