"""The server's end of the bridge to the pipeline process: one request per connection, a line of JSON each way."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

__all__ = ["Address", "BridgeDown", "BridgeRefused", "call", "checked", "request_line"]

_PATIENCE = 30.0  # seconds
_LONGEST_ANSWER = 64 * 1024 * 1024


class BridgeDown(Exception):
    """Nobody answers at the other end, or it broke off; it may be back soon."""


class BridgeRefused(Exception):
    """The other end answers that it cannot; the sentence says why."""


class Address(msgspec.Struct, frozen=True):
    """Where the pipeline process listens, and what it wants to hear first."""

    port: int
    token: str


def request_line(address: Address, operation: str, members: dict[str, Any]) -> bytes:
    """A request as it goes over the wire."""
    return msgspec.json.encode({"token": address.token, "op": operation, **members}) + b"\n"


def checked(line: bytes) -> dict[str, Any]:
    """The members of an answer; BridgeRefused if it is a refusal, BridgeDown if it is none."""
    try:
        answer: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        raise BridgeDown("the pipeline process hung up") from None
    if not answer.get("ok"):
        raise BridgeRefused(str(answer.get("error", "the pipeline process does not say why")))
    return answer


async def call(address: Address, operation: str, seconds: float = _PATIENCE, **members: Any) -> dict[str, Any]:
    """Ask and wait for the answer."""
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection("127.0.0.1", address.port, limit=_LONGEST_ANSWER)
            try:
                writer.write(request_line(address, operation, members))
                return checked(await reader.readline())
            finally:
                writer.close()
    except TimeoutError:
        raise BridgeDown(f"the pipeline process did not answer within {seconds:g} s") from None
    except (OSError, ValueError) as error:
        raise BridgeDown(f"the pipeline process cannot be reached: {error}") from None
