"""Which Chromium the tests use."""

from __future__ import annotations

import os
import shutil

__all__ = ["MISSING", "find_chromium"]

MISSING = "Chromium is missing: `make browser` installs it as root, or set CHROMIUM to the path of one."
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    """The path of a Chromium on this machine; the environment variable CHROMIUM wins."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, _NAMES)), None)
