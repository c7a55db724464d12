"""What was learned about an event type, as it lies in a file beside the archive."""

from __future__ import annotations

import msgspec

from aviso_server.model.lateness.rhythm import Rhythm
from aviso_server.model.lateness.watched import Watched

__all__ = ["FOLDER", "Learned", "decode", "encode", "file_name"]

FOLDER = "_lateness"
"""The folder in the archive where the files lie; names that begin with `_` are never read as notifications."""


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """The rhythms of an event type."""

    event_type: str
    learned_at: int  # seconds since 1970
    until: int  # how far the archive reached then, in seconds since 1970; 0 if it had nothing
    by: tuple[str, ...]
    date: str | None = None
    rhythms: tuple[Rhythm, ...] = ()
    irregular: int = 0  # combinations that come often enough, but without a rhythm
    left_out: int = 0  # combinations beyond max_combinations: those that came on the fewest days

    def fits(self, watched: Watched) -> bool:
        """True if it was learned for the fields that the configuration names now."""
        return (self.event_type, self.by, self.date) == (watched.event_type, watched.by, watched.date)


def file_name(event_type: str) -> str:
    """The name of the file of an event type."""
    return "".join(_safe(character) for character in event_type) + ".json"


def encode(learned: Learned) -> bytes:
    """The content of the file."""
    return msgspec.json.format(msgspec.json.encode(learned), indent=1)


def decode(content: bytes) -> Learned:
    """What a file says; ValueError if it is none of ours."""
    return _decoder.decode(content)


def _safe(character: str) -> str:
    if character.isascii() and (character.isalnum() or character in "-_"):
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode())


_decoder = msgspec.json.Decoder(Learned)
