"""Which records are logged: `RUST_LOG` (or `AVISOSERVER_LOG`) if it makes sense, else `logging.level`."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

__all__ = ["LEVELS", "VARIABLES", "Levels", "log_level"]

VARIABLES = ("RUST_LOG", "AVISOSERVER_LOG")
"""The first of them that is not blank counts."""

LEVELS = ("trace", "debug", "info", "warn", "error")
_DIRECTIVE = re.compile(r"(?:(?P<target>[A-Za-z0-9_:.-]+)=)?(?P<level>[A-Za-z]+)", re.ASCII)


class Levels(msgspec.Struct, frozen=True):
    """The level of all records, and of modules that differ, by dotted name."""

    level: str
    modules: Mapping[str, str] = {}


def log_level(environ: Mapping[str, str], configured: str) -> tuple[Levels, str | None]:
    """The levels, and a warning if the variable is set to something that cannot be read."""
    fallback = configured.lower() if configured.lower() in LEVELS else "info"
    variable = next((name for name in VARIABLES if environ.get(name, "").strip()), None)
    if variable is None:
        return Levels(fallback), None
    wanted = environ[variable].strip()
    found: dict[str, str] = {}
    for directive in wanted.split(","):
        match = _DIRECTIVE.fullmatch(directive.strip())
        if match is None or match["level"].lower() not in (*LEVELS, "off"):
            known = ", ".join((*LEVELS, "off"))
            warning = f"{variable}: cannot read '{directive.strip()}', using {fallback} (accepted: {known})"
            return Levels(fallback), warning
        found[(match["target"] or "").replace("::", ".")] = match["level"].lower()
    modules = {name: level for name, level in found.items() if name}
    return Levels(found.get("aviso_server", found.get("", fallback)), modules), None
