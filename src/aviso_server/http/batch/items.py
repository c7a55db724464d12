"""The notifications of a batch: each checked like one that comes alone, and what is said of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

import msgspec

from aviso_server.delivery.hub import GENERIC
from aviso_server.errors import InvalidRequest, LogError, RequestError, UnknownEventType
from aviso_server.http.answers import ENDPOINTS, Refusal, refusal_of
from aviso_server.http.idempotency import key_text
from aviso_server.http.metrics.tally import UNKNOWN
from aviso_server.http.requests import check_publishable, read_request
from aviso_server.http.service import Service
from aviso_server.model.json_value import compact
from aviso_server.model.notification import Draft
from aviso_server.model.schema import MAX_PAYLOAD_DEPTH, EventType, GenericType

__all__ = ["KEY", "Alike", "Checked", "Checker", "Fault", "fault_of"]

KEY = "idempotency_key"
_ENDPOINT = ENDPOINTS["notifications"]
_MOST_TYPES = 1024  # event types that are remembered while a batch is checked
_event_type, _identifier, _payload = itemgetter("event_type"), itemgetter("identifier"), itemgetter("payload")
_STORED = '{"status":"success","sequence":'


class Fault(msgspec.Struct, frozen=True):
    """Why a notification was not stored."""

    code: str
    field: str | None
    message: str

    def rendered(self) -> str:
        """As it stands in the answer."""
        return msgspec.json.encode({"status": "error", **msgspec.structs.asdict(self)}).decode()


class _Type(msgspec.Struct, frozen=True):
    """An event type of this batch: what it is called, or why the caller may not publish it."""

    of: EventType | GenericType
    label: str  # in metrics
    before_id: str  # what stands in the answer between a sequence and the same in the id
    fault: Fault | None

    def stored(self, sequences: Iterable[int]) -> str:
        """What stands in the answer for notifications that were stored."""
        between = self.before_id
        return _STORED + f'"}},{_STORED}'.join([f"{number}{between}{number}" for number in sequences]) + '"}'

    def replayed(self, sequence: int) -> str:
        """What stands in the answer for one that was stored before."""
        return f'{_STORED}{sequence}{self.before_id}{sequence}","replayed":true}}'


class Checked(msgspec.Struct, frozen=True, gc=False):
    """A notification that can be stored."""

    draft: Draft
    kind: _Type
    key: str | None


class Alike(msgspec.Struct, frozen=True):
    """Notifications of one event type without keys, all of which can be stored."""

    kind: _Type
    drafts: list[Draft]

    def each(self) -> list[Checked]:
        """One by one."""
        return list(map(Checked, self.drafts, repeat(self.kind), repeat(None)))


class Checker:
    """Checks the notifications of one batch and counts what comes of them."""

    def __init__(self, service: Service, scope: Any, request_id: str) -> None:
        self.keyed = False  # one of them has a key of its own
        self._counts = service.tally.notifications
        self._service = service
        self._user = scope.get("user")
        self._request_id = request_id
        self._types: dict[str, _Type] = {}
        self._most_bytes = service.settings.limits.max_body_bytes
        self._most_identifier_bytes = service.settings.limits.max_identifier_bytes
        self._unsuspicious = min(self._most_bytes, self._most_identifier_bytes)

    def check_all(self, items: Sequence[Any]) -> Alike | None:
        """What `check` says of each; None if they are not all of one event type, plain and acceptable."""
        if set(map(type, items)) != {dict} or set(map(len, items)) != {3}:
            return None
        try:
            names = set(map(_event_type, items))
            identifiers, payloads = list(map(_identifier, items)), list(map(_payload, items))
            if len(names) != 1 or set(map(type, identifiers)) != {dict} or "point" in identifiers[0]:
                return None
            name = names.pop()
            kind = (self._types.get(name) or self._find(name)) if type(name) is str else None
            drafts = None if kind is None or kind.fault is not None else kind.of.check_all(identifiers, payloads)
        except (KeyError, TypeError, RequestError):  # a member is not there, or its value is no text
            return None
        if kind is None or drafts is None:
            return None
        sizes = [len(draft.identifier) + len(draft.payload) for draft in drafts]
        return None if max(sizes) > self._unsuspicious else Alike(kind, drafts)

    def check(self, members: Any) -> Checked | Fault:
        """The notification, or why it cannot be stored; a Refusal if credentials are needed and there are none."""
        label, key = UNKNOWN, None
        if isinstance(members, RequestError):
            return self._refused(label, members)
        try:
            if type(members) is dict and KEY in members:
                key = key_text(members.pop(KEY))
                self.keyed = True
            request = read_request(members)
            kind = self._types.get(request.event_type) or self._find(request.event_type)
            label = kind.label
            check_publishable(request)
            if kind.fault is not None:
                self._counts[label, "rejected"] += 1
                return kind.fault
            draft = kind.of.check(request.identifier, request.payload)
            if len(draft.identifier) + len(draft.payload) > self._unsuspicious:
                self._check_size(draft)
        except RequestError as error:
            return self._refused(label, error)
        except RecursionError:
            self._counts[label, "error"] += 1
            message = f"Field 'payload' nests deeper than {MAX_PAYLOAD_DEPTH} levels"
            return fault_of(InvalidRequest(message, field="payload"))
        return Checked(draft, kind, key)

    def _refused(self, label: str, error: RequestError) -> Fault:
        self._counts[label, "rejected" if isinstance(error, UnknownEventType) else "error"] += 1
        self._service.limits.note_invalid(error)
        return fault_of(error)

    def failed(self, one: Checked, error: RequestError | LogError) -> str:
        """Count a notification that could not be stored; as it stands in the answer."""
        self._counts[one.kind.label, "error"] += 1
        return fault_of(error).rendered()

    def _find(self, name: str) -> _Type:
        event_type = self._service.catalogue.find(name)
        fault = None
        if self._service.gate is not None:
            try:
                self._service.gate.allow(event_type, self._user, "write", self._request_id)
            except Refusal as refusal:
                if refusal.status != 403 or not isinstance(refusal.members, dict):
                    raise
                fault = Fault(refusal.members["code"], "event_type", refusal.members["message"])
        label = GENERIC if event_type.generic else event_type.name
        found = _Type(event_type, label, f',"id":{compact(event_type.name)[:-1].decode()}@', fault)
        if len(self._types) < _MOST_TYPES:
            self._types[name] = found
        return found

    def _check_size(self, draft: Draft) -> None:
        size = len(draft.identifier) + len(draft.payload)
        if size > self._most_bytes:
            raise InvalidRequest(f"The notification holds {size} bytes; the limit is {self._most_bytes}")
        if len(draft.identifier) > self._most_identifier_bytes:
            message = f"The identifier exceeds the size limit of {self._most_identifier_bytes} bytes"
            raise InvalidRequest(message, field="identifier")


def fault_of(error: RequestError | LogError) -> Fault:
    """What is said of a notification that could not be stored."""
    if isinstance(error, LogError):
        return Fault("NOTIFICATION_STORAGE_FAILED", None, f"The notification could not be stored: {error}")
    members = refusal_of(error, _ENDPOINT).members
    assert isinstance(members, dict)
    field = "event_type" if isinstance(error, UnknownEventType) else error.field
    return Fault(members["code"], field, error.message)
