"""The page about the architecture names what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "aviso_server"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def names(text: str) -> set[str]:
    """The rooms (`log/`), modules (`log/base`) and files (`errors.py`) that a text names in backticks."""
    return set(re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]*(?:\.py)?|[a-z_]+\.py)`", text))


def is_there(name: str) -> bool:
    """Tell whether a name is a room or a module of ours, or a path from the root of the repository."""
    if name.endswith("/"):
        return (SOURCE / name).is_dir()
    return any(place.exists() for place in (SOURCE / f"{name}.py", SOURCE / name, ROOT / name))


@pytest.mark.parametrize("name", sorted(names(PAGE)))
def test_what_the_page_names_is_there(name: str) -> None:
    assert is_there(name), f"docs/architecture.md names {name}, which src/aviso_server does not have"


def test_the_page_names_every_room() -> None:
    ours = [path for path in SOURCE.iterdir() if not path.name.startswith("__") and path.name != "py.typed"]
    rooms = {path.name + "/" * path.is_dir() for path in ours}
    assert rooms - names(PAGE) == set()


def test_all_walks_name_their_modules() -> None:
    for title in ("How a publish travels", "How a replay travels", "How a delivery travels"):
        walk = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
        assert len(names(walk)) >= 10, f"'{title}' is not a walk through modules"


def test_a_module_that_is_gone_is_noticed() -> None:
    assert names("see `log/sqlite/express`, `gone/` and `gone.py`, not `make test` or `GET /ready`") == {
        "log/sqlite/express", "gone/", "gone.py",
    }  # fmt: skip
    assert not any(map(is_there, ("log/sqlite/express", "gone/", "gone.py")))
