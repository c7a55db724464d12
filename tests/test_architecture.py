"""The shape of the code: who may import whom, what each module offers, and how long it may be."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import aviso_server
import pyspark_aviso

PACKAGE = Path(aviso_server.__file__).parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "web" not in path.relative_to(PACKAGE).parts)
DATA_SOURCE = sorted(Path(pyspark_aviso.__file__).parent.rglob("*.py"))
LONGEST = 900
# Names that each backend has a module of; any other name belongs to one module.
SHARED_NAMES = frozenset({"__init__", "log", "reader"})
USERS_OF_DATA_SOURCE = frozenset({"errors", "spark", "commands"})

# Room -> the rooms it may import from. Itself and `errors` are always allowed.
ALLOWED: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "model": frozenset(),
    "counters": frozenset(),
    "lockfile": frozenset(),
    "log": frozenset({"model", "counters", "lockfile"}),
    "lake": frozenset({"model", "lockfile"}),
    "insight": frozenset({"model", "lake"}),
    "spark": frozenset({"model", "lake", "insight", "lockfile"}),
    "store": frozenset({"model", "log", "counters"}),
    "delivery": frozenset({"model", "log", "store", "counters"}),
    "archive": frozenset({"model", "log", "store", "lake", "lockfile"}),
    "lateness": frozenset({"model", "log", "store", "lockfile"}),
    "subscriptions": frozenset({"model", "log", "store", "delivery", "lockfile"}),
    "config": frozenset({"model", "log"}),
    "diagnostics": frozenset({"model", "config"}),
    "http": frozenset(
        {
            "model",
            "log",
            "store",
            "delivery",
            "config",
            "diagnostics",
            "counters",
            "archive",
            "insight",
            "lateness",
            "subscriptions",
        }
    ),
    "server": frozenset(
        {
            "model",
            "log",
            "store",
            "delivery",
            "config",
            "diagnostics",
            "counters",
            "archive",
            "lateness",
            "http",
            "subscriptions",
        }
    ),
    "commands": frozenset({"model", "archive", "log", "delivery", "config", "server", "spark", "lake", "insight"}),
    "cli": frozenset({"commands", "config"}),
    "__main__": frozenset({"cli"}),
    "__init__": frozenset(),
}

# The model is pure, so that Spark workers and tests can use it anywhere: no loop, no files, no network, no threads.
IMPURE = frozenset(
    {
        *("asyncio", "concurrent", "multiprocessing", "signal", "subprocess", "threading"),
        *("fcntl", "io", "logging", "os", "pathlib", "shutil", "sqlite3", "tempfile"),
        *("http", "httpx", "nats", "requests", "selectors", "socket", "ssl", "urllib", "uvicorn", "uvloop"),
        "pyspark",
    }
)

PURE = frozenset({"urllib.parse"})  # works on texts


def imports(source: str) -> Iterator[str]:
    """The dotted names a module imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield "." * node.level + (node.module or "")
            elif node.module == "aviso_server":
                yield from (f"aviso_server.{alias.name}" for alias in node.names)
            elif node.module:
                yield node.module


def broken_arrows(room: str, source: str) -> list[str]:
    """The imports of our own code that this room must not make."""
    broken = []
    for name in imports(source):
        if name.startswith("."):
            broken.append(f"{name} is relative: write the whole name")
        if name.split(".")[0] == "pyspark_aviso" and room not in USERS_OF_DATA_SOURCE:
            broken.append(f"{room} must not import {name}")
        if not name.startswith("aviso_server."):
            continue
        target = name.split(".")[1]
        if target == "__version__" and room != "model":
            continue
        if target not in {room, "errors"} | ALLOWED[room]:
            broken.append(f"{room} must not import {name}")
        if room == "config" and target == "log" and name != "aviso_server.log.base":
            broken.append(f"config may know aviso_server.log.base, but not {name}")
    return broken


def impurities(source: str) -> list[str]:
    """What a module of the model does that only code with side effects needs."""
    found = [f"imports {name}" for name in imports(source) if name.split(".")[0] in IMPURE and name not in PURE]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AsyncFunctionDef):
            found.append(f"line {node.lineno}: async def {node.name}")
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"open", "print", "input"}
        ):
            found.append(f"line {node.lineno}: calls {node.func.id}")
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def dotted(path: Path) -> str:
    root = PACKAGE.parent if path.is_relative_to(PACKAGE) else Path(pyspark_aviso.__file__).parents[1]
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


each_module = pytest.mark.parametrize("path", MODULES, ids=dotted)
each_module_of_both = pytest.mark.parametrize("path", [*MODULES, *DATA_SOURCE], ids=dotted)


