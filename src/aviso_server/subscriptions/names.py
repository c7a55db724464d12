"""Names of subscriptions: unique for an owner, on a log that several servers share too."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from aviso_server.errors import LogError
from aviso_server.log.base import Change, Records
from aviso_server.model.times import SECOND

__all__ = ["NameTaken", "Names"]

_CLAIM = 60 * SECOND  # nanoseconds that somebody has to make the subscription whose name they have taken


class NameTaken(Exception):
    """The owner has one of that name."""


class Names:
    """The ids of subscriptions by owner and name."""

    def __init__(self, records: Records, clock: Callable[[], int]) -> None:
        self._records = records
        self._clock = clock
        self._ids: dict[str, dict[str, str]] = {}

    def of(self, owner: str) -> Mapping[str, str]:
        """Return the ids of an owner's subscriptions by name."""
        return self._ids.get(owner, {})

    def ids(self, owner: str | None, after: str = "") -> Iterator[str]:
        """Yield the ids of an owner in order of names; those of everybody without an owner.

        With `after`, the text `owner/name`, only those behind it, whether or not that one is still there.
        """
        first, _, last_name = after.rpartition("/")
        for key in sorted(self._ids) if owner is None else [owner]:
            if key >= first:
                mine = sorted(self.of(key).items())
                yield from [identity for name, identity in mine if key > first or name > last_name]

    def note(self, owner: str, name: str, identity: str) -> None:
        """Note who has a name."""
        self._ids.setdefault(owner, {})[name] = identity

    def drop(self, owner: str, name: str, identity: str) -> None:
        """Forget that a subscription has a name, if it does."""
        mine = self._ids.get(owner, {})
        if mine.get(name) == identity:
            del mine[name]
            if not mine:
                del self._ids[owner]

    async def take(self, owner: str, name: str, identity: str) -> None:
        """Take a name for a subscription; NameTaken if there is one of that name, on whatever server."""
        if self._ids.setdefault(owner, {}).setdefault(name, identity) != identity:
            raise NameTaken(name)
        if not self._records.shared:
            return
        try:
            key, now = _key(owner, name), self._clock()
            expected = 0
            for record in await self._records.load(key):
                other, _, taken = record.value.decode().partition(" ")
                if int(taken) > now - _CLAIM or await self._records.load(f"subscription.{other}"):
                    raise NameTaken(name)
                expected = record.revision  # whoever took it has not made the subscription, or has deleted it
            (revision,) = await self._records.save([Change(key, f"{identity} {now}".encode(), expected)])
            if revision is None:
                raise NameTaken(name)
        except BaseException:
            self.drop(owner, name, identity)
            raise

    async def free(self, owner: str, name: str, identity: str) -> None:
        """Give a name back."""
        self.drop(owner, name, identity)
        if self._records.shared:
            with suppress(LogError):  # the record is worth nothing without the subscription
                for record in await self._records.load(_key(owner, name)):
                    if record.value.startswith(f"{identity} ".encode()):
                        await self._records.save([Change(record.key, b"", record.revision)])


def _key(owner: str, name: str) -> str:
    """Return the key of the record that says who has a name."""
    return "name." + hashlib.blake2b(f"{owner}//{name}".encode(), digest_size=16).hexdigest()
