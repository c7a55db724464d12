"""Who is calling, as a checked token says."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from aviso_server.config.settings import Roles
from aviso_server.model.timestamp import SECOND

__all__ = ["LEEWAY", "User", "has_role"]

LEEWAY = 60  # seconds that a token is still taken after it has expired, because clocks differ

_ANY_ROLE = "*"


class User(msgspec.Struct, frozen=True):
    """A caller whose credentials were accepted."""

    name: str
    realm: str | None  # without a realm no role counts
    roles: tuple[str, ...]
    attributes: Mapping[str, str]
    expires: int  # seconds since 1970, as the token says
    admin: bool = False

    @property
    def until(self) -> int:
        """When the token is not taken any more, in nanoseconds since 1970."""
        return (self.expires + LEEWAY) * SECOND


def has_role(user: User, roles: Roles) -> bool:
    """True if the user's realm is named and admits all, or one of the user's roles."""
    admitted = roles.get(user.realm) if user.realm is not None else None
    return admitted is not None and (_ANY_ROLE in admitted or not set(admitted).isdisjoint(user.roles))
