"""Reads what a NATS broker sends, and hands the messages of our own subscriptions over without detours.

The client's own parser makes an object, a queue entry and several coroutine calls of every message, which is more work
than everything else a replay does. This one calls a plain function with the bytes. Connecting, reconnecting, TLS and
credentials stay the client's business; so do all messages that no handler was registered for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from nats.protocol import parser

__all__ = ["Handler", "Parser"]

Handler = Callable[[bytes, bytes, bytes, bytes], None]
"""Called with subject, reply subject, header block and body of a message; must not block."""


class Parser(parser.Parser):
    """The wire protocol of one connection; `handlers` are found by the number of the subscription."""

    def __init__(self, client: Any) -> None:
        self.handlers: dict[bytes, Handler] = {}
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
        while True:
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
                body = start
                replies = len(words) > 4
                if kind == b"HMSG":
                    body += int(words[-2])
                    replies = len(words) > 5
                reply = words[3] if replies else b""
                position = stop + 2
                handler = self.handlers.get(words[2])
                if handler is None:
                    await self.nc._process_msg(int(words[2]), words[1], reply, data[body:stop], data[start:body])
                    continue
                try:
                    handler(words[1], reply, data[start:body], data[body:stop])
                except Exception as error:  # the connection must live on
                    asyncio.get_running_loop().call_exception_handler(
                        {"message": "a message from the broker could not be handled", "exception": error}
                    )
            else:
                line = data[position : end + 2]
                position = end + 2
                await super().parse(line)
        rest = data[position:]
        self._pieces = [rest]
        self._size = len(rest)
