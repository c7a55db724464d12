"""The ECPDS plugin: a user may only read about destinations that ECPDS says are theirs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

import httpx
import msgspec
from cachetools import TTLCache

from aviso_server.config.settings import Ecpds, StreamAuth
from aviso_server.http.auth import NoAnswer, Outgoing, OversizedAnswer, User
from aviso_server.http.response import forbidden, unavailable
from aviso_server.model.filter import Filter
from aviso_server.model.notification import Notification

__all__ = ["DECISIONS", "FETCHES", "EcpdsPlugin"]

logger = logging.getLogger(__name__)

DECISIONS = ("allow", "deny_destination", "deny_match_key_missing", "unavailable", "admin_bypass", "error")
"""The outcomes of a check."""

FAILURES = ("http_401", "http_403", "http_4xx", "invalid_response", "http_5xx", "unreachable")
"""The ways in which asking a server fails; of several, the first in this order is reported."""

FETCHES = ("success", *FAILURES)
"""The outcomes of asking for a user's destinations."""

_MAX_ANSWER_BYTES = 32 * 1024 * 1024


class NoVerdict(Exception):
    """ECPDS, or one of its servers, could not be asked; the text is one of FAILURES."""


class Destinations:
    """The destinations of users: asked for once, remembered for a while."""

    def __init__(self, settings: Ecpds, clock: Callable[[], float] = time.monotonic) -> None:
        self.hits = 0
        self.misses = 0
        self.fetches = dict.fromkeys(FETCHES, 0)
        self._settings = settings
        self._outgoing = Outgoing(settings.request_timeout_seconds, settings.connect_timeout_seconds)
        self._auth = httpx.BasicAuth((settings.username or "").encode(), (settings.password or "").encode())
        self._remembered = TTLCache[str, frozenset[str], float](
            settings.max_entries, settings.cache_ttl_seconds, timer=clock
        )
        self._asking: dict[str, asyncio.Task[frozenset[str]]] = {}

    def __len__(self) -> int:
        """Return how many users are remembered."""
        return len(self._remembered)

    async def of(self, name: str) -> frozenset[str]:
        """Return the destinations of a user, asked for once by many callers; NoVerdict if ECPDS cannot be asked."""
        remembered = self._remembered.get(name)
        if remembered is not None:
            self.hits += 1
            return remembered
        self.misses += 1
        asking = self._asking.get(name)
        if asking is None:
            asking = self._asking[name] = asyncio.create_task(self._ask(name))
            asking.add_done_callback(_seen)
        # the one who asked first may leave; the others still want the answer
        return await asyncio.shield(asking)

    async def close(self) -> None:
        for asking in list(self._asking.values()):
            asking.cancel()
        await self._outgoing.close()

    async def _ask(self, name: str) -> frozenset[str]:
        try:
            found = self._remembered[name] = await self._ask_all(name)
            return found
        finally:
            del self._asking[name]

    async def _ask_all(self, name: str) -> frozenset[str]:
        servers = self._settings.servers
        answers = await asyncio.gather(*(self._ask_one(server, name) for server in servers), return_exceptions=True)
        found: set[str] = set()
        failures: list[str] = []
        for answer in answers:
            if isinstance(answer, NoVerdict):
                failures.append(str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found |= answer
        worst = min(failures, key=FAILURES.index, default=None)
        self.fetches[worst or "success"] += 1
        enough = not failures or (
            self._settings.partial_outage_policy == "any_success" and len(failures) < len(servers)
        )
        if worst is not None and not enough:
            raise NoVerdict(worst)
        return frozenset(found)

    async def _ask_one(self, server: str, name: str) -> frozenset[str]:
        url = f"{server.rstrip('/')}/ecpds/v1/destination/list?{urlencode({'id': name})}"
        try:
            answer = await self._outgoing.get(url, _MAX_ANSWER_BYTES, {"accept": "application/json"}, self._auth)
            if answer.status != 200:
                raise NoVerdict(_failure(answer.status))
            return read_destinations(answer.body, self._settings.target_field)
        except (NoVerdict, NoAnswer, OversizedAnswer, ValueError) as error:
            unanswered = "unreachable" if isinstance(error, NoAnswer) else "invalid_response"
            failure = str(error) if isinstance(error, NoVerdict) else unanswered
            logger.warning(
                "ECPDS could not be asked: %s",
                error,
                extra={"event": "auth.ecpds.fetch.failed", "server": server, "outcome": failure},
            )
            raise NoVerdict(failure) from None


class EcpdsPlugin:
    """Checks readers of the event types that name the plugin."""

    def __init__(self, settings: Ecpds, streams: Mapping[str, StreamAuth]) -> None:
        self.decisions = dict.fromkeys(DECISIONS, 0)
        self.destinations = Destinations(settings)
        self._match_key = settings.match_key or ""
        self._guarded = frozenset(name for name, auth in streams.items() if "ecpds" in auth.plugins)

    async def check(self, wanted: Filter, user: User | None, request_id: str) -> None:
        """Raise HttpError unless the user may read what the filter asks for, or if nobody can tell."""
        if wanted.event_type not in self._guarded:
            return
        assert user is not None, "a stream with a plugin demands credentials"
        if user.admin:
            self.decisions["admin_bypass"] += 1
            return
        destination = dict(wanted.equals).get(self._match_key)
        if destination is None:
            self._decide("deny_match_key_missing", request_id)
            raise forbidden(f"Field '{self._match_key}' must be one destination, not a wildcard or a constraint")
        try:
            allowed = destination in await self.destinations.of(user.name)
        except NoVerdict:
            self._decide("unavailable", request_id)
            raise unavailable("ECPDS cannot be asked about destinations at the moment; try again later") from None
        except Exception:
            self._decide("error", request_id)
            raise
        self._decide("allow" if allowed else "deny_destination", request_id)
        if not allowed:
            raise forbidden(f"User '{user.name}' may not read about the {self._match_key} that was asked for")

    def hides(self, wanted: Filter, user: User | None, notification: Notification) -> bool:
        """Return whether a user who may read what the filter asks for must not know of this notification."""
        if wanted.event_type not in self._guarded or (user is not None and user.admin):
            return False
        return notification.values().get(self._match_key) != dict(wanted.equals).get(self._match_key)

    async def close(self) -> None:
        await self.destinations.close()

    def _decide(self, decision: str, request_id: str) -> None:
        self.decisions[decision] += 1
        event = {"allow": "allowed", "unavailable": "unavailable", "error": "error"}.get(decision, "denied")
        logger.info(
            "destination check: %s",
            decision,
            extra={"event": f"auth.ecpds.check.{event}", "request_id": request_id, "outcome": decision},
        )


def read_destinations(body: bytes, target_field: str) -> frozenset[str]:
    """Read the names of the active destinations in an answer of ECPDS; ValueError if it is none."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise ValueError("the answer is not JSON") from None
    if not isinstance(content, dict) or content.get("success") != "yes":
        raise ValueError("the answer does not report success")
    records = content.get("destinationList")
    if not isinstance(records, list):
        raise ValueError("the answer has no list of destinations")
    return frozenset(
        record[target_field]
        for record in records
        if isinstance(record, dict) and record.get("active") is True and isinstance(record.get(target_field), str)
    )


def _failure(status: int) -> str:
    if status in (401, 403):
        return f"http_{status}"
    if 400 <= status < 600:
        return f"http_{status // 100}xx"
    return "invalid_response"


def _seen(asking: asyncio.Task[frozenset[str]]) -> None:
    """Look at the outcome even if everybody who wanted it has left."""
    if not asking.cancelled():
        asking.exception()