def test_every_room_has_its_arrows_written_down() -> None:
    assert {room_of(path) for path in MODULES} <= set(ALLOWED)


def test_arrows_form_no_circle() -> None:
    left = dict(ALLOWED)
    while left:
        free = [room for room, needs in left.items() if not needs & set(left)]
        assert free, f"these rooms import each other in a circle: {sorted(left)}"
        for room in free:
            del left[room]


def test_a_name_means_one_module() -> None:
    names = Counter(path.stem for path in MODULES)
    assert {name for name, count in names.items() if count > 1} == SHARED_NAMES


@each_module
def test_imports_follow_the_arrows(path: Path) -> None:
    assert broken_arrows(room_of(path), path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", [path for path in MODULES if room_of(path) == "model"], ids=dotted)
def test_model_is_pure(path: Path) -> None:
    assert impurities(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("module", "large"),
    [
        ("aviso_server.cli", {"deltalake", "pandas", "pyarrow", "pyspark"}),
        ("aviso_server.spark.load.loading", {"deltalake", "pandas", "pyspark"}),
    ],
)
def test_what_is_large_is_imported_by_those_who_need_it(module: str, large: set[str]) -> None:
    words = f"import sys, {module}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert not large & set(found.stdout.split())


@pytest.mark.parametrize("path", DATA_SOURCE, ids=dotted)
def test_data_source_needs_nothing_but_what_it_brings(path: Path) -> None:
    needed = {name.split(".")[0] for name in imports(path.read_text(encoding="utf-8"))} - sys.stdlib_module_names
    assert needed <= {"pyspark_aviso", "httpx", "pyarrow", "pyspark"}


@each_module_of_both
def test_module_is_short_enough_to_be_one_room(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST, f"{dotted(path)} has {lines} lines; split it by what it does"


@each_module_of_both
def test_module_promises_what_it_offers(path: Path) -> None:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    statements = [node for node in body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    module = importlib.import_module(dotted(path))
    if not statements and not hasattr(module, "__all__"):
        return  # an empty __init__.py only says that its folder is a package
    promised = module.__all__
    assert len(set(promised)) == len(promised), "a name stands twice in __all__"
    assert [name for name in promised if not hasattr(module, name)] == [], "__all__ names things that are not there"


@pytest.mark.parametrize(
    ("room", "source", "complaint"),
    [
        ("model", "import aviso_server.log.base", "model must not import aviso_server.log.base"),
        (
            "model",
            "def f():\n    from aviso_server.config import settings",
            "model must not import aviso_server.config",
        ),
        ("model", "from aviso_server import __version__", "model must not import aviso_server.__version__"),
        ("log", "from aviso_server.http import server", "log must not import aviso_server.http"),
        ("log", "from aviso_server import delivery", "log must not import aviso_server.delivery"),
        ("delivery", "import aviso_server.http", "delivery must not import aviso_server.http"),
        ("config", "from aviso_server.log.sqlite.log import SqliteLog", "config may know aviso_server.log.base"),
        ("http", "from aviso_server.server import process", "http must not import aviso_server.server"),
        ("http", "import aviso_server.spark.session", "http must not import aviso_server.spark.session"),
        ("archive", "import aviso_server.spark.session", "archive must not import aviso_server.spark.session"),
        ("spark", "from aviso_server.log.base import Log", "spark must not import aviso_server.log.base"),
        ("delivery", "import pyspark_aviso.client", "delivery must not import pyspark_aviso.client"),
        ("log", "from . import base", ". is relative"),
    ],
)
def test_guard_sees_a_wrong_arrow(room: str, source: str, complaint: str) -> None:
    found = broken_arrows(room, source)
    assert len(found) == 1
    assert found[0].startswith(complaint)


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("model", "from aviso_server.errors import InvalidRequest\nfrom aviso_server.model.topic import encode"),
        ("log", "import sqlite3\nfrom aviso_server.model.notification import Box"),
        ("config", "from aviso_server.log.base import StoragePolicy"),
        ("http", "from aviso_server import __version__\nfrom aviso_server.delivery import hub"),
        ("commands", "from aviso_server.server.lifecycle import run"),
    ],
)
def test_guard_lets_a_right_arrow_pass(room: str, source: str) -> None:
    assert broken_arrows(room, source) == []


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio",
        "import sqlite3",
        "from socket import socket",
        "def f():\n    import pyspark.sql",
        "open('x')",
        "async def f(): ...",
    ],
)
def test_guard_sees_an_impure_model(source: str) -> None:
    assert len(impurities(source)) == 1
