"""The event types of a server as the pipeline needs them: with the rules of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from aviso_server.errors import InvalidRequest, PipelineError
from aviso_server.model.event_type import EventType, GenericType, build_event_type
from aviso_server.model.fields import FIELD_TYPES
from pyspark_aviso.client import ask, connect
from pyspark_aviso.options import Options

__all__ = ["AnyType", "event_type_of", "fetch_catalogue"]

AnyType = EventType | GenericType


class _Definition(msgspec.Struct, frozen=True):
    identifier: dict[str, dict[str, Any]]
    payload: dict[str, bool] | None = None


class _Answer(msgspec.Struct, frozen=True):
    schema: dict[str, _Definition]


def fetch_catalogue(options: Options) -> dict[str, EventType]:
    """All configured event types of the server, as its schema route describes them."""
    with connect(options) as client:
        found = ask(client, "/api/v1/schema")
    try:
        answer = msgspec.convert(found, _Answer)
    except msgspec.ValidationError:
        raise PipelineError(f"what answers at {options.url} is not an aviso server") from None
    return {name: _event_type(name, definition) for name, definition in answer.schema.items()}


def event_type_of(name: str, catalogue: Mapping[str, EventType]) -> AnyType:
    """Return the event type of this name; one that nobody configured is taken as schema-less."""
    try:
        return catalogue[name] if name in catalogue else GenericType(name)
    except InvalidRequest as error:
        known = ", ".join(sorted(catalogue)) or "none"
        raise PipelineError(f"option 'event_type': {error.message}; configured event types: {known}") from None


def _event_type(name: str, definition: _Definition) -> EventType:
    """The event type; fields of a type we do not know are taken as text."""
    fields = {
        field: rules if rules.get("type") in FIELD_TYPES else {"type": "StringHandler", "required": rules["required"]}
        for field, rules in definition.identifier.items()
        if "required" in rules
    }
    built, problems = build_event_type(name, {"identifier": fields, "payload": definition.payload})
    if built is None:
        raise PipelineError(f"the server describes event type '{name}' in a way that cannot be read: {problems[0]}")
    return built
