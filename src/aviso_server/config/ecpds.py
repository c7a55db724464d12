"""Rules of the `ecpds` section; they hold once an event type uses the plugin."""

from __future__ import annotations

from aviso_server.config import literals
from aviso_server.config.settings import Ecpds, Settings
from aviso_server.config.tree import Findings, Node
from aviso_server.config.urls import server_url_problem

__all__ = ["check_ecpds"]

_COUNTS = ("cache_ttl_seconds", "max_entries", "request_timeout_seconds", "connect_timeout_seconds")


def check_ecpds(root: Node, settings: Settings, findings: Findings) -> None:
    """Report what keeps the plugin from working for the event types that use it."""
    users = [name for name, auth in settings.stream_auth.items() if "ecpds" in auth.plugins]
    if not users:
        return
    if root.find("ecpds") is None:
        findings.refuse("ecpds", f"must be configured: event type '{users[0]}' uses the plugin", "an ecpds section")
        return
    _values(settings.ecpds, findings)
    match_key = settings.ecpds.match_key
    for name in users if match_key else []:
        entry = root.members["notification_schema"].members[name]
        if not _demanded(entry, match_key or ""):
            key = f"notification_schema.{name}.identifier"
            findings.refuse(key, f"ecpds.match_key '{match_key}' must be a field with required: true", "that field")


def _values(ecpds: Ecpds, findings: Findings) -> None:
    for name in ("username", "password", "match_key"):
        key, text = f"ecpds.{name}", getattr(ecpds, name)
        if findings.broken(key):
            continue
        if text is None or not text.strip():
            findings.refuse(key, "must be set", "text that is not blank")
        elif text != text.strip():
            findings.refuse(key, "must not begin or end with blanks", "text without blanks around it")
        elif name == "match_key" and any(letter.isspace() or letter in "/\0" for letter in text):
            findings.refuse(key, "contains a blank, a slash or NUL", "the name of an identifier field")
    if not ecpds.target_field.strip():
        findings.refuse("ecpds.target_field", "must not be blank", "the name of a member")
    if not ecpds.servers and not findings.broken("ecpds.servers"):
        findings.refuse("ecpds.servers", "names no server", "at least one https URL")
    for place, server in enumerate(ecpds.servers):
        reason = server_url_problem(server)
        if reason is not None:
            accepted = "https://host, or http:// to 127.0.0.1, [::1] or localhost"
            findings.refuse(f"ecpds.servers[{place}]", reason, accepted)
    for name in _COUNTS:
        if getattr(ecpds, name) == 0:
            findings.refuse(f"ecpds.{name}", "0 is out of range", "a whole number, 1 or more")


def _demanded(entry: Node, match_key: str) -> bool:
    identifier = entry.find("identifier")
    field = identifier.members.get(match_key) if identifier else None
    required = field.find("required") if field else None
    try:
        return required is not None and literals.switch(required.text or "")
    except ValueError:
        return False
