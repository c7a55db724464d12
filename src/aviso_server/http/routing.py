"""Routes, and finding the route of a request."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal
from urllib.parse import unquote

import msgspec

from aviso_server.http.http_errors import Endpoint, HttpError
from aviso_server.http.request import Request
from aviso_server.http.response import Response, StreamingResponse

__all__ = ["Access", "Documented", "Handler", "Method", "Route", "Router"]

Handler = Callable[[Request], Awaitable[Response | StreamingResponse]]
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Access = Literal["open", "user", "reader", "writer", "admin"]
"""Callers that are let in: anybody; those with credentials; readers or writers of the event type; administrators."""
Body = Literal["notification", "batch", "watch", "replay", "explain", "stream_name"]
"""The kinds of request bodies that no type describes."""

_MAX_NAME_BYTES = 4096  # of what stands in a path for a parameter
_PARAMETER = re.compile(r"\\\{(\w+)\\\}")


class Documented(msgspec.Struct, frozen=True):
    """One answer in the OpenAPI document: of these types in JSON, or of another media type."""

    words: str
    types: tuple[Any, ...] = ()
    media_type: str = "application/json"


class Route(msgspec.Struct, frozen=True):
    """One line of the table of routes; without a tag it is not documented.

    `{path}` in a path takes all that is left of it, other parameters one segment.
    """

    method: Method
    path: str
    handler: Handler
    access: Access = "open"
    tag: str = ""
    answers: Mapping[int, Documented | type] = {}  # of an answer's own type, its docstring says the rest
    body: Body | type[msgspec.Struct] | None = None
    parameters: tuple[Mapping[str, Any], ...] = ()  # besides those of the path
    errors: tuple[str, ...] = ()  # codes, besides those that every route may answer with
    endpoint: Endpoint | None = None  # labels the errors of its body
    heavy: bool = False  # refused while the process is short of memory

    @property
    def name(self) -> str:
        """The name of the handler, which is the operation's."""
        return self.handler.__name__

    @property
    def words(self) -> tuple[str, str]:
        """The first line of the handler's docstring, and the rest of it."""
        summary, _, rest = (inspect.getdoc(self.handler) or "").partition("\n")
        return summary.rstrip("."), rest.strip()

    @property
    def names(self) -> list[str]:
        """The parameters in the path."""
        return re.findall(r"\{(\w+)\}", self.path)


class Router:
    """Finds routes: those without parameters in a dictionary, then the others by pattern."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._exact: dict[tuple[str, str], Route] = {}
        self._patterns: list[tuple[str, re.Pattern[bytes], Route]] = []
        for route in routes:
            if route.names:
                self._patterns.append((route.method, _pattern(route.path), route))
            else:
                self._exact[route.method, route.path] = route

    def find(self, request: Request) -> None:
        """Set the route and the path parameters of a request; the route stays None if there is none."""
        scope = request.scope
        route = self._exact.get((scope["method"], scope["path"]))
        if route is None:
            for method, pattern, candidate in self._patterns:
                if method == scope["method"] and (found := pattern.fullmatch(scope["raw_path"])) is not None:
                    route = candidate
                    request.params = {name: value.decode("latin-1") for name, value in found.groupdict().items()}
                    break
            else:
                return
        request.route = route
        scope["route"] = route.path  # for metrics and traces

    def knows(self, path: str) -> bool:
        """Return whether a route has this path, under any method and with or without a slash at its end."""
        trimmed = path.rstrip("/")
        raw = trimmed.encode()
        return any(known == trimmed for _, known in self._exact) or any(
            pattern.fullmatch(raw) for _, pattern, _ in self._patterns
        )

    def decode(self, request: Request) -> None:
        """Decode the path parameters; HttpError if they are too long."""
        size = sum(map(len, request.params.values()))
        if size > _MAX_NAME_BYTES:
            raise HttpError(414, f"The name in the path has {size} bytes; the limit is {_MAX_NAME_BYTES}")
        request.params = {name: unquote(value) for name, value in request.params.items()}


def _pattern(path: str) -> re.Pattern[bytes]:
    def group(found: re.Match[str]) -> str:
        return f"(?P<{found[1]}>{'.*' if found[1] == 'path' else '[^/]+'})"

    return re.compile(_PARAMETER.sub(group, re.escape(path)).encode(), re.DOTALL)
