"""Who wants to hear of new notifications, stream by stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aviso_server.log.base import Follower, Lost, Subscription
from aviso_server.model.notification import Notification

__all__ = ["Followers"]


class Followers:
    """The followers of all streams of one log. Used in the event loop's thread only."""

    def __init__(self) -> None:
        self._holds: dict[str, tuple[_Hold, ...]] = {}

    def add(self, stream: str, follower: Follower, lost: Lost | None = None) -> Subscription:
        """From now on `tell` hands the stream's notifications to this follower too."""
        hold = _Hold(self, stream, follower, lost)
        self._holds[stream] = (*self._holds.get(stream, ()), hold)
        return hold

    def tell(self, stream: str, notifications: Sequence[Notification]) -> None:
        """Call every follower of the stream; one that fails is reported and does not harm the others."""
        for hold in self._holds.get(stream, ()):
            if not hold.active:
                continue
            try:
                hold.follower(notifications)
            except Exception as error:  # a follower's fault must not reach publishers
                _report(stream, error)

    def lose(self, stream: str, reason: str) -> None:
        """Tell every follower of the stream that it may have missed something, and forget them all."""
        for hold in self._holds.pop(stream, ()):
            if not hold.active:
                continue
            hold.active = False
            try:
                if hold.lost is not None:
                    hold.lost(reason)
            except Exception as error:  # the others must hear of it too
                _report(stream, error)

    def any(self, stream: str) -> bool:
        """True if somebody follows the stream."""
        return stream in self._holds

    def remove(self, hold: _Hold) -> None:
        """Forget one hold; unknown ones are fine."""
        left = tuple(other for other in self._holds.get(hold.stream, ()) if other is not hold)
        if left:
            self._holds[hold.stream] = left
        else:
            self._holds.pop(hold.stream, None)


def _report(stream: str, error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": f"a follower of stream '{stream}' failed", "exception": error}
    )


class _Hold:
    __slots__ = ("_followers", "active", "follower", "lost", "stream")

    def __init__(self, followers: Followers, stream: str, follower: Follower, lost: Lost | None) -> None:
        self._followers = followers
        self.stream = stream
        self.follower = follower
        self.lost = lost
        self.active = True

    def cancel(self) -> None:
        """Stop: the follower is not called again."""
        self.active = False
        self._followers.remove(self)
