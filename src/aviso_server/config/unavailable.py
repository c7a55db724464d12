"""Features whose keys are read and checked, but which this version cannot switch on.

Making a feature available means deleting its line in `FEATURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aviso_server.config.settings import Settings
from aviso_server.config.tree import Findings

__all__ = ["FEATURES", "check_available"]

Keys = Callable[[Settings], Iterator[str]]


def _when(key: str, is_on: Callable[[Settings], bool]) -> Keys:
    def keys(settings: Settings) -> Iterator[str]:
        if is_on(settings):
            yield key

    return keys


FEATURES: dict[str, Keys] = {
    "the archive": _when("archive.enabled", lambda settings: settings.archive.enabled),
}
"""Each feature with the keys that ask for it."""


def check_available(settings: Settings, findings: Findings) -> None:
    """Refuse every key that asks for a feature this version does not have."""
    for feature, keys in FEATURES.items():
        for key in keys(settings):
            findings.refuse(key, f"{feature} is not available in this version", "leave it off")
