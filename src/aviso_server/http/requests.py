"""The body that notification, watch and replay share, and the checks on its form."""

from __future__ import annotations

from typing import Any

import msgspec

from aviso_server.errors import MalformedRequest
from aviso_server.model.json_value import loads

__all__ = ["MEMBERS", "Request", "parse_request"]

MEMBERS = ("event_type", "identifier", "from_id", "from_date", "to_id", "to_date", "payload")
_OPTIONAL_TEXTS = ("from_id", "from_date", "to_id", "to_date")


class Request(msgspec.Struct, frozen=True):
    """A request as it came, well-formed but not yet checked against an event type."""

    event_type: str
    identifier: dict[str, Any]
    from_id: str | None
    from_date: str | None
    to_id: str | None
    to_date: str | None
    payload: Any


def parse_request(body: bytes) -> Request:
    """The request in a body; MalformedRequest says what is wrong with its form."""
    members = loads(body)
    if not isinstance(members, dict):
        raise _shape("the body must be a JSON object")
    unknown = members.keys() - set(MEMBERS)
    if unknown:
        raise MalformedRequest(
            "UNKNOWN_FIELD", f"Unknown field '{min(unknown)}' in request body; allowed fields: {', '.join(MEMBERS)}"
        )
    event_type, identifier = members.get("event_type"), members.get("identifier")
    if not isinstance(event_type, str):
        raise _shape("'event_type' must be present and a string")
    if not isinstance(identifier, dict):
        raise _shape("'identifier' must be present and an object")
    texts = [members.get(name) for name in _OPTIONAL_TEXTS]
    for name, text in zip(_OPTIONAL_TEXTS, texts, strict=True):
        if text is not None and not isinstance(text, str):
            raise _shape(f"'{name}' must be a string or null")
    from_id, from_date, to_id, to_date = texts
    return Request(event_type, identifier, from_id, from_date, to_id, to_date, members.get("payload"))


def _shape(reason: str) -> MalformedRequest:
    return MalformedRequest("INVALID_REQUEST_SHAPE", f"Invalid request body: {reason}")
