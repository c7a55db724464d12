"""Reads what a NATS broker sends, and hands the messages of our own subscriptions over without detours.

The client's own parser makes an object, a queue entry and several coroutine calls of every message, which is more work
than everything else a replay does. This one calls a plain function. Connecting, reconnecting, TLS and credentials stay
the client's business; so do all messages that no handler was registered for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

from nats.protocol import parser

from aviso_server.log.jetstream.wire import Identify, notification_of
from aviso_server.model.notification import Notification

__all__ = ["Collect", "Consumer", "Deliver", "Handler", "Parser", "Plain"]

Handler = Callable[[bytes, bytes, bytes, bytes], None]
"""Called with subject, reply subject, header block and body of a message; must not block."""

Deliver = Callable[[int, Notification], None]
"""Called with what a consumer delivers: which of its deliveries it is, and the notification; must not block."""

Plain = tuple[bytes, bytes, bytes, bytes, bytes]
"""Sequence, time, subject, identifier and payload of a notification of the usual kind, as they came."""

Collect = Callable[[bytes, Plain], None]
"""Called instead, if there is one, with notifications of the usual kind: nothing is made of them yet."""

Consumer = tuple[Deliver, Identify, Collect | None]

# How a consumer delivers a notification of the usual kind: without a shape, and with its topic as the subject.
# The reply subject is $JS.ACK.<stream>.<consumer>.<times>.<sequence>.<delivery>.<time>.<pending>.
_DELIVERY = re.compile(
    rb"HMSG ([^ ]+) ([^ ]+) \$JS\.ACK\.[^.]+\.[^.]+\.[^.]+\.([^.]+)\.([^.]+)\.([^.]+)\.[^. ]+ ([^ ]+) ([^\r]+)\r\n"
    rb"NATS/1\.0\r\naviso_identifier: ([^\r]*)\r\n(?:Nats-|\r\n)"
)


class Parser(parser.Parser):
    """The wire protocol of one connection; handlers and consumers are found by the number of the subscription."""

    def __init__(self, client: Any) -> None:
        self.handlers: dict[bytes, Handler] = {}
        self.consumers: dict[bytes, Consumer] = {}
        super().__init__(client)

    def reset(self) -> None:
        """Forget what was read only in part: the connection is a new one."""
        super().reset()
        self._pieces: list[bytes] = []
        self._size = 0
        self._needed = 0

    async def parse(self, data: bytes = b"") -> None:
        """Take what has arrived; what is not complete waits for the rest."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size < self._needed:
            return
        data = b"".join(self._pieces)
        size, position = len(data), 0
        delivery_at, consumers = _DELIVERY.match, self.consumers
        while True:
            found = delivery_at(data, position)
            if found is not None:
                subject, number, sequence, delivery, when, head, total, identifier = found.groups()
                consumer = consumers.get(number)
                start = found.end(7) + 2
                stop = start + int(total)
                if consumer is not None and stop + 2 <= size and b"%" not in subject:
                    position = stop + 2
                    payload = data[start + int(head) : stop]
                    deliver, _, collect = consumer
                    try:
                        if collect is not None:
                            collect(delivery, (sequence, when, subject, identifier, payload))
                            continue
                        topic = subject.decode("utf-8", "replace")
                        deliver(int(delivery), Notification(int(sequence), int(when), topic, identifier, payload, None))
                    except Exception as error:  # the connection must live on
                        _report(error)
                    continue
            end = data.find(b"\r\n", position)
            if end < 0:
                self._needed = 0
                break
            words = data[position:end].split()
            kind = words[0] if words else b""
            if kind == b"HMSG" or kind == b"MSG":
                start = end + 2
                stop = start + int(words[-1])
                if stop + 2 > size:
                    self._needed = stop + 2 - position
                    break
                position = stop + 2
                await self._message(words, data, start, stop)
            else:
                line = data[position : end + 2]
                position = end + 2
                await super().parse(line)
        rest = data[position:]
        self._pieces = [rest]
        self._size = len(rest)

    async def _message(self, words: list[bytes], data: bytes, start: int, stop: int) -> None:
        """A message of any kind; the words are those of its first line."""
        subject, number = words[1], words[2]
        body = start
        replies = len(words) > 4
        if words[0] == b"HMSG":
            body += int(words[-2])
            replies = len(words) > 5
        reply = words[3] if replies else b""
        consumer = self.consumers.get(number) if replies else None
        handler = self.handlers.get(number)
        try:
            if consumer is not None:
                parts = reply.split(b".")  # with domains two more in front
                sequence, delivery, when = map(int, parts[5:8] if len(parts) == 9 else parts[7:10])
                deliver, identify, _ = consumer
                deliver(delivery, notification_of(sequence, when, subject, data[start:body], data[body:stop], identify))
            elif handler is not None:
                handler(subject, reply, data[start:body], data[body:stop])
            else:
                await self.nc._process_msg(int(number), subject, reply, data[body:stop], data[start:body])
        except Exception as error:  # the connection must live on
            if consumer is None and handler is None:
                raise
            _report(error)


def _report(error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": "a message from the broker could not be handled", "exception": error}
    )
