"""Refuse requests that a browser sends on behalf of somebody else's page.

A page may send requests to any address that its reader can reach. Two of the ways to abuse that are closed here:

* DNS rebinding: the page's own name is made to point at this server, so that the browser takes both for one site. The
  `Host` header still has the page's name. Only a name in the DNS can be used this way: no address, and no name without
  a dot.
* Cross-site requests: the browser says in `Sec-Fetch-Site` and `Origin` where a request comes from. Reading is open
  to every page, because streams carry `Access-Control-Allow-Origin: *`; changing something is not.

Programs send neither `Origin` nor `Sec-Fetch-Site`, and call the server by a name or an address of its own."""

from __future__ import annotations

import ipaddress
import logging
import socket
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aviso_server.config.settings import Settings
from aviso_server.http.http_errors import forbidden

if TYPE_CHECKING:
    from aviso_server.http.request import Request

__all__ = ["Browsers"]

logger = logging.getLogger(__name__)


_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITE = frozenset({b"same-origin", b"none"})  # none: the reader typed the address
_MAX_REMEMBERED = 1024


class Browsers:
    """Which names this server is called by, and whose pages may change something."""

    def __init__(self, settings: Settings) -> None:
        application = settings.application
        base_url = urlsplit(application.base_url)
        self._allowed = frozenset(_without_dot(name) for name in application.allowed_hosts)
        self._names = self._allowed | {_without_dot(application.host), _without_dot(base_url.hostname or "")}
        self._base_url = _authority(base_url.netloc.rpartition("@")[2].encode())
        local = not settings.auth.enabled and _is_loopback(application.host)
        self._checks_host = local or bool(self._allowed)
        self._is_called = lru_cache(_MAX_REMEMBERED)(self._find_name)

    def check(self, request: Request) -> None:
        """Raise HttpError if the request comes under an unknown host name or from a page of another site."""
        reason = self._objection(request)
        if reason is None:
            return
        logger.warning(
            "request refused: %s",
            reason,
            extra={"event": "api.request.site.refused", "request_id": request.id, "status": 403},
        )
        raise forbidden(reason)

    def _objection(self, request: Request) -> str | None:
        """Return why a request is not answered; None if it is."""
        scope = request.scope
        given = dict(scope["headers"])
        origin, site = given.get(b"origin"), given.get(b"sec-fetch-site")
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if self._checks_host:
            for host in hosts:
                if not self._is_called(host):
                    return (
                        f"This server is not called '{_name(host)[:255]}' (header Host); accepted are addresses, "
                        "localhost, the host of application.base_url and the names in application.allowed_hosts"
                    )
        if (origin is None and site is None) or scope["method"] in _SAFE:
            return None
        if request.route is not None and request.route.access == "reader":
            return None  # changes nothing, although its method may be POST
        if site is not None and site.strip().lower() in _OWN_SITE:
            return None
        if origin is not None and self._is_own(origin, hosts):
            return None
        return "A page of another site must not change anything here (headers Origin and Sec-Fetch-Site)"

    def _find_name(self, host: bytes) -> bool:
        name = _name(host)
        return "." not in name or name in self._names or name.endswith(".localhost") or _is_address(name)

    def _is_own(self, origin: bytes, hosts: list[bytes]) -> bool:
        _, separator, rest = origin.strip().partition(b"://")
        if not separator:
            return False  # `null`: a file, or a page that is kept apart on purpose
        own = _authority(rest)
        return own == self._base_url or own in map(_authority, hosts) or _name(rest) in self._allowed


def _name(host: bytes) -> str:
    """Return the name or address in a Host header, without its port."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        address, _, port = text[1:].partition("]")
        return address if port[:1] in ("", ":") else text  # `[::1].evil.example` is no address
    return _without_dot(text.partition(":")[0])


def _authority(host: bytes) -> bytes:
    """Return name and port without the usual ports: a proxy may have taken TLS off, so the scheme says nothing."""
    return host.strip().lower().removesuffix(b":443").removesuffix(b":80")


def _without_dot(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    """Return True if only this machine can reach a server that listens there."""
    try:
        address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
        return ipaddress.ip_address(address).is_loopback
    except (OSError, ValueError):
        return False  # such a server does not come to listen
