"""Authentication and authorisation: credentials, tokens and their keys, rules of event types, questions to others."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib import import_module
from typing import Any, Literal

import httpx
import jwt
import msgspec
from cachetools import TLRUCache

from aviso_server import __version__
from aviso_server.config.checks import DEFAULT_ALGORITHMS, PublicKey, algorithms_of, read_public_keys
from aviso_server.config.settings import Auth, Roles, StreamAuth
from aviso_server.diagnostics.log_records import CALLER, Caller
from aviso_server.http.response import Headers, HttpError, forbidden, unavailable
from aviso_server.model.event_type import Catalogue, EventType, GenericType
from aviso_server.model.times import SECOND

__all__ = [
    "ARCHIVE_JOB",
    "OUTCOMES",
    "ArchiveJobToken",
    "Gate",
    "NoAnswer",
    "Outgoing",
    "OversizedAnswer",
    "Reply",
    "User",
    "unauthorized",
]

logger = logging.getLogger(__name__)

LEEWAY = 60  # seconds that a token is still taken after it has expired, because clocks differ

_ANY_ROLE = "*"


class User(msgspec.Struct, frozen=True):
    """A caller whose credentials were accepted."""

    name: str
    realm: str | None  # without a realm no role counts
    roles: tuple[str, ...]
    attributes: Mapping[str, str]
    expires: int  # seconds since 1970, as the token says
    admin: bool = False

    @property
    def caller(self) -> Caller:
        """Name and realm for log records."""
        return self.name, self.realm or "none"

    @property
    def until(self) -> int:
        """When the token is not taken any more, in nanoseconds since 1970."""
        return (self.expires + LEEWAY) * SECOND


def has_role(user: User, roles: Roles) -> bool:
    """Return whether the roles of the user's realm are `*` or include one of the user's."""
    admitted = roles.get(user.realm) if user.realm is not None else None
    return admitted is not None and (_ANY_ROLE in admitted or not set(admitted).isdisjoint(user.roles))


_SCHEMES = frozenset({"bearer", "basic"})


def sent_header(scope: Any) -> str | None:
    """Return the value of the Authorization header, stripped; None if there is none that can be read.

    Two such headers count as none: whoever stands before this server may have looked at the other one.
    """
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) != 1 or not values[0].isascii():
        return None
    text: str = values[0].decode("ascii").strip(" \t")
    return text if text.replace("\t", " ").isprintable() else None


def bearer_or_basic(text: str) -> str | None:
    """Return the credentials to hand on with their scheme, `Bearer …` or `Basic …`; None for anything else."""
    scheme, _, rest = text.partition(" ")
    return text if scheme.lower() in _SCHEMES and rest.strip(" \t") else None


def bearer_token(text: str) -> str | None:
    """Return the token of `Bearer <token>`; None for anything else."""
    words = text.split()
    return words[1] if len(words) == 2 and words[0].lower() == "bearer" else None


def challenge(mode: str) -> Headers:
    """Return a WWW-Authenticate header for each accepted scheme."""
    schemes = (b"Bearer", b"Basic") if mode == "direct" else (b"Bearer",)
    return [(b"www-authenticate", scheme) for scheme in schemes]


def unauthorized(message: str, mode: str) -> HttpError:
    """Build the 401 for credentials that are missing or wrong."""
    return HttpError.of("UNAUTHORIZED", message, headers=challenge(mode))


ARCHIVE_JOB = User("archive job", None, (), {}, 2**33, admin=True)
"""The archive job: reads everything, on the routes that it needs."""

_JOB_ROUTES = frozenset({"/api/v1/replay", "/api/v1/streams"})


class ArchiveJobToken:
    """The secret of the archive job."""

    def __init__(self) -> None:
        self.text = secrets.token_urlsafe(32)

    def shown_by(self, scope: Any) -> bool:
        """Return whether the archive job sends this request, on a route of its own."""
        if scope["path"] not in _JOB_ROUTES:
            return False
        header = sent_header(scope)
        token = None if header is None else bearer_token(header)
        return token is not None and hmac.compare_digest(token.encode(), self.text.encode())


class StreamRules:
    """The `auth` sections of the event types that demand to know the caller."""

    def __init__(self, mode: str, streams: Mapping[str, StreamAuth], catalogue: Catalogue) -> None:
        self._mode = mode
        self._by_name = {name: rule for name, rule in streams.items() if rule.required}
        # brokers and file systems may not tell the letters of a stream's name apart
        self._by_stream = {catalogue.event_types[name].base.lower(): rule for name, rule in self._by_name.items()}

    def may_know(self, stream: str, user: User | None) -> bool:
        """Return whether the user may know that a stream exists: only those who may read all of it."""
        rule = self._by_stream.get(stream.lower())
        if rule is None or (user is not None and user.admin):
            return True
        # plugins show a reader some notifications and hide others; a list or a count is about all of them
        return user is not None and not rule.plugins and (rule.read_roles is None or has_role(user, rule.read_roles))

    def check(self, event_type: EventType | GenericType, user: User | None, action: Literal["read", "write"]) -> None:
        """Raise HttpError unless the user may."""
        if not event_type.generic:
            rule = self._by_name.get(event_type.name)
        else:
            # an event type that nobody configured must not be a back door into a stream that is guarded
            rule = self._by_stream.get(event_type.base.lower())
        if rule is None:
            return
        if user is None:
            raise unauthorized(f"Event type '{event_type.name}' needs credentials", self._mode)
        if user.admin:
            return
        roles = rule.read_roles if action == "read" else rule.write_roles
        allowed = action == "read" if roles is None else has_role(user, roles)
        # plugins look at fields that only the configured event type has
        if not allowed or (event_type.generic and rule.plugins):
            raise forbidden(f"User '{user.name}' has no role that may {action} event type '{event_type.name}'")


# three base64url parts; the last is empty in a token without a signature, which is then refused as such
_TOKEN = re.compile(r"[A-Za-z0-9_-]+={0,2}\.[A-Za-z0-9_-]+={0,2}\.[A-Za-z0-9_-]*={0,2}", re.ASCII)
_MEMBERS = ("token", "jwt", "access_token")
_MAX_TOKEN_ANSWER_BYTES = 256 * 1024


class AuthService:
    """An auth-o-tron service."""

    def __init__(self, url: str, outgoing: Outgoing) -> None:
        self._url = url.rstrip("/") + "/authenticate"
        self._outgoing = outgoing

    async def token(self, credentials: str, request_id: str) -> str:
        """Exchange an Authorization header for a token; HttpError if the service gives none."""
        try:
            answer = await self._outgoing.get(self._url, _MAX_TOKEN_ANSWER_BYTES, {"authorization": credentials})
        except (NoAnswer, OversizedAnswer) as error:
            raise self._no_verdict(str(error), request_id) from None
        if answer.status == 401:
            raise unauthorized("The credentials were not accepted by the authentication service", "direct")
        if answer.status == 403:
            raise forbidden("The authentication service does not allow this user")
        if not answer.successful:
            raise self._no_verdict(f"it answered {answer.status}", request_id)
        token = token_in(answer)
        if token is None:
            raise self._no_verdict(f"it answered {answer.status} without a token", request_id)
        return token

    def _no_verdict(self, reason: str, request_id: str) -> Exception:
        logger.warning(
            "the authentication service could not be asked: %s",
            reason,
            extra={"event": "auth.middleware.remote.validation.failed", "request_id": request_id},
        )
        return unavailable("The authentication service cannot be asked at the moment; try again later")


def token_in(answer: Reply) -> str | None:
    """Find the token in an answer's header or body; None if nothing looks like one."""
    from_header = bearer_token(answer.headers.get("authorization", ""))
    token = from_header if from_header is not None else _in_body(answer.body)
    return token if isinstance(token, str) and _TOKEN.fullmatch(token) else None


