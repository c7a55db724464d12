"""What an acknowledgement of the broker is worth, and what makes it worth less than a user may think."""

from __future__ import annotations

from aviso_server.log.jetstream.options import BrokerOptions
from aviso_server.log.jetstream.streams import StreamInfo

__all__ = ["weaknesses", "weaknesses_of"]


def weaknesses(options: BrokerOptions) -> list[str]:
    """What our own settings make weaker."""
    found = []
    if options.storage_type == "memory":
        found.append("streams are kept in memory: notifications are gone when the brokers that hold them restart")
    if (options.replicas or 1) < 3:
        found.append(
            f"streams have {options.replicas or 1} replica(s): an acknowledged notification can be lost with one "
            "broker; on a cluster set notification_backend.jetstream.replicas to 3"
        )
        if options.storage_type == "file":
            found.append(
                "a broker writes to disk every two minutes unless its own jetstream.sync_interval says otherwise: with "
                "fewer than 3 replicas set it to 'always', or a power failure takes acknowledged notifications along"
            )
    if options.retention_policy != "limits":
        found.append(
            f"retention policy '{options.retention_policy}' removes notifications once they were delivered: "
            "history and several servers need 'limits'"
        )
    return found


def weaknesses_of(info: StreamInfo, options: BrokerOptions) -> list[str]:
    """What a stream that is there already makes weaker than the settings say."""
    found = []
    if info.in_memory and options.storage_type == "file":
        found.append(
            f"stream {info.name} is kept in memory on the broker, though storage_type is file: its notifications are "
            "gone when the brokers that hold them restart; a broker cannot move a stream, so make it anew"
        )
    if info.replicas < (options.replicas or 1):
        found.append(
            f"stream {info.name} has {info.replicas} replica(s) on the broker, though replicas is {options.replicas}: "
            "an acknowledged notification can be lost with one broker"
        )
    return found
