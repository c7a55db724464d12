"""The canonical form, checked again: would the model write a stored notification as it is?

Many rows at once, each distinct value of a field once. Only rows that differ are looked at one by one, to say why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from aviso_server.errors import InvalidRequest, MalformedRequest
from aviso_server.model import topic as topics
from aviso_server.model.arrow import field_arrays
from aviso_server.model.bulk import Bulk
from aviso_server.model.columns import Column
from aviso_server.model.json_value import compact, loads
from aviso_server.model.schema import EventType, GenericType

__all__ = ["FORM", "FormCheck", "forms_of"]

FORM = "struct<fault: string, foreign: boolean>"
"""What a check says of a row: why its form is wrong, and whether it fits another schema than today's."""

_FORM = pa.struct([("fault", pa.string()), ("foreign", pa.bool_())])
_PLACEHOLDER = 0  # a payload that every event type takes: here only the identifier is asked about

_decode = msgspec.json.Decoder().decode

Outcome = tuple[str | None, bool]
_RIGHT: Outcome = (None, False)


class FormCheck:
    """Checks rows of one event type. Pickles: it is made on the driver and works on workers.

    With `layout`, the topic is made from the identifier again too; without it, nobody here knows how.
    """

    def __init__(self, kind: EventType | GenericType, layout: bool) -> None:
        self._kind = kind
        self._layout = layout
        self._bulk: Bulk | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what is made on the spot."""
        return {**self.__dict__, "_bulk": None}

    def outcomes(
        self, topic: Sequence[str | None], identifiers: Sequence[bytes | None], payloads: Sequence[bytes | None]
    ) -> dict[int, Outcome]:
        """The rows that are not plainly right, by place."""
        suspects = {*self._odd_identifiers(topic, identifiers), *_odd_payloads(payloads)}
        found = {at: self._look(topic[at], identifiers[at], payloads[at]) for at in sorted(suspects)}
        return {at: outcome for at, outcome in found.items() if outcome != _RIGHT}

    def _odd_identifiers(self, topic: Sequence[str | None], identifiers: Sequence[bytes | None]) -> Sequence[int]:
        everything = range(len(identifiers))
        if not isinstance(self._kind, EventType) or not self._kind.fields or not identifiers:
            return everything
        if self._bulk is None:
            self._bulk = Bulk(self._kind)
        texts = [each for each in identifiers if each is not None]
        if len(texts) < len(identifiers):
            return everything
        try:
            arrays = field_arrays([Column(name, "text", name) for name in self._bulk.names], texts)
        except (msgspec.DecodeError, pa.ArrowException, ValueError, AttributeError):
            return everything  # some are not even objects
        found = self._bulk.canonical([arrays[name].to_pylist() for name in self._bulk.names])
        gone = set(found.refused)
        kept = [at for at in everything if at not in gone] if gone else everything
        odd = [at for at, made in zip(kept, found.identifiers, strict=True) if made != identifiers[at]]
        if self._layout:
            odd += [at for at, made in zip(kept, found.topics, strict=True) if topic[at] not in (None, made)]
        return [*found.refused, *odd]

    def _look(self, topic: str | None, identifier: bytes | None, payload: bytes | None) -> Outcome:
        """One row."""
        try:
            values = _canonical("identifier", identifier)
            _canonical("payload", payload)
        except _WrongForm as error:
            return str(error), False
        if not isinstance(values, dict):
            return "identifier: not an object", False
        if isinstance(self._kind, GenericType):
            return self._look_generic(topic, values)
        return self._look_configured(topic, identifier, values)

    def _look_configured(self, topic: str | None, identifier: bytes | None, values: dict[str, Any]) -> Outcome:
        assert isinstance(self._kind, EventType)
        if not values.keys() <= self._kind.fields.keys():
            return None, True
        left_out = {name: topics.WILDCARD for name in self._kind.fields if name not in values}
        try:
            draft = self._kind.check({**left_out, **values}, _PLACEHOLDER)
        except InvalidRequest as error:
            if error.field in left_out:
                return None, True
            return f"identifier: {error.message}", False
        if draft.identifier != identifier:
            return f"identifier: expected {draft.identifier.decode()}", False
        if self._layout and topic is not None and draft.topic != topic:
            return f"topic: expected {draft.topic}", False
        return _RIGHT

    def _look_generic(self, topic: str | None, values: dict[str, Any]) -> Outcome:
        for name, value in values.items():
            if not isinstance(value, str) or not value:
                return f"identifier: field '{name}' is not a text with something in it", False
        if topic is None:
            return _RIGHT
        try:
            base, *tokens = topics.parse(topic)
        except ValueError as error:
            return f"topic: {error}", False
        expected = [values[name] for name in sorted(values)]
        if base != self._kind.name or [each for each in tokens if each != topics.WILDCARD] != expected:
            return f"topic: expected {topics.build([self._kind.name, *expected])}", False
        return _RIGHT


def forms_of(check: FormCheck) -> Callable[[pa.Array, pa.Array, pa.Array], pa.Array]:
    """What a worker does with topics, identifiers and payloads: a value of FORM for each row."""

    def judged(topic: pa.Array, identifier: pa.Array, payload: pa.Array) -> pa.Array:
        found = check.outcomes(
            topic.to_pylist(), identifier.cast(pa.binary()).to_pylist(), payload.cast(pa.binary()).to_pylist()
        )
        faults, foreign = pa.nulls(len(topic), pa.string()), pa.repeat(False, len(topic))
        if found:
            outcomes = [found.get(at, _RIGHT) for at in range(len(topic))]
            faults = pa.array([fault for fault, _ in outcomes], pa.string())
            foreign = pa.array([other for _, other in outcomes], pa.bool_())
        return pa.StructArray.from_arrays([faults, foreign], fields=list(_FORM))

    return judged


class _WrongForm(Exception):
    """A text is not JSON, or not in the one form that is stored."""


def _canonical(name: str, text: bytes | None) -> Any:
    if text is None:
        raise _WrongForm(f"{name}: there is none")
    try:
        value = loads(text)
    except MalformedRequest as error:
        raise _WrongForm(f"{name}: not JSON ({error.details})") from None
    if compact(value) != text:
        raise _WrongForm(f"{name}: not compact with sorted keys")
    return value


def _odd_payloads(payloads: Sequence[bytes | None]) -> list[int]:
    """The places of payloads that are not what writing them again would give."""
    bad = {text for text in set(payloads) if not _plain(text)}
    return [at for at, text in enumerate(payloads) if text in bad] if bad else []


def _plain(text: bytes | None) -> bool:
    try:
        return text is not None and compact(_decode(text)) == text
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
