"""Files that are replaced as a whole: what was there, or what is new, and nothing beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aviso_server.lockfile import force_to_disk, move_into_place, replace_file


def test_content_is_replaced_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "work" / "deep" / "state.json"
    for content in (b"first", b"", b"second, and longer"):
        replace_file(file, content)
        assert file.read_bytes() == content
        assert list(file.parent.iterdir()) == [file]


def test_who_has_it_open_goes_on_reading_the_old_content(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    replace_file(file, b"old")
    with file.open("rb") as reading:
        replace_file(file, b"new")
        assert reading.read() == b"old"
    assert file.read_bytes() == b"new"


def test_what_a_crash_has_left_is_in_nobodys_way(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    (tmp_path / "state.json.new").write_bytes(b"half of something that is longer")
    replace_file(file, b"new")
    assert file.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [file]


def test_where_nothing_can_be_written_the_old_content_stays(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    replace_file(file, b"old")
    (tmp_path / "state.json.new").mkdir()
    with pytest.raises(OSError, match=r"state\.json\.new"):
        replace_file(file, b"new")
    assert file.read_bytes() == b"old"


def test_the_draft_is_on_disk_before_it_has_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft, file = tmp_path / "draft", tmp_path / "file"
    draft.write_bytes(b"content")
    forced: list[tuple[int, bool]] = []
    fsync = os.fsync

    def watched(handle: int) -> None:
        forced.append((os.fstat(handle).st_ino, file.exists()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    content, folder = draft.stat().st_ino, tmp_path.stat().st_ino
    move_into_place(draft, file)
    assert forced == [(content, False), (folder, True)]


def test_what_is_not_there_cannot_be_forced(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        force_to_disk(tmp_path / "missing")
