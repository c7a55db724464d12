"""Publishing on the express lane: check, store, answer, without a task for each request."""

from __future__ import annotations

import asyncio
from functools import partial
from time import perf_counter

import msgspec

from aviso_server.errors import LogError, RequestError
from aviso_server.http.answers import Refusal, error_members
from aviso_server.http.connection.express import Answer
from aviso_server.http.notify import Counted, accepted, check, storage_failed
from aviso_server.http.request_id import new_request_id
from aviso_server.http.service import Service
from aviso_server.model.notification import Notification

__all__ = ["ExpressPublisher"]

_ROUTE = "/api/v1/notification"
_ANSWER = b"x-request-id: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


class ExpressPublisher:
    """Stores what needs no more than the contract's checks; everything else is left to the route."""

    def __init__(self, service: Service) -> None:
        settings = service.settings
        self._service = service
        self._measuring = settings.metrics.enabled
        self._most_connections = settings.limits.max_connections
        self._publishes = (
            service.operations.durations["publish", "ok"],
            service.operations.durations["publish", "error"],
        )
        # A small body cannot hold an identifier that is too large.
        self.longest = min(settings.limits.max_body_bytes, settings.limits.max_identifier_bytes)

    @staticmethod
    def serves(service: Service) -> bool:
        """True if nobody has to be asked who they are, counted or traced."""
        limits = service.settings.limits
        return (
            service.gate is None
            and service.traces is None
            and not service.limits.active
            and limits.max_connections_per_client is None
        )

    def publish(self, body: bytes, answer: Answer) -> bool:
        """Store the notification in a body and answer when it is safe; False if that is a matter for the route."""
        service = self._service
        if service.connections() > self._most_connections:
            return False
        request_id = new_request_id()
        counted = Counted(service.tally)
        began = perf_counter()
        try:
            draft = check(service, None, body, request_id, counted)
            storing = asyncio.ensure_future(service.log.append(draft))
        except (RequestError, Refusal, LogError):
            return False
        if self._measuring:
            service.tally.in_flight["POST"] += 1
        storing.add_done_callback(partial(self._finish, answer, request_id, counted, began))
        return True

    def _finish(
        self, answer: Answer, request_id: str, counted: Counted, began: float, storing: asyncio.Future[Notification]
    ) -> None:
        service = self._service
        taken = perf_counter() - began
        error = LogError("the server is shutting down") if storing.cancelled() else storing.exception()
        if error is None:
            self._publishes[0].observe(taken)
            counted.end("success")
            status, body = 200, accepted(service, storing.result().topic, request_id)
        else:
            self._publishes[1].observe(taken)
            counted.end("error")
            refusal = storage_failed(error if isinstance(error, LogError) else LogError(str(error)), request_id)
            status, body = refusal.status, msgspec.json.encode(error_members(refusal, request_id))
        if self._measuring:
            service.tally.in_flight["POST"] -= 1
            service.tally.answered(_ROUTE, "POST", status, taken)
        answer(status, _ANSWER % (request_id.encode(), len(body), body))
