"""The event types of a server as the pipeline needs them: with the rules of their fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from aviso_server.errors import InvalidRequest, PipelineError
from aviso_server.model.event_type import EventType, GenericType, build_event_type
from aviso_server.model.fields import FIELD_TYPES
from pyspark_aviso.client import ask, connect
from pyspark_aviso.options import Options

__all__ = ["AnyType", "event_types", "fetch_catalogue"]

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


def event_types(names: Iterable[str], catalogue: Mapping[str, EventType]) -> dict[str, AnyType]:
    """The event types of these names; one that nobody configured is taken as schema-less."""
    found: dict[str, AnyType] = {}
    for name in names:
        try:
            found[name] = catalogue[name] if name in catalogue else GenericType(name)
        except InvalidRequest as error:
            known = ", ".join(sorted(catalogue)) or "none"
            raise PipelineError(f"option 'event_type': {error.message}; configured event types: {known}") from None
    return found


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
