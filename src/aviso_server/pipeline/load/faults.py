"""Why a row was refused, in the form in which it is counted, shown and kept."""

from __future__ import annotations

import re

import msgspec

from aviso_server.errors import MalformedRequest, RequestError

__all__ = ["INVALID", "Fault", "fault_of", "rule_of"]

INVALID = "INVALID_NOTIFICATION_REQUEST"
"""The code that the server gives to a notification that breaks a rule of its event type."""

_FIELD = re.compile(r"(?:Required |Unknown )?[Ff]ield '[^']*'")
_VALUE = re.compile(r"'.*'", re.DOTALL)
_NUMBER = re.compile(r"\b(value|got|length|at|pair|vertex|point) -?[0-9][^\s,;]*")


class Fault(msgspec.Struct, frozen=True):
    """Why a row was refused: as the server would say it."""

    code: str
    field: str | None
    reason: str


def fault_of(error: RequestError) -> Fault:
    """The fault that an error of the model stands for."""
    code = error.code if isinstance(error, MalformedRequest) else INVALID
    shown = error.message
    if isinstance(error, MalformedRequest) and error.details != error.message:
        shown = f"{error.message}: {error.details}"
    return Fault(code, error.field, shown)


def rule_of(fault: Fault) -> str:
    """The reason without the value at fault, so that rows which broke the same rule are counted together."""
    if fault.code != INVALID and fault.field is None:
        return fault.reason.partition(":")[0]
    field = _FIELD.match(fault.reason)
    named = "" if field is None else field[0]
    return named + _NUMBER.sub(r"\1 …", _VALUE.sub("'…'", fault.reason[len(named) :]))