def _in_body(body: bytes) -> Any:
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return body.decode("ascii", errors="replace").strip()
    if isinstance(content, dict):
        return next((content[name] for name in _MEMBERS if name in content), None)
    return content.strip() if isinstance(content, str) else None


_FRESH = 600.0  # seconds after which keys are fetched again
_USABLE = 86_400.0  # seconds that keys are used while they cannot be fetched again
_PAUSE = 30.0  # seconds between two fetches, whatever tokens ask for
_PAUSE_AFTER_FAILURE = 5.0
_MAX_KEY_SET_BYTES = 1024 * 1024
_MAX_KEYS = 64


class TokenKey(msgspec.Struct, frozen=True):
    """One key with the algorithms it may be used with, and no others."""

    material: PublicKey | bytes
    algorithms: tuple[str, ...]
    kid: str | None = None


Candidates = Callable[[str | None, str], Awaitable[Sequence[TokenKey]]]
"""Returns the keys that may have signed a token with this key id and algorithm; HttpError if they cannot be fetched."""


def fixed_keys(keys: Sequence[TokenKey]) -> Candidates:
    """Return what finds one of these keys; they have no ids."""

    async def candidates(kid: str | None, algorithm: str) -> Sequence[TokenKey]:
        return [key for key in keys if algorithm in key.algorithms]

    return candidates


