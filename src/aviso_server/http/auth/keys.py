"""The keys that tokens are checked with: a shared secret, public keys in a file, or public keys at a URL."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jwt
import msgspec

from aviso_server.config.public_keys import PublicKey, algorithms_of
from aviso_server.http.auth.refusals import unavailable
from aviso_server.http.outgoing import Outgoing, OversizedAnswer, Unreachable

__all__ = ["Jwks", "Key", "Keys", "PublicKeys", "SharedSecret"]

logger = logging.getLogger(__name__)

_FRESH = 600.0  # seconds after which keys are fetched again
_USABLE = 86_400.0  # seconds that keys are used while they cannot be fetched again
_PAUSE = 30.0  # seconds between two fetches, whatever tokens ask for
_PAUSE_AFTER_FAILURE = 5.0
_LARGEST_ANSWER = 1024 * 1024
_MOST_KEYS = 64


class Key(msgspec.Struct, frozen=True):
    """One key with the algorithms it may be used with, and no others."""

    material: PublicKey | bytes
    algorithms: tuple[str, ...]
    kid: str | None = None


class Keys(Protocol):
    """Where keys come from."""

    async def candidates(self, kid: str | None, algorithm: str) -> Sequence[Key]:
        """The keys that may have signed a token with this header; a Refusal if they cannot be had now."""


class SharedSecret:
    """The secret that this server shares with whoever makes the tokens: HS256 and nothing else."""

    def __init__(self, secret: str) -> None:
        self._key = Key(secret.encode(), ("HS256",))

    async def candidates(self, kid: str | None, algorithm: str) -> Sequence[Key]:
        """The one key there is."""
        return [self._key] if algorithm in self._key.algorithms else []


class PublicKeys:
    """Public keys that do not change while the server runs; they have no ids."""

    def __init__(self, keys: Sequence[PublicKey], pinned: Sequence[str]) -> None:
        self._keys = [Key(key, tuple(name for name in algorithms_of(key) if name in pinned)) for key in keys]

    async def candidates(self, kid: str | None, algorithm: str) -> Sequence[Key]:
        """The keys of the right kind."""
        return [key for key in self._keys if algorithm in key.algorithms]


class Jwks:
    """A JSON Web Key Set at a URL, fetched when it is needed and remembered."""

    def __init__(
        self, url: str, pinned: Sequence[str], outgoing: Outgoing, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._url = url
        self._pinned = pinned
        self._outgoing = outgoing
        self._clock = clock
        self._keys: list[Key] = []
        self._fetched = -_USABLE  # when the keys arrived
        self._next = -_USABLE  # when the next fetch is allowed
        self._fetching: asyncio.Task[None] | None = None

    async def candidates(self, kid: str | None, algorithm: str) -> Sequence[Key]:
        """The keys with this id, or all without one; an id not seen before may mean that keys were changed."""
        if self._clock() - self._fetched > _FRESH:
            await self._refresh()
        found = self._find(kid, algorithm)
        if not found and kid is not None:
            await self._refresh()
            found = self._find(kid, algorithm)
        if not found and self._clock() - self._fetched > _USABLE:
            raise unavailable("The keys that tokens are checked with cannot be fetched at the moment; try again later")
        return found

    def _find(self, kid: str | None, algorithm: str) -> list[Key]:
        if self._clock() - self._fetched > _USABLE:
            return []
        return [key for key in self._keys if algorithm in key.algorithms and (kid is None or key.kid == kid)]

    async def _refresh(self) -> None:
        """Fetch the keys once for all who wait, and not too often."""
        if self._fetching is None:
            if self._clock() < self._next:
                return
            self._fetching = asyncio.create_task(self._fetch())
        # the one who asked first may leave; the others still want the keys
        await asyncio.shield(self._fetching)

    async def _fetch(self) -> None:
        try:
            answer = await self._outgoing.get(self._url, _LARGEST_ANSWER, {"accept": "application/json"})
            if answer.status != 200:
                raise ValueError(f"it answered {answer.status}")
            self._keys = read_key_set(answer.body, self._pinned)
            self._fetched = self._clock()
            self._next = self._fetched + _PAUSE
        except (Unreachable, OversizedAnswer, ValueError) as error:
            self._next = self._clock() + _PAUSE_AFTER_FAILURE
            logger.warning(
                "the keys for tokens could not be fetched: %s",
                error,
                extra={"event": "auth.middleware.remote.validation.failed"},
            )
        finally:
            self._fetching = None


def read_key_set(body: bytes, pinned: Sequence[str]) -> list[Key]:
    """The usable keys of a key set; ValueError if it is none. Keys for other uses are left out."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise ValueError("it is not JSON") from None
    entries = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise ValueError("it is not a key set: 'keys' is missing")
    found = [key for entry in entries[:_MOST_KEYS] if (key := _read_key(entry, pinned)) is not None]
    if not found:
        raise ValueError(f"it has no key for {', '.join(pinned)}")
    return found


def _read_key(entry: Any, pinned: Sequence[str]) -> Key | None:
    # a symmetric key in a published set would let everybody sign
    if not isinstance(entry, dict) or entry.get("kty") == "oct" or entry.get("use", "sig") != "sig":
        return None
    kid = entry.get("kid")
    try:
        material = jwt.PyJWK(entry).key
    except Exception:  # one odd key must not make the others useless
        return None
    stated = entry.get("alg")
    algorithms = tuple(
        name for name in algorithms_of(material) if name in pinned and (stated is None or stated == name)
    )
    return Key(material, algorithms, kid if isinstance(kid, str) else None) if algorithms else None
