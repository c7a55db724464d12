"""The connection of commands to a running server: address, credentials, errors."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, Literal
from urllib.parse import urlsplit

import click
import httpx
import msgspec

from aviso_server.commands.terminal import fail

__all__ = [
    "Server",
    "configured_url_option",
    "connected",
    "credentials",
    "read_answer",
    "refusal",
    "server_options",
    "token_option",
    "url_option",
    "user_option",
]

Method = Literal["GET", "POST", "DELETE"]

_OBJECT = dict[str, Any]

DEFAULT_URL = "http://127.0.0.1:8000"
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
# History is read and filtered before anything is sent, so silence may be long.
_TIMEOUT = httpx.Timeout(300.0, connect=5.0)


def _check_url(context: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise click.BadParameter(f"'{url}' is not an http or https URL such as {DEFAULT_URL}")
    return url.rstrip("/")


url_option = click.option(
    "--url",
    metavar="URL",
    envvar="AVISO_BASE_URL",
    callback=_check_url,
    help=f"Address of a running server.  [env: AVISO_BASE_URL; default: {DEFAULT_URL}]",
)
configured_url_option = click.option(
    "--url", metavar="URL", callback=_check_url, help="Address of a running server.  [default: the configuration's]"
)

token_option = click.option(
    "--token", metavar="JWT", envvar="AVISO_TOKEN", help="Bearer token to show to the server.  [env: AVISO_TOKEN]"
)
user_option = click.option(
    "--user", metavar="NAME:PASSWORD", envvar="AVISO_USER", help="Name and password to show.  [env: AVISO_USER]"
)


def credentials(token: str | None, user: str | None) -> dict[str, str]:
    """Return the headers for a token or a user; none if neither was given."""
    if token and user:
        raise click.UsageError("--token and --user exclude each other")
    if token:
        return {"authorization": f"Bearer {token}"}
    if user:
        if ":" not in user:
            raise click.BadParameter("expected NAME:PASSWORD", param_hint="--user")
        return {"authorization": f"Basic {b64encode(user.encode()).decode()}"}
    return {}


@contextmanager
def connected(url: str, headers: Mapping[str, str] | None = None) -> Iterator[httpx.Client]:
    """Open a client for the server at `url`; exits with a message if the connection fails."""
    proxies = urlsplit(url).hostname not in _LOOPBACK
    try:
        with httpx.Client(base_url=url, timeout=_TIMEOUT, trust_env=proxies, headers=headers) as client:
            yield client
    except httpx.ConnectError:
        fail(f"no server answers at {url}; start one with 'aviso-server serve' or name another with --url")
    except httpx.TimeoutException:
        fail(f"the server at {url} did not answer in time")
    except httpx.HTTPError as error:
        fail(f"the connection to {url} broke: {str(error) or type(error).__name__}")


class Server:
    """A running server, as the options of a command name it."""

    def __init__(self, url: str | None, token: str | None = None, user: str | None = None) -> None:
        self.url = url or DEFAULT_URL
        self._token, self._user = token, user

    def connected(self, headers: Mapping[str, str] | None = None) -> AbstractContextManager[httpx.Client]:
        """Open a client with the caller's credentials; exits with a message if the connection fails."""
        return connected(self.url, {**credentials(self._token, self._user), **(headers or {})})

    def ask(
        self, method: Method, path: str, body: Any = None, kind: Any = _OBJECT, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Send one request and return its answer as `read_answer` does."""
        with self.connected(headers) as client:
            return read_answer(client.request(method, path, json=body), kind)


def server_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options `--url`, `--token` and `--user`; the command gets the server that they name."""

    @wraps(command)
    def run(url: str | None, token: str | None, user: str | None, **given: Any) -> None:
        command(server=Server(url, token, user), **given)

    return url_option(token_option(user_option(run)))


def read_answer(response: httpx.Response, kind: Any = _OBJECT) -> Any:
    """Return an answer of this type, None for no body; exits with a reason if it is refused or not from our server."""
    if not response.is_success:
        fail(refusal(response))
    try:
        return None if kind is None else msgspec.json.decode(response.content, type=kind)
    except msgspec.DecodeError:
        fail(f"what answers at {response.url} is not an aviso server")


def refusal(response: httpx.Response) -> str:
    """Return the server's reason for a refusal, or the status if it gave none."""
    try:
        body: Any = response.json()
    except ValueError:
        body = None
    message = body.get("message") if isinstance(body, dict) else None
    if not message:
        return f"the server answered with status {response.status_code}"
    if errors := body.get("errors"):
        return "\n".join([f"{len(errors)} things are wrong:", *[f"  {each['message']}" for each in errors]])
    if response.status_code == httpx.codes.UNAUTHORIZED:
        return f"{message}; give --token or --user, or set AVISO_TOKEN or AVISO_USER"
    details = body.get("details")
    return f"{message} ({details})" if details and details != message else str(message)
