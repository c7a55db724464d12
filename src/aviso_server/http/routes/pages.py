"""The console, the API page and static files."""

from __future__ import annotations

import asyncio
import html
import mimetypes
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import msgspec

from aviso_server import __version__
from aviso_server.http.request import Request
from aviso_server.http.response import HTML, Headers, Response

__all__ = ["api_page", "documentation", "home", "static_file"]


_PACKAGED = Path(str(files("aviso_server") / "web"))
_NOT_FOUND = Response(404)
_OWN_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The content security policy of our pages: nothing inline, nothing from elsewhere."""

_WIDE_POLICY = b"default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"
"""The same for pages that others wrote, which set styles inline."""


def _headers(policy: bytes) -> Headers:
    return [(b"content-security-policy", policy), (b"x-content-type-options", b"nosniff")]


async def home(request: Request) -> Response:
    """Show the console, or the operator's own home page."""
    application = request.service.settings.application
    text, policy = await asyncio.to_thread(_home_text, application.static_files_path / "index.html")
    text = text.replace("{{SERVER_VERSION}}", html.escape(__version__))
    built = await asyncio.to_thread((_PACKAGED / "docs" / "index.html").is_file)
    text = text.replace("{{DOCUMENTATION}}", "built" if built else "missing")
    for name, url in msgspec.structs.asdict(application.homepage).items():
        # as the reference writes apostrophes
        text = text.replace("{{" + name.upper() + "}}", html.escape(url).replace("&#x27;", "&#39;"))
    return Response(200, text.encode(), HTML, _headers(policy))


async def api_page(request: Request) -> Response:
    """Show the browsable API page; all it needs comes from here."""
    return await _file(_PACKAGED / "swagger-ui", request.params["path"] or "index.html")


async def documentation(request: Request) -> Response:
    """Show the documentation, where it was built with `make docs`."""
    return await _file(_PACKAGED / "docs", request.params["path"] or "index.html")


async def static_file(request: Request) -> Response:
    """Send a file of the operator's folder or, failing that, of ours; folders are listed."""
    name = request.params["path"]
    for root in (request.service.settings.application.static_files_path, _PACKAGED):
        if await asyncio.to_thread(_inside, root, name) is not None:
            return await _file(root, name)
    return _NOT_FOUND


def _home_text(own: Path) -> tuple[str, bytes]:
    """Return the home page and its content security policy."""
    for path, policy in ((own, _WIDE_POLICY), (_PACKAGED / "index.html", _OWN_POLICY)):
        try:
            return path.read_text(encoding="utf-8"), policy
        except (OSError, UnicodeDecodeError):
            continue
    return "<!DOCTYPE html><title>aviso-server</title><h1>aviso-server {{SERVER_VERSION}}</h1>", _OWN_POLICY


def _inside(root: Path, name: str) -> Path | None:
    """Return the path below root; None if it is not there or leads out of it."""
    if "\0" in name:
        return None
    try:
        path = (root / name).resolve()
        base = root.resolve()
        return path if path.exists() and (path == base or base in path.parents) else None
    except OSError:
        return None


async def _file(root: Path, name: str) -> Response:
    found = await asyncio.to_thread(_inside, root, name)
    if found is None:
        return _NOT_FOUND
    try:
        if found.is_dir():
            return Response(200, await asyncio.to_thread(_listing, found, name), HTML, _headers(_WIDE_POLICY))
        body = await asyncio.to_thread(found.read_bytes)
    except OSError:
        return _NOT_FOUND
    guessed = mimetypes.guess_type(found.name)[0] or "application/octet-stream"
    text = guessed.startswith("text/") or guessed in ("application/javascript", "image/svg+xml")
    content_type = (guessed + ("; charset=utf-8" if text else "")).encode()
    return Response(200, body, content_type, _headers(_WIDE_POLICY))


def _listing(folder: Path, name: str) -> bytes:
    rows = "".join(
        f'<li><a href="{quote(each.name)}{"/" if each.is_dir() else ""}">{html.escape(each.name)}</a></li>'
        for each in sorted(folder.iterdir())
    )
    title = html.escape(f"/static/{name}")
    return f"<!DOCTYPE html><title>{title}</title><h1>{title}</h1><ul>{rows}</ul>".encode()
