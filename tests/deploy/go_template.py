"""Enough of Go templates to render our chart where Helm is not installed."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.deploy.helm_functions import FUNCTIONS, Failed, text

__all__ = ["Chart", "Failed"]

_ACTION = re.compile(r"\{\{(-)?\s*(.*?)\s*(-)?\}\}", re.DOTALL)
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|\(|\)|\||[^\s()|]+')
_VARIABLE = re.compile(r"(\$\w+)\s*(:?=)\s*(.*)", re.DOTALL)


class Block(NamedTuple):
    """An action, and for those that have an end what lies before it and after its `else`."""

    word: str
    expression: str
    inner: list[Any]
    other: list[Any]


class Here(NamedTuple):
    """What names mean at a place: the dot, and variables of which `$` is one."""

    dot: Any
    variables: ChainMap[str, Any]

    def inside(self, dot: Any) -> Here:
        """The same within a block."""
        return Here(dot, self.variables.new_child())


class Chart:
    """A chart that can be rendered with values."""

    def __init__(self, directory: Path) -> None:
        self.values: dict[str, Any] = yaml.safe_load((directory / "values.yaml").read_text())
        about = yaml.safe_load((directory / "Chart.yaml").read_text())
        self._chart = {name[0].upper() + name[1:]: value for name, value in about.items()}
        self._defined: dict[str, list[Any]] = {}
        self._templates: dict[str, list[Any]] = {}
        for path in sorted((directory / "templates").iterdir()):
            nodes, rest = self._block(list(_pieces(path.read_text())))
            if rest:
                raise Failed(f"'{rest[0]}' without a beginning in {path.name}")
            self._templates[path.name] = nodes

    def render(self, values: dict[str, Any], release: str = "test") -> dict[str, str]:
        """Every template that leaves something, with the values laid over the chart's own."""
        root = {
            "Values": _over(values, self.values),
            "Chart": self._chart,
            "Release": {"Name": release, "Namespace": "space", "Service": "Helm"},
        }
        rendered = {name: self._all(nodes, root) for name, nodes in self._templates.items() if name[0] != "_"}
        return {name: content for name, content in rendered.items() if content.strip()}

    def _block(self, pieces: list[tuple[str, str]]) -> tuple[list[Any], list[tuple[str, str]]]:
        nodes: list[Any] = []
        while pieces:
            kind, content = pieces[0]
            word, _, rest = content.partition(" ") if kind == "action" else ("", "", "")
            if word in ("end", "else"):
                return nodes, pieces
            pieces = pieces[1:]
            if word in ("if", "with", "range", "define"):
                inner, other, pieces = self._branches(pieces, content)
                if word == "define":
                    self._defined[rest.strip('"')] = inner
                else:
                    nodes.append(Block(word, rest, inner, other))
            elif kind == "text":
                nodes.append(content)
            elif not content.startswith("/*"):
                nodes.append(Block("print", content, [], []))
        return nodes, pieces

    def _branches(
        self, pieces: list[tuple[str, str]], opening: str
    ) -> tuple[list[Any], list[Any], list[tuple[str, str]]]:
        inner, pieces = self._block(pieces)
        if not pieces:
            raise Failed(f"'{opening}' has no end")
        word, _, rest = pieces[0][1].partition(" ")
        if word == "end":
            return inner, [], pieces[1:]
        if rest:  # `else if …` shares its end
            first, second, pieces = self._branches(pieces[1:], opening)
            return inner, [Block("if", rest.partition(" ")[2], first, second)], pieces
        other, pieces = self._block(pieces[1:])
        if not pieces or pieces[0][1] != "end":
            raise Failed(f"'{opening}' has no end")
        return inner, other, pieces[1:]

    def _all(self, nodes: list[Any], root: Any) -> str:
        return self._run(nodes, Here(root, ChainMap({"$": root})))

    def _run(self, nodes: list[Any], here: Here) -> str:
        return "".join(node if isinstance(node, str) else self._node(node, here) for node in nodes)

    def _node(self, node: Block, here: Here) -> str:
        assigned = _VARIABLE.fullmatch(node.expression)
        if assigned is not None and node.word == "print":
            self._assign(assigned[1], assigned[2], self._value(_WORD.findall(assigned[3]), here), here)
            return ""
        value = self._value(_WORD.findall(node.expression), here)
        if node.word == "print":
            return text(value)
        if node.word == "range":
            return "".join(self._run(node.inner, here.inside(item)) for item in value or [])
        dot = value if node.word == "with" and value else here.dot
        return self._run(node.inner if value else node.other, here.inside(dot))

    def _assign(self, name: str, sign: str, value: Any, here: Here) -> None:
        if sign == ":=":
            here.variables.maps[0][name] = value
            return
        for level in here.variables.maps:
            if name in level:
                level[name] = value
                return
        raise Failed(f"{name} has not been declared")

    def _value(self, words: list[str], here: Here) -> Any:
        stages: list[list[str]] = [[]]
        depth = 0
        for word in words:
            depth += (word == "(") - (word == ")")
            if word == "|" and depth == 0:
                stages.append([])
            else:
                stages[-1].append(word)
        value = self._call(stages[0], here, [])
        for stage in stages[1:]:
            value = self._call(stage, here, [value])
        return value

    def _call(self, words: list[str], here: Here, piped: list[Any]) -> Any:
        if words[0] == "include":
            name, dot = self._operands(words[1:], here)
            return self._all(self._defined[name], dot)
        if words[0] in FUNCTIONS:
            return FUNCTIONS[words[0]](*self._operands(words[1:], here), *piped)
        values = [*self._operands(words, here), *piped]
        if len(values) != 1:
            raise Failed(f"unknown function in '{' '.join(words)}'")
        return values[0]

    def _operands(self, words: list[str], here: Here) -> Iterator[Any]:
        place = 0
        while place < len(words):
            word = words[place]
            if word == "(":
                depth, end = 1, place + 1
                while depth:
                    depth += (words[end] == "(") - (words[end] == ")")
                    end += 1
                yield self._value(words[place + 1 : end - 1], here)
                place = end
                continue
            place += 1
            if word.startswith('"'):
                yield word[1:-1]
            elif re.fullmatch(r"-?\d+", word):
                yield int(word)
            elif word.startswith("$"):
                name, _, path = word.partition(".")
                if name not in here.variables:
                    raise Failed(f"{name} has not been declared")
                yield _find(here.variables[name], path)
            elif word.startswith("."):
                yield _find(here.dot, word)
            elif word in FUNCTIONS:
                yield FUNCTIONS[word]()  # `list` and `dict` without anything
            else:
                raise Failed(f"'{word}' is not known")


def _pieces(source: str) -> Iterator[tuple[str, str]]:
    """Texts and actions in turn, with the blanks removed that an action's dashes ask for."""
    place, trim = 0, False
    for match in _ACTION.finditer(source):
        before = source[place : match.start()]
        before = before.lstrip() if trim else before
        yield "text", before.rstrip() if match[1] else before
        yield "action", match[2]
        place, trim = match.end(), bool(match[3])
    yield "text", source[place:].lstrip() if trim else source[place:]


def _find(value: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        if not isinstance(value, dict):
            raise Failed(f"nothing at '{path}'")
        value = value.get(name)
    return value


def _over(new: Any, old: Any) -> Any:
    """Values as Helm lays them over those of the chart: what is null is taken away."""
    if isinstance(new, dict) and isinstance(old, dict):
        merged = {**old, **{name: _over(value, old.get(name)) for name, value in new.items()}}
        return {name: value for name, value in merged.items() if value is not None or name not in new}
    return new
