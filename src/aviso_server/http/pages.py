"""The console, the API page and static files."""

from __future__ import annotations

import asyncio
import html
import mimetypes
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from aviso_server import __version__
from aviso_server.delivery.outlet import Send
from aviso_server.http.answers import Headers, empty, respond
from aviso_server.http.service import Service

__all__ = ["api_page", "home", "static_file"]

_PACKAGED = Path(str(files("aviso_server") / "web"))
_HTML = (b"content-type", b"text/html; charset=utf-8")
_OWN_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What our own page may do: nothing inline, nothing from elsewhere."""

_WIDE_POLICY = b"default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"
"""The same for pages that others wrote, which set styles inline."""


def _headers(policy: bytes) -> Headers:
    return [(b"content-security-policy", policy), (b"x-content-type-options", b"nosniff")]


async def home(service: Service, send: Send, request_id: str) -> None:
    """The home page: the operator's own if there is one, else the console."""
    folder = service.settings.application.static_files_path
    text, policy = await asyncio.to_thread(_home_text, folder / "index.html")
    text = text.replace("{{SERVER_VERSION}}", html.escape(__version__))
    for name, url in msgspec.structs.asdict(service.settings.application.homepage).items():
        text = text.replace("{{" + name.upper() + "}}", html.escape(url))
    await respond(send, 200, _HTML, text.encode(), request_id, _headers(policy))


async def api_page(service: Service, send: Send, request_id: str, path: bytes) -> None:
    """The browsable API page; all it needs comes from here."""
    name = unquote(path.decode("ascii", "replace")) or "index.html"
    await _send_file(send, request_id, _PACKAGED / "swagger-ui", name)


async def static_file(service: Service, send: Send, request_id: str, path: bytes) -> None:
    """A file of the operator's folder or, failing that, of ours; folders are listed."""
    name = unquote(path.decode("ascii", "replace"))
    own = service.settings.application.static_files_path
    for root in (own, _PACKAGED):
        found = await asyncio.to_thread(_inside, root, name)
        if found is not None:
            return await _send_file(send, request_id, root, name)
    await empty(send, 404, request_id)


def _home_text(own: Path) -> tuple[str, bytes]:
    """The home page and what it may do."""
    for path, policy in ((own, _WIDE_POLICY), (_PACKAGED / "index.html", _OWN_POLICY)):
        try:
            return path.read_text(encoding="utf-8"), policy
        except (OSError, UnicodeDecodeError):
            continue
    return "<!DOCTYPE html><title>aviso-server</title><h1>aviso-server {{SERVER_VERSION}}</h1>", _OWN_POLICY


def _inside(root: Path, name: str) -> Path | None:
    """The path below root, None if it is not there or leads out of it."""
    if "\0" in name:
        return None
    try:
        path = (root / name).resolve()
        base = root.resolve()
        return path if path.exists() and (path == base or base in path.parents) else None
    except OSError:
        return None


async def _send_file(send: Send, request_id: str, root: Path, name: str) -> None:
    found = await asyncio.to_thread(_inside, root, name)
    try:
        if found is None:
            return await empty(send, 404, request_id)
        if found.is_dir():
            content_type, body = _HTML, await asyncio.to_thread(_listing, found, name)
        else:
            guessed = mimetypes.guess_type(found.name)[0] or "application/octet-stream"
            text = guessed.startswith("text/") or guessed in ("application/javascript", "image/svg+xml")
            content_type = (b"content-type", (guessed + ("; charset=utf-8" if text else "")).encode())
            body = await asyncio.to_thread(found.read_bytes)
    except OSError:
        return await empty(send, 404, request_id)
    await respond(send, 200, content_type, body, request_id, _headers(_WIDE_POLICY))


def _listing(folder: Path, name: str) -> bytes:
    rows = "".join(
        f'<li><a href="{quote(each.name)}{"/" if each.is_dir() else ""}">{html.escape(each.name)}</a></li>'
        for each in sorted(folder.iterdir())
    )
    title = html.escape(f"/static/{name}")
    return f"<!DOCTYPE html><title>{title}</title><h1>{title}</h1><ul>{rows}</ul>".encode()
