"""JSON Web Tokens: is it genuine, is it still good, and who does it speak for?"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jwt
import msgspec

from aviso_server.config.settings import Auth
from aviso_server.http.auth.keys import Key, Keys
from aviso_server.http.auth.refusals import unauthorized
from aviso_server.http.auth.user import LEEWAY, User, has_role
from aviso_server.model.timestamp import SECOND

__all__ = ["LONGEST", "Tokens"]

_REMEMBERED = 60 * SECOND  # how long a good token need not be checked again: publishers send the same one many times
_MOST_REMEMBERED = 1024

LONGEST = 16 * 1024  # characters of an Authorization header; nobody's token is longer, and looking at it costs

# said once at start-up, not for every token
warnings.filterwarnings("ignore", category=jwt.InsecureKeyLengthWarning)


class _Claims(msgspec.Struct, frozen=True):
    exp: int
    username: str | None = None
    sub: str | None = None
    realm: str | None = None
    roles: tuple[str, ...] = ()
    attributes: dict[str, str] = {}


class _Invalid(Exception):
    """The token cannot be accepted; the text says why and repeats nothing of it."""


class Tokens:
    """Checks tokens with the keys and the demands of one server."""

    def __init__(self, keys: Keys, auth: Auth, clock: Callable[[], int] = time.time_ns) -> None:
        self._keys = keys
        self._auth = auth
        self._clock = clock
        self._remembered: dict[str, tuple[int, User]] = {}  # good ones only, with the time to check them again
        self._options = {
            "require": ["exp"],
            "verify_exp": True,
            "verify_nbf": auth.verify_not_before,
            "verify_aud": bool(auth.audience),
            "verify_iss": bool(auth.issuer),
            "verify_iat": False,
            "verify_sub": False,
            "verify_jti": False,
        }

    async def user(self, token: str) -> User:
        """Who the token speaks for; a Refusal if it cannot be trusted or cannot be checked now."""
        remembered = self._remembered.get(token)
        if remembered is not None and self._clock() < remembered[0]:
            return remembered[1]
        try:
            kid, algorithm = _header(token)
            keys = await self._keys.candidates(kid, algorithm)
            user = self._user(self._claims(token, algorithm, keys))
        except _Invalid as error:
            self._remembered.pop(token, None)
            raise unauthorized(f"The token is not accepted: {error}", self._auth.mode) from None
        self._remember(token, user)
        return user

    def _remember(self, token: str, user: User) -> None:
        self._remembered.pop(token, None)
        if len(self._remembered) >= _MOST_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[token] = (min(self._clock() + _REMEMBERED, user.until), user)

    def _claims(self, token: str, algorithm: str, keys: Sequence[Key]) -> dict[str, Any]:
        for key in keys:
            try:
                return jwt.decode(
                    token,
                    key.material,
                    algorithms=[algorithm],
                    options=self._options,  # type: ignore[arg-type]  # made once, and so no TypedDict literal
                    audience=self._auth.audience or None,
                    issuer=self._auth.issuer or None,
                    leeway=LEEWAY,
                )
            except jwt.InvalidSignatureError:
                continue
            except jwt.PyJWTError as error:
                raise _Invalid(_reason(error)) from None
            except Exception:  # whatever a stranger's token makes the library do, it is no reason to trust it
                raise _Invalid("it is malformed") from None
        raise _Invalid("its signature was not made with a key and an algorithm that this server accepts")

    def _user(self, members: dict[str, Any]) -> User:
        try:
            claims = msgspec.convert(members, _Claims)
        except msgspec.ValidationError as error:
            raise _Invalid(f"a claim has the wrong type: {error}") from None
        if not 0 <= claims.exp < 2**64:
            raise _Invalid("the claim 'exp' is out of range")
        name = claims.username or claims.sub
        if not name:
            raise _Invalid("it names nobody: the claims 'username' and 'sub' are missing")
        user = User(name, claims.realm, claims.roles, claims.attributes, claims.exp)
        return msgspec.structs.replace(user, admin=has_role(user, self._auth.admin_roles))


def _header(token: str) -> tuple[str | None, str]:
    """The key id and the algorithm that a token claims to be signed with."""
    try:
        header = jwt.get_unverified_header(token)
    except Exception:  # as above
        raise _Invalid("it is malformed") from None
    kid, algorithm = header.get("kid"), header.get("alg")
    if not isinstance(algorithm, str):
        raise _Invalid("its header names no algorithm")
    return (kid if isinstance(kid, str) else None), algorithm


def _reason(error: jwt.PyJWTError) -> str:
    if isinstance(error, jwt.ExpiredSignatureError):
        return "it has expired"
    if isinstance(error, jwt.ImmatureSignatureError):
        return "it is not valid yet"
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"the claim '{error.claim}' is missing"
    if isinstance(error, jwt.InvalidAudienceError):
        return "it was made for another audience"
    if isinstance(error, jwt.InvalidIssuerError):
        return "it comes from another issuer"
    return "it is malformed"
