"""Which records are logged: `RUST_LOG` if it makes sense, else `logging.level`."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["LEVELS", "log_level"]

LEVELS = ("trace", "debug", "info", "warn", "error")
_DIRECTIVE = re.compile(r"(?:(?P<target>[A-Za-z0-9_:.-]+)=)?(?P<level>[A-Za-z]+)", re.ASCII)


def log_level(environ: Mapping[str, str], configured: str) -> tuple[str, str | None]:
    """The level, and a warning if RUST_LOG is set to something that cannot be read."""
    fallback = configured.lower() if configured.lower() in LEVELS else "info"
    wanted = environ.get("RUST_LOG", "").strip()
    if not wanted:
        return fallback, None
    found: dict[str, str] = {}
    for directive in wanted.split(","):
        match = _DIRECTIVE.fullmatch(directive.strip())
        if match is None or match["level"].lower() not in (*LEVELS, "off"):
            known = ", ".join((*LEVELS, "off"))
            return fallback, f"RUST_LOG: cannot read '{directive.strip()}', using {fallback} (accepted: {known})"
        found[match["target"] or ""] = match["level"].lower()
    return found.get("aviso_server", found.get("", fallback)), None
