"""What an operator can say about the broker and the streams on it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

__all__ = ["BrokerOptions"]


class BrokerOptions(msgspec.Struct, frozen=True):
    """Where the broker is, how to reach it, and what new streams look like; None leaves it to the broker."""

    nats_url: str = "nats://localhost:4222"  # several, separated by commas, for a cluster
    token: str | None = None
    credentials_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    timeout_seconds: float = 30
    retry_attempts: int = 3
    max_messages: int | None = None
    max_bytes: int | None = None
    retention_time: int | None = None  # nanoseconds
    storage_type: Literal["file", "memory"] = "file"
    replicas: int | None = None
    retention_policy: Literal["limits", "interest", "workqueue"] = "limits"
    discard_policy: Literal["old", "new"] = "old"
    enable_auto_reconnect: bool = True
    max_reconnect_attempts: int = 5  # 0: without limit
    reconnect_delay_ms: int = 2000
    publish_retry_attempts: int = 5
    publish_retry_base_delay_ms: int = 150
