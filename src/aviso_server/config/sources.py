"""Which files and variables make up the configuration, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from aviso_server.config.environment import CONFIG_FILE, is_unicode, read_environment
from aviso_server.config.tree import Node
from aviso_server.config.yaml_file import read_yaml
from aviso_server.errors import Problem

__all__ = ["gather"]

_COMMAND_LINE = "command line"
_FILE = "the path of a YAML file"
_FOLDER = "is a folder, not a file"


def gather(
    environ: Mapping[str, str], file: Path | None, given: Mapping[str, str] | None = None
) -> tuple[Node, list[Problem]]:
    """The merged tree of all sources, the environment and then what is `given` on top, and what is wrong with them."""
    files, problems = _files(environ, file)
    root = Node({}, "")
    for path in files:
        tree, found = read_yaml(path)
        root = tree.over(root)
        problems += found
    variables, found = read_environment(environ)
    root = variables.over(root)
    for key, value in (given or {}).items():
        root = _nested(key, value).over(root)
    return root, problems + found


def _nested(key: str, value: str) -> Node:
    node = Node(value, _COMMAND_LINE, value)
    for name in reversed(key.split(".")):
        node = Node({name: node}, _COMMAND_LINE)
    return node


def _files(environ: Mapping[str, str], file: Path | None) -> tuple[list[Path], list[Problem]]:
    if file is not None:
        return _only(file, "")
    named = environ.get(CONFIG_FILE)
    if named is None:
        # a folder is taken for a file and refused: leaving it out would start a server with other settings
        return _usable([path for path in _usual(environ) if path.is_file() or path.is_dir()])
    if not is_unicode(named):
        return [], [Problem("configuration", "the path is not Unicode text", _FILE, CONFIG_FILE)]
    if not named.strip():
        return [], [Problem("configuration", "the path is blank", f"{_FILE}, or unset", CONFIG_FILE)]
    return _only(Path(named), CONFIG_FILE)


def _only(path: Path, source: str) -> tuple[list[Path], list[Problem]]:
    if path.is_file():
        return [path], []
    reason = _FOLDER if path.is_dir() else "is not a file" if path.exists() else "there is no such file"
    return [], [Problem(str(path), reason, _FILE, source)]


def _usable(paths: list[Path]) -> tuple[list[Path], list[Problem]]:
    folders = [path for path in paths if path.is_dir()]
    return [path for path in paths if path not in folders], [Problem(str(path), _FOLDER, _FILE) for path in folders]


def _usual(environ: Mapping[str, str]) -> list[Path]:
    usual = [Path("configuration/config.yaml"), Path("/etc/aviso_server/config.yaml")]
    home = environ.get("HOME")
    return [*usual, Path(home) / ".aviso_server" / "config.yaml"] if home else usual
