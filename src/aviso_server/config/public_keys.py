"""Public keys that tokens are checked with, and the algorithms each of them is good for."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key

__all__ = ["ALGORITHMS", "DEFAULT_ALGORITHMS", "PublicKey", "algorithms_of", "read_public_keys"]

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | ed448.Ed448PublicKey

_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_EDWARDS = "EdDSA"
_SMALLEST_RSA = 2048  # bits
_MARK = "-----BEGIN "

ALGORITHMS = (*_RSA, *_CURVES.values(), _EDWARDS)
"""What `auth.algorithms` may name: signatures that can be checked without being able to make them."""

DEFAULT_ALGORITHMS = ("RS256", "ES256", _EDWARDS)


def algorithms_of(key: object) -> tuple[str, ...]:
    """The algorithms a key can be used with; empty if it is too weak or of another kind."""
    if isinstance(key, rsa.RSAPublicKey):
        return _RSA if key.key_size >= _SMALLEST_RSA else ()
    if isinstance(key, ec.EllipticCurvePublicKey):
        algorithm = _CURVES.get(key.curve.name)
        return () if algorithm is None else (algorithm,)
    return (_EDWARDS,) if isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey) else ()


def read_public_keys(path: Path) -> list[PublicKey]:
    """The keys of a PEM file, in its order; ValueError if it holds anything but public keys and certificates."""
    try:
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise ValueError(f"the file cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError("the file is not PEM text") from None
    keys = [_read(block.partition("-----")[0], (_MARK + block).encode()) for block in text.split(_MARK)[1:]]
    if not keys:
        raise ValueError("the file holds no PEM block")
    return keys


def _read(label: str, pem: bytes) -> PublicKey:
    if "PRIVATE" in label:
        raise ValueError("the file holds a private key, which this server must not have")
    try:
        key = x509.load_pem_x509_certificate(pem).public_key() if "CERTIFICATE" in label else load_pem_public_key(pem)
    except Exception:  # the library has many words for a block that is not a key
        raise ValueError(f"the block '{label}' is not a public key or a certificate") from None
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < _SMALLEST_RSA:
        raise ValueError(f"an RSA key of {key.key_size} bits is too weak; {_SMALLEST_RSA} or more are needed")
    if not isinstance(key, PublicKey) or not algorithms_of(key):
        raise ValueError("the key is of a kind that no accepted algorithm uses")
    return key
