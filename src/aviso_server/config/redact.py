"""Settings as they may be shown: in a log record or on a screen."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import msgspec

from aviso_server.config.rule import Secret
from aviso_server.config.settings import DERIVED, Settings
from aviso_server.config.urls import mask_credentials

__all__ = ["shown"]


def shown(settings: Settings) -> dict[str, Any]:
    """The keys and their values without secrets, ready for JSON; event types by name."""
    sections = {name: _open(value) for name, value in msgspec.structs.asdict(settings).items() if name not in DERIVED}
    return {**sections, "notification_schema": [event_type.name for event_type in settings.event_types]}


def _open(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {name: _open(member) for name, member in msgspec.structs.asdict(value).items()}
    if isinstance(value, Secret):
        return "[REDACTED]" if value else ""
    if isinstance(value, str):
        return mask_credentials(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, tuple):
        return [_open(item) for item in value]
    if isinstance(value, dict):
        return {name: _open(member) for name, member in value.items()}
    return value
