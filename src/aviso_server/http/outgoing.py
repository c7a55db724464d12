"""Questions to other services over HTTP, asked on behalf of many users who must not get mixed up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib import import_module

import httpx
import msgspec

from aviso_server import __version__

# httpx would import these with the first question, in the event loop, and hold it for a tenth of a second
for _module in ("anyio.streams.tls", "anyio._backends._asyncio"):
    import_module(_module)

__all__ = ["NoAnswer", "Outgoing", "OversizedAnswer", "Reply"]

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
