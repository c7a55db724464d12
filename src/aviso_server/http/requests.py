"""The body that notification, watch and replay share, and the checks on its form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from aviso_server.errors import InvalidRequest, MalformedRequest
from aviso_server.model.json_value import loads

__all__ = ["MEMBERS", "Request", "check_publishable", "parse_request", "read_request"]

MEMBERS = ("event_type", "identifier", "from_id", "from_date", "to_id", "to_date", "payload")
_OPTIONAL_TEXTS = ("from_id", "from_date", "to_id", "to_date")
_KNOWN = frozenset(MEMBERS)


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
    return read_request(loads(body))


def read_request(members: Any, more: Sequence[str] = ()) -> Request:
    """The request in decoded JSON; MalformedRequest says what is wrong with its form.

    `more` are members that the caller reads, besides those that all requests have.
    """
    if not isinstance(members, dict):
        raise _shape("the body must be a JSON object")
    if not members.keys() <= _KNOWN and (unknown := members.keys() - _KNOWN - set(more)):
        allowed = ", ".join((*MEMBERS, *more))
        raise MalformedRequest(
            "UNKNOWN_FIELD", f"Unknown field '{min(unknown)}' in request body; allowed fields: {allowed}"
        )
    event_type, identifier = members.get("event_type"), members.get("identifier")
    if not isinstance(event_type, str):
        raise _shape("'event_type' must be present and a string")
    if not isinstance(identifier, dict):
        raise _shape("'identifier' must be present and an object")
    for name in _OPTIONAL_TEXTS:
        if name in members and not isinstance(members[name], str | None):
            raise _shape(f"'{name}' must be a string or null")
    get = members.get
    return Request(
        event_type, identifier, get("from_id"), get("from_date"), get("to_id"), get("to_date"), get("payload")
    )


def check_publishable(request: Request) -> None:
    """Refuse what only readers may say."""
    if "point" in request.identifier:
        raise InvalidRequest("identifier.point is only supported for watch and replay, not for notify", field="point")
    if request.to_id is not None or request.to_date is not None:
        raise InvalidRequest("to_id and to_date are only supported for the replay endpoint, not /notification")


def _shape(reason: str) -> MalformedRequest:
    return MalformedRequest("INVALID_REQUEST_SHAPE", f"Invalid request body: {reason}")
