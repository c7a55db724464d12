"""Storage policies on a broker: what becomes a limit of the stream, and what waits for the archive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from aviso_server.log.base import StoragePolicy
from aviso_server.log.jetstream.options import BrokerOptions

__all__ = ["broker_part", "is_limited", "keeps_latest_only", "limits_of", "policy_of", "waiting_part"]


def policy_of(given: StoragePolicy, options: BrokerOptions) -> StoragePolicy:
    """The policy of a stream: the backend's settings hold where its event type has none."""
    return StoragePolicy(
        retention_ns=_first(given.retention_ns, options.retention_time),
        max_messages=_first(given.max_messages, options.max_messages),
        max_bytes=_first(given.max_bytes, options.max_bytes),
        allow_duplicates=bool(given.allow_duplicates),
        compression=given.compression,
    )


def waiting_part(policy: StoragePolicy, options: BrokerOptions) -> StoragePolicy:
    """What of a policy removes notifications, and so has to wait for the archive if there is one.

    Under the discard policy `new` a number or a size removes nothing: it keeps new notifications out.
    """
    if options.discard_policy == "old":
        return policy
    return msgspec.structs.replace(policy, max_messages=None, max_bytes=None)


def broker_part(policy: StoragePolicy, options: BrokerOptions) -> StoragePolicy:
    """The rest of a policy, which the broker may see to itself."""
    if options.discard_policy == "old":
        return StoragePolicy(allow_duplicates=True, compression=policy.compression)
    return msgspec.structs.replace(policy, retention_ns=None, allow_duplicates=True)


def limits_of(policy: StoragePolicy) -> dict[str, int]:
    """A policy as the limits of a stream."""
    return {
        "max_msgs_per_subject": -1 if policy.allow_duplicates else 1,
        "max_msgs": -1 if policy.max_messages is None else policy.max_messages,
        "max_bytes": -1 if policy.max_bytes is None else policy.max_bytes,
        "max_age": policy.retention_ns or 0,
    }


def keeps_latest_only(config: Mapping[str, Any]) -> bool:
    """True if the broker removes all but the newest of each subject."""
    return bool(config.get("max_msgs_per_subject", -1) > 0)


def is_limited(config: Mapping[str, Any]) -> bool:
    """True if the broker keeps to a number, a size or an age."""
    return bool(max(config.get("max_msgs", -1), config.get("max_bytes", -1), config.get("max_age", 0)) > 0)


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
