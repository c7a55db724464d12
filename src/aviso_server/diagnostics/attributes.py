"""What a record carries besides its text, without secrets."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from aviso_server import __version__
from aviso_server.config.settings import Deployment

__all__ = ["SEVERITIES", "attributes", "clean", "resource", "severity"]

HIDDEN = "[REDACTED]"
SEVERITIES = {5: ("TRACE", 1), 10: ("DEBUG", 5), 20: ("INFO", 9), 30: ("WARN", 13), 40: ("ERROR", 17)}
"""Names and numbers of the levels."""

_SECRET_KEY = re.compile(r"password|secret|token|authorization|api_key", re.IGNORECASE)
_USER_INFO = re.compile(r"(?<=://)[^/?#\s\"']*@")
_CREDENTIALS = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "event"}


def resource(deployment: Deployment) -> dict[str, str]:
    """Who writes these records."""
    found = {"service.name": "aviso-server", "service.version": __version__}
    if deployment.namespace:
        found["k8s.namespace.name"] = deployment.namespace
    if deployment.pod:
        found["k8s.pod.name"] = deployment.pod
    return found


def severity(record: logging.LogRecord) -> tuple[str, int]:
    """The level's name and number."""
    return SEVERITIES[max((known for known in SEVERITIES if known <= record.levelno), default=5)]


def clean(text: str) -> str:
    """The text without the credentials that an address or a header may carry."""
    return _CREDENTIALS.sub(rf"\1 {HIDDEN}", _USER_INFO.sub(f"{HIDDEN}@", text))


def attributes(record: logging.LogRecord) -> dict[str, Any]:
    """Everything that was said beside the message; what is None is left out."""
    found: dict[str, Any] = {}
    if (event := getattr(record, "event", None)) is not None:
        found["event.name"] = event
    for name, value in vars(record).items():
        if name not in _STANDARD and value is not None:
            found[name] = _shown(name, value)
    if record.exc_info and record.exc_info[0] is not None:
        found["error.type"] = record.exc_info[0].__name__
        found["exception.message"] = clean(str(record.exc_info[1]))
    return found


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _shown(str(key), member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(name, item) for item in value]
    if _SECRET_KEY.search(name) and value not in ("", None) and not isinstance(value, bool | int | float):
        return HIDDEN
    return clean(value) if isinstance(value, str) else value
