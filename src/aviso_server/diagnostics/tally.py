"""How many log records were held back or lost; logging belongs to the process, and so do these counts."""

from __future__ import annotations

__all__ = ["RECORDS", "Records"]


class Records:
    """Counts since the start of the process."""

    def __init__(self) -> None:
        self.suppressed = 0  # too many of the same kind
        self.not_exported = 0  # the collector was too slow
        self.failed_exports = 0


RECORDS = Records()
"""The counts of this process."""