class Jwks:
    """A JSON Web Key Set at a URL, fetched when it is needed and remembered."""

    def __init__(
        self, url: str, pinned: Sequence[str], outgoing: Outgoing, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._url = url
        self._pinned = pinned
        self._outgoing = outgoing
        self._clock = clock
        self._keys: list[TokenKey] = []
        self._fetched = -_USABLE  # when the keys arrived
        self._next = -_USABLE  # when the next fetch is allowed
        self._fetching: asyncio.Task[None] | None = None

    async def candidates(self, kid: str | None, algorithm: str) -> Sequence[TokenKey]:
        """Return the keys with this id, or all without one; an unknown id has the set fetched again."""
        if self._clock() - self._fetched > _FRESH:
            await self._refresh()
        found = self._find(kid, algorithm)
        if not found and kid is not None:
            await self._refresh()
            found = self._find(kid, algorithm)
        if not found and self._clock() - self._fetched > _USABLE:
            raise unavailable("The keys that tokens are checked with cannot be fetched at the moment; try again later")
        return found

    def _find(self, kid: str | None, algorithm: str) -> list[TokenKey]:
        if self._clock() - self._fetched > _USABLE:
            return []
        return [key for key in self._keys if algorithm in key.algorithms and (kid is None or key.kid == kid)]

    async def _refresh(self) -> None:
        """Fetch the keys once for everybody who waits, and not too often."""
        if self._fetching is None:
            if self._clock() < self._next:
                return
            self._fetching = asyncio.create_task(self._fetch())
        # the one who asked first may leave; the others still want the keys
        await asyncio.shield(self._fetching)

    async def _fetch(self) -> None:
        try:
            answer = await self._outgoing.get(self._url, _MAX_KEY_SET_BYTES, {"accept": "application/json"})
            if answer.status != 200:
                raise ValueError(f"it answered {answer.status}")
            self._keys = read_key_set(answer.body, self._pinned)
            self._fetched = self._clock()
            self._next = self._fetched + _PAUSE
        except (NoAnswer, OversizedAnswer, ValueError) as error:
            self._next = self._clock() + _PAUSE_AFTER_FAILURE
            logger.warning(
                "the keys for tokens could not be fetched: %s",
                error,
                extra={"event": "auth.middleware.remote.validation.failed"},
            )
        finally:
            self._fetching = None


def read_key_set(body: bytes, pinned: Sequence[str]) -> list[TokenKey]:
    """Read the keys of a key set that sign tokens; ValueError if there are none."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise ValueError("it is not JSON") from None
    entries = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise ValueError("it is not a key set: 'keys' is missing")
    found = [key for entry in entries[:_MAX_KEYS] if (key := _read_key(entry, pinned)) is not None]
    if not found:
        raise ValueError(f"it has no key for {', '.join(pinned)}")
    return found


def _read_key(entry: Any, pinned: Sequence[str]) -> TokenKey | None:
    # a symmetric key in a published set would let everybody sign
    if not isinstance(entry, dict) or entry.get("kty") == "oct" or entry.get("use", "sig") != "sig":
        return None
    kid = entry.get("kid")
    try:
        material = jwt.PyJWK(entry).key
    except Exception:  # one odd key must not make the others useless
        return None
    key = _public_key(material, [name for name in pinned if entry.get("alg") in (None, name)], kid)
    return key if key.algorithms else None


def _public_key(material: PublicKey, pinned: Sequence[str], kid: object = None) -> TokenKey:
    algorithms = tuple(name for name in algorithms_of(material) if name in pinned)
    return TokenKey(material, algorithms, kid if isinstance(kid, str) else None)


_REMEMBERED = 60 * SECOND  # how long a good token need not be checked again: publishers send the same one many times
_MAX_REMEMBERED = 1024

MAX_CREDENTIALS = 16 * 1024  # characters of an Authorization header; nobody's token is longer, and looking at it costs

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

    def __init__(self, candidates: Candidates, auth: Auth, clock: Callable[[], int] = time.time_ns) -> None:
        self._candidates = candidates
        self._auth = auth
        # good ones only, each until it has to be checked again
        self._remembered = TLRUCache[str, User, int](
            _MAX_REMEMBERED, lambda token, user, now: min(now + _REMEMBERED, user.until), timer=clock
        )
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
        """Return the user of a token; HttpError if it cannot be trusted or cannot be checked now."""
        remembered = self._remembered.get(token)
        if remembered is not None:
            return remembered
        try:
            kid, algorithm = _header(token)
            keys = await self._candidates(kid, algorithm)
            user = self._user(self._claims(token, algorithm, keys))
        except _Invalid as error:
            raise unauthorized(f"The token is not accepted: {error}", self._auth.mode) from None
        self._remembered[token] = user
        return user

    def _claims(self, token: str, algorithm: str, keys: Sequence[TokenKey]) -> dict[str, Any]:
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
            raise _Invalid("it names no user: the claims 'username' and 'sub' are missing")
        user = User(name, claims.realm, claims.roles, claims.attributes, claims.exp)
        return msgspec.structs.replace(user, admin=has_role(user, self._auth.admin_roles))


def _header(token: str) -> tuple[str | None, str]:
    """Return the key id and the algorithm in a token's header."""
    try:
        header = jwt.get_unverified_header(token)
    except Exception:  # as above
        raise _Invalid("it is malformed") from None
    kid, algorithm = header.get("kid"), header.get("alg")
    if not isinstance(algorithm, str):
        raise _Invalid("its header names no algorithm")
    return (kid if isinstance(kid, str) else None), algorithm


def _reason(error: jwt.PyJWTError) -> str:
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"the claim '{error.claim}' is missing"
    return next((words for kind, words in _REASONS.items() if isinstance(error, kind)), "it is malformed")


_REASONS = {
    jwt.ExpiredSignatureError: "it has expired",
    jwt.ImmatureSignatureError: "it is not valid yet",
    jwt.InvalidAudienceError: "it was made for another audience",
    jwt.InvalidIssuerError: "it comes from another issuer",
}

_DENIED = {401: "unauthorized", 403: "forbidden", 503: "service_unavailable"}
OUTCOMES = ("success", *_DENIED.values())
"""The outcomes of checking credentials."""


class Gate:
    """Authentication and authorisation of one server; it exists only when they are switched on."""

    def __init__(self, auth: Auth, streams: Mapping[str, StreamAuth], catalogue: Catalogue) -> None:
        self.mode = auth.mode
        self.outcomes = dict.fromkeys(OUTCOMES, 0)  # of requests with credentials, for metrics
        self._outgoing = Outgoing(auth.timeout_ms / 1000)
        self._service = AuthService(auth.auth_o_tron_url, self._outgoing) if auth.mode == "direct" else None
        self._credentials: Callable[[str], str | None] = bearer_or_basic if self._service else bearer_token
        self._tokens = Tokens(_candidates(auth, self._outgoing), auth)
        self.rules = StreamRules(auth.mode, streams, catalogue)

    async def admit(self, scope: Any, admin_only: bool, request_id: str) -> User | None:
        """Return who is calling, None for somebody without credentials; HttpError if they may not come in."""
        header = sent_header(scope)
        credentials = None if header is None else self._credentials(header)
        if credentials is None and not admin_only:
            return None
        try:
            user = await self._identify(credentials, request_id)
            CALLER.set(user.caller)
            if admin_only and not user.admin:
                raise forbidden("This needs a role that auth.admin_roles names")
        except HttpError as error:
            self.outcomes[_DENIED[error.status]] += 1
            _log_denied(error, request_id)
            raise
        self.outcomes["success"] += 1
        return user

    def allow(
        self, event_type: EventType | GenericType, user: User | None, action: Literal["read", "write"], request_id: str
    ) -> None:
        """Raise HttpError unless the user may read or write an event type."""
        try:
            self.rules.check(event_type, user, action)
        except HttpError as error:
            _log_denied(error, request_id)
            raise

    async def close(self) -> None:
        await self._outgoing.close()

    async def _identify(self, credentials: str | None, request_id: str) -> User:
        if credentials is None:
            raise unauthorized("Credentials are needed", self.mode)
        if len(credentials) > MAX_CREDENTIALS:
            raise unauthorized(f"The credentials are longer than {MAX_CREDENTIALS} characters", self.mode)
        if self._service is not None:
            return await self._tokens.user(await self._service.token(credentials, request_id))
        return await self._tokens.user(credentials)


def _candidates(auth: Auth, outgoing: Outgoing) -> Candidates:
    pinned = auth.algorithms or DEFAULT_ALGORITHMS
    if auth.jwks_url:
        return Jwks(auth.jwks_url, pinned, outgoing).candidates
    if auth.public_key_file is not None:
        return fixed_keys([_public_key(key, pinned) for key in read_public_keys(auth.public_key_file)])
    return fixed_keys([TokenKey(auth.jwt_secret.encode(), ("HS256",))])


def _log_denied(error: HttpError, request_id: str) -> None:
    logger.info(
        "request denied: %s",
        error.message,
        extra={"event": "auth.middleware.request.denied", "request_id": request_id, "status": error.status},
    )


# Questions to other services, asked on behalf of many users who must not get mixed up

# httpx would import these with the first question, in the event loop, and hold it for a tenth of a second
for _module in ("anyio.streams.tls", "anyio._backends._asyncio"):
    import_module(_module)


# At their lower levels these write headers, and with them credentials and tokens.
for _name in ("", ".connection", ".http11", ".http2", ".proxy", ".socks"):
    logging.getLogger(f"httpcore{_name}").addFilter(lambda record: record.levelno >= logging.WARNING)
logging.getLogger("httpx").addFilter(lambda record: record.levelno >= logging.WARNING)


class NoAnswer(Exception):
    """No answer came, or not in time; the text says why and holds no secrets."""


class OversizedAnswer(Exception):
    """The answer is longer than anything sensible."""


class Reply(msgspec.Struct, frozen=True):
    """A complete answer."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def successful(self) -> bool:
        """True for 2xx."""
        return 200 <= self.status < 300


class Outgoing:
    """A client that keeps nothing between two questions: no cookies, no redirects, no retries."""

    def __init__(self, seconds: float, connect_seconds: float | None = None) -> None:
        self._seconds = seconds
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(seconds, connect=connect_seconds or seconds),
            # a cookie set for one user would speak for the next
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            headers={"user-agent": f"aviso-server/{__version__}", "accept-encoding": "identity"},
            follow_redirects=False,
        )

    async def get(
        self, url: str, limit: int, headers: Mapping[str, str] | None = None, auth: httpx.Auth | None = None
    ) -> Reply:
        """Send a GET and return the answer, of at most `limit` bytes; NoAnswer if there is none in time."""
        try:
            async with asyncio.timeout(self._seconds):
                # an explicit auth, because httpx takes credentials out of the address otherwise
                async with self._client.stream("GET", url, headers=headers, auth=auth or httpx.Auth()) as response:
                    body = b""
                    async for chunk in response.aiter_raw():
                        body += chunk
                        if len(body) > limit:
                            raise OversizedAnswer(f"the answer is longer than {limit} bytes")
                    return Reply(response.status_code, dict(response.headers), body)
        except TimeoutError:
            raise NoAnswer(f"no answer within {self._seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise NoAnswer(type(error).__name__) from None

    async def close(self) -> None:
        await self._client.aclose()
