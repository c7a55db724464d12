"""The console's files: they find each other, name no other host, read no text as HTML and agree with the model."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

import aviso_server
from aviso_server.model.fields import FIELD_TYPES

WEB = Path(aviso_server.__file__).parent / "web"
CONSOLE = WEB / "console"
VENDOR = WEB / "vendor"
MODULES = sorted([*CONSOLE.rglob("*.js"), WEB / "home.js"])
STYLES = sorted(CONSOLE.rglob("*.css"))
LONGEST = 400

each_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(WEB).as_posix())
each_style = pytest.mark.parametrize("path", STYLES, ids=lambda path: path.name)


def imported(path: Path) -> list[tuple[list[str], Path]]:
    """The names that a module imports, and from which files."""
    found = re.findall(r"^import \{([^}]*)\} from \"([^\"]+)\";", path.read_text(encoding="utf-8"), re.MULTILINE)
    return [
        ([name.strip() for name in names.split(",") if name.strip()], path.parent / place) for names, place in found
    ]


def exported(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    plain = re.findall(r"^export (?:async )?(?:function\*?|class|const|let) (\w+)", text, re.MULTILINE)
    packed = re.findall(r"export ?\{([^}]*)\}", text)
    return {
        *plain,
        *[part.split(" as ")[-1].strip() for parts in packed for part in parts.split(",")],
        *generators(text),
    }


def generators(text: str) -> list[str]:
    return re.findall(r"^export async function\* (\w+)", text, re.MULTILINE)


@each_module
def test_module_imports_what_is_there(path: Path) -> None:
    for names, place in imported(path):
        assert place.is_file(), f"{place} is not there"
        assert set(names) <= exported(place)


@each_module
def test_module_uses_what_it_imports(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    body = re.sub(r"^import .*$", "", text, flags=re.MULTILINE)
    for names, _ in imported(path):
        assert [name for name in names if not re.search(rf"\b{name}\b", body)] == []


def test_every_module_is_used() -> None:
    reached = {CONSOLE / "main.js", WEB / "home.js"}
    waiting = list(reached)
    while waiting:
        for _, place in imported(waiting.pop()):
            if (known := place.resolve()) not in {each.resolve() for each in reached}:
                reached.add(known)
                waiting.append(known)
    assert {path.resolve() for path in MODULES} <= {path.resolve() for path in reached}


@each_module
def test_module_reads_no_text_as_html_or_code(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text) is None
    assert re.search(r"setAttribute\(\"style\"|[{ ]style: ", text) is None, "the policy allows no style attributes"


@each_module
def test_module_says_what_it_is_for_and_is_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("// ")
    assert len(lines) <= LONGEST


@pytest.mark.parametrize("path", [*MODULES, *STYLES], ids=lambda path: path.name)
def test_file_names_no_other_host(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"(?:https?:)?//[a-z0-9-]+\.[^\s\"']+", text) == []
    assert re.search(r"localStorage|sessionStorage|indexedDB|document\.cookie", text) is None, (
        "tokens live in memory only"
    )


@each_style
def test_style_sheet_loads_only_files_that_are_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "@import" not in text
    for load in re.findall(r"url\(\"([^\"]+)\"\)", text):
        assert (path.parent / load).is_file()


def test_operators_are_those_of_the_model() -> None:
    text = (CONSOLE / "controls" / "operators.js").read_text(encoding="utf-8")
    found = re.search(r"OPERATORS = (\{.*?\});", text, re.DOTALL)
    assert found is not None
    expected = {name: list(kind.operators) for name, kind in FIELD_TYPES.items() if kind.operators}
    assert json.loads(found[1]) == expected
    wildcards = re.search(r"WILDCARDS = (\[.*?\]);", text)
    assert wildcards is not None
    free = {name for name, kind in FIELD_TYPES.items() if kind.wildcard and not kind.operators}
    assert set(json.loads(wildcards[1])) == free


def test_every_field_type_has_a_control() -> None:
    text = (CONSOLE / "form.js").read_text(encoding="utf-8")
    found = re.search(r"const CONTROLS = \{(.*?)\n\};", text, re.DOTALL)
    assert found is not None
    assert set(re.findall(r"^  (\w+):", found[1], re.MULTILINE)) == set(FIELD_TYPES)


def test_vendored_files_are_what_the_note_says() -> None:
    note = (VENDOR / "README.md").read_text(encoding="utf-8")
    stated = {name: digest for digest, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", note, re.MULTILINE)}
    files = {path.name for path in VENDOR.iterdir() if path.is_file()} - {"README.md"}
    assert set(stated) == files
    for name, digest in stated.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest


def test_vendored_files_come_with_their_licences() -> None:
    licences = {path.stem: path.read_text(encoding="utf-8") for path in (VENDOR / "licences").iterdir()}
    packages = {"d3-array", "d3-geo", "internmap", "topojson-client", "world-atlas", "inter", "jetbrains-mono"}
    assert set(licences) == packages
    assert all("Copyright" in text for text in licences.values())
