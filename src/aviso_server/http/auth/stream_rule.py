"""Who may read and write which event type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from aviso_server.config.settings import StreamAuth
from aviso_server.http.auth.refusals import forbidden, unauthorized
from aviso_server.http.auth.user import User, has_role
from aviso_server.model.schema import Catalogue, EventType, GenericType

__all__ = ["StreamRules"]


class StreamRules:
    """The `auth` sections of the event types that demand to know the caller."""

    def __init__(self, mode: str, streams: Mapping[str, StreamAuth], catalogue: Catalogue) -> None:
        self._mode = mode
        self._by_name = {name: rule for name, rule in streams.items() if rule.required}
        # brokers and file systems may not tell the letters of a stream's name apart
        self._by_stream = {catalogue.event_types[name].base.lower(): rule for name, rule in self._by_name.items()}

    def check(self, event_type: EventType | GenericType, user: User | None, action: Literal["read", "write"]) -> None:
        """Return if the user may; a Refusal if not."""
        if not event_type.generic:
            rule = self._by_name.get(event_type.name)
        else:
            # an event type that nobody configured must not be a back door into a stream that is guarded
            rule = self._by_stream.get(event_type.base.lower())
        if rule is None:
            return
        if user is None:
            raise unauthorized(f"Event type '{event_type.name}' needs credentials", self._mode)
        if user.admin:
            return
        roles = rule.read_roles if action == "read" else rule.write_roles
        allowed = action == "read" if roles is None else has_role(user, roles)
        # plugins look at fields that only the configured event type has
        if not allowed or (event_type.generic and rule.plugins):
            raise forbidden(f"User '{user.name}' has no role that may {action} event type '{event_type.name}'")
