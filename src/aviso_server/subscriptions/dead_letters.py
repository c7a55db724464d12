"""Dead letters: notifications that could not be delivered, each kept as a record with why."""

from __future__ import annotations

import msgspec

from aviso_server.log.base import Change, Records

__all__ = ["DeadLetter", "DeadLetters"]


class DeadLetter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A notification that could not be delivered, kept with why."""

    sequence: int
    event: msgspec.Raw
    attempts: int
    first: int  # when the first attempt failed, nanoseconds since 1970
    last: int
    status: int  # of the last answer; 0: there was none
    answer: str
    blocking: bool = False  # deliveries wait behind it


class DeadLetters:
    """The dead letters of all subscriptions, a record each."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def keep(self, subscription: str, letter: DeadLetter) -> bool:
        """Keep a letter, in place of an earlier one about the same; True if it is the first."""
        known = await self._find(subscription, letter.sequence)
        key = _letter_key(subscription, letter.sequence)
        await self._records.save([Change(key, msgspec.json.encode(letter), 0 if known is None else known[1])])
        return known is None

    async def find(self, subscription: str, sequence: int) -> DeadLetter | None:
        """Return the letter about a notification."""
        found = await self._find(subscription, sequence)
        return None if found is None else found[0]

    async def remove(self, subscription: str, sequence: int) -> bool:
        """Forget a letter; False if there is none."""
        found = await self._find(subscription, sequence)
        if found is None:
            return False
        (removed,) = await self._records.save([Change(_letter_key(subscription, sequence), b"", found[1])])
        return removed is not None

    async def all(self, subscription: str) -> list[DeadLetter]:
        """Return the letters of a subscription in order of sequences."""
        records = await self._records.load(f"dead.{subscription}.")
        letters = [msgspec.json.decode(each.value, type=DeadLetter) for each in records]
        return sorted(letters, key=lambda letter: letter.sequence)

    async def remove_all(self, subscription: str) -> None:
        """Forget the letters of a subscription."""
        records = await self._records.load(f"dead.{subscription}.")
        await self._records.save([Change(each.key, b"", each.revision) for each in records])

    async def _find(self, subscription: str, sequence: int) -> tuple[DeadLetter, int] | None:
        key = _letter_key(subscription, sequence)
        for record in await self._records.load(key):
            if record.key == key:
                return msgspec.json.decode(record.value, type=DeadLetter), record.revision
        return None


def _letter_key(subscription: str, sequence: int) -> str:
    return f"dead.{subscription}.{sequence}"
