"""Who wants to hear of new notifications, stream by stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aviso_server.log.base import Follower, Subscription
from aviso_server.model.notification import Notification

__all__ = ["Followers"]


class Followers:
    """The followers of all streams of one log. Used in the event loop's thread only."""

    def __init__(self) -> None:
        self._holds: dict[str, tuple[_Hold, ...]] = {}

    def add(self, stream: str, follower: Follower) -> Subscription:
        """From now on `tell` hands the stream's notifications to this follower too."""
        hold = _Hold(self, stream, follower)
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
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"a follower of stream '{stream}' failed", "exception": error}
                )

    def remove(self, hold: _Hold) -> None:
        """Forget one hold; unknown ones are fine."""
        left = tuple(other for other in self._holds.get(hold.stream, ()) if other is not hold)
        if left:
            self._holds[hold.stream] = left
        else:
            self._holds.pop(hold.stream, None)


class _Hold:
    __slots__ = ("_followers", "active", "follower", "stream")

    def __init__(self, followers: Followers, stream: str, follower: Follower) -> None:
        self._followers = followers
        self.stream = stream
        self.follower = follower
        self.active = True

    def cancel(self) -> None:
        """Stop: the follower is not called again."""
        self.active = False
        self._followers.remove(self)
