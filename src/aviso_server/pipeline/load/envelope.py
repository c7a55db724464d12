"""What surrounds an identifier in a JSON row: the body of a publish request, or an event as replays print it."""

from __future__ import annotations

from typing import Any

import msgspec

from aviso_server.errors import InvalidRequest, MalformedRequest
from aviso_server.model.json_value import loads

__all__ = ["MEMBERS", "Notice", "check_event_type", "check_identifier", "read_row"]

MEMBERS = ("event_type", "identifier", "payload", "time")
_KNOWN = frozenset(MEMBERS)


class Notice(msgspec.Struct, frozen=True):
    """A row, well-formed but not yet checked against its event type."""

    identifier: dict[str, Any]
    payload: Any
    time: Any


def read_row(line: bytes, event_type: str) -> Notice:
    """The notification in a JSON text; RequestError says what is wrong with its form."""
    members = loads(line)
    if not isinstance(members, dict):
        raise _shape("a notification must be a JSON object")
    if "specversion" in members and isinstance(members.get("data"), dict):
        return _event(members, event_type)
    if not members.keys() <= _KNOWN:
        unknown = min(members.keys() - _KNOWN)
        raise MalformedRequest("UNKNOWN_FIELD", f"Unknown member '{unknown}'; allowed members: {', '.join(MEMBERS)}")
    if "event_type" in members:
        check_event_type(members["event_type"], event_type)
    identifier = members.get("identifier")
    if not isinstance(identifier, dict):
        raise _shape("'identifier' must be present and an object")
    check_identifier(identifier)
    return Notice(identifier, members.get("payload"), members.get("time"))


def check_event_type(given: object, event_type: str) -> None:
    """Refuse rows of another event type than the one that is loaded."""
    if given is not None and given != event_type:
        raise InvalidRequest(f"The row is of another event type; this load is about '{event_type}'", field="event_type")


def check_identifier(identifier: dict[str, Any]) -> None:
    """Refuse what only readers may say."""
    if "point" in identifier:
        raise InvalidRequest("identifier.point is only supported for watch and replay, not for notify", field="point")


def _event(members: dict[str, Any], event_type: str) -> Notice:
    """A CloudEvent as `aviso-server replay --json` prints it."""
    kind = members.get("type")
    if isinstance(kind, str):
        check_event_type(kind.removeprefix("int.ecmwf.aviso."), event_type)
    data = members["data"]
    identifier = data.get("identifier")
    if not isinstance(identifier, dict):
        raise _shape("'data.identifier' must be present and an object")
    check_identifier(identifier)
    return Notice(identifier, data.get("payload"), members.get("time"))


def _shape(reason: str) -> MalformedRequest:
    return MalformedRequest("INVALID_REQUEST_SHAPE", f"Invalid row: {reason}")
