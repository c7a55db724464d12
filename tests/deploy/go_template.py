"""Enough of Go templates and Helm's functions to render our chart where Helm is not installed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

__all__ = ["Chart", "Failed"]

_ACTION = re.compile(r"\{\{(-)?\s*(.*?)\s*(-)?\}\}", re.DOTALL)
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|\(|\)|\||[^\s()|]+')


class Failed(Exception):
    """The chart refuses these values, or the template is wrong."""


class Chart:
    """A chart that can be rendered with values."""

    def __init__(self, directory: Path) -> None:
        self.values: dict[str, Any] = yaml.safe_load((directory / "values.yaml").read_text())
        about = yaml.safe_load((directory / "Chart.yaml").read_text())
        self._chart = {name[0].upper() + name[1:]: value for name, value in about.items()}
        self._defined: dict[str, list[Any]] = {}
        self._templates: dict[str, list[Any]] = {}
        for path in sorted((directory / "templates").iterdir()):
            self._templates[path.name] = self._parse(path.read_text())

    def render(self, values: dict[str, Any]) -> dict[str, str]:
        """Every template that leaves something, with the values laid over the chart's own."""
        root = {
            "Values": _over(values, self.values),
            "Chart": self._chart,
            "Release": {"Name": "test", "Namespace": "space", "Service": "Helm"},
        }
        rendered = {
            name: self._run(nodes, root, root) for name, nodes in self._templates.items() if not name.startswith("_")
        }
        return {name: text for name, text in rendered.items() if text.strip()}

    def _parse(self, text: str) -> list[Any]:
        nodes, rest = self._block(list(_pieces(text)))
        if rest:
            raise Failed(f"'{rest[0]}' without a beginning")
        return nodes

    def _block(self, pieces: list[tuple[str, str]]) -> tuple[list[Any], list[tuple[str, str]]]:
        nodes: list[Any] = []
        while pieces:
            kind, content = pieces[0]
            word = content.split(maxsplit=1)[0] if kind == "action" and content else ""
            if word in ("end", "else"):
                return nodes, pieces
            pieces = pieces[1:]
            if word in ("if", "with", "range", "define"):
                inner, pieces = self._block(pieces)
                other: list[Any] = []
                if pieces and pieces[0][1] == "else":
                    other, pieces = self._block(pieces[1:])
                if not pieces or pieces[0][1] != "end":
                    raise Failed(f"'{content}' has no end")
                pieces = pieces[1:]
                if word == "define":
                    self._defined[content.split('"')[1]] = inner
                else:
                    nodes.append((word, content.split(maxsplit=1)[1], inner, other))
            elif kind == "text":
                nodes.append(content)
            elif not content.startswith("/*"):
                nodes.append(("print", content, [], []))
        return nodes, pieces

    def _run(self, nodes: list[Any], dot: Any, root: Any) -> str:
        out = ""
        for node in nodes:
            if isinstance(node, str):
                out += node
                continue
            word, expression, inner, other = node
            value = self._value(_WORD.findall(expression), dot, root)
            if word == "print":
                out += "" if value is None else _text(value)
            elif word == "range":
                out += "".join(self._run(inner, item, root) for item in value or [])
            else:
                chosen = inner if value else other
                out += self._run(chosen, value if word == "with" and value else dot, root)
        return out

    def _value(self, words: list[str], dot: Any, root: Any) -> Any:
        stages: list[list[str]] = [[]]
        depth = 0
        for word in words:
            depth += (word == "(") - (word == ")")
            if word == "|" and depth == 0:
                stages.append([])
            else:
                stages[-1].append(word)
        value = self._call(stages[0], dot, root, [])
        for stage in stages[1:]:
            value = self._call(stage, dot, root, [value])
        return value

    def _call(self, words: list[str], dot: Any, root: Any, piped: list[Any]) -> Any:
        arguments = list(self._operands(words, dot, root)) + piped
        if words and words[0] in self._functions(root):
            return self._functions(root)[words[0]](*arguments[1:])
        if len(arguments) != 1:
            raise Failed(f"unknown function in '{' '.join(words)}'")
        return arguments[0]

    def _operands(self, words: list[str], dot: Any, root: Any) -> Iterator[Any]:
        place = 0
        while place < len(words):
            word = words[place]
            if word == "(":
                depth, end = 1, place + 1
                while depth:
                    depth += (words[end] == "(") - (words[end] == ")")
                    end += 1
                yield self._value(words[place + 1 : end - 1], dot, root)
                place = end
                continue
            place += 1
            if word.startswith('"'):
                yield word[1:-1]
            elif re.fullmatch(r"-?\d+", word):
                yield int(word)
            elif word.startswith((".", "$")):
                yield _find(root if word.startswith("$") else dot, word.lstrip("$"))
            elif word in self._functions(root):
                yield word
            else:
                raise Failed(f"'{word}' is not known")

    def _functions(self, root: Any) -> dict[str, Callable[..., Any]]:
        return {
            "include": lambda name, dot: self._run(self._defined[name], dot, root).strip("\n"),
            "default": lambda fallback, value=None: value or fallback,
            "quote": lambda value: '"' + _text(value) + '"',
            "toYaml": lambda value: yaml.safe_dump(value, sort_keys=False, default_flow_style=False).rstrip("\n"),
            "nindent": lambda width, text: "\n" + "\n".join(" " * width + line for line in text.split("\n")),
            "trunc": lambda length, text: text[:length],
            "trimSuffix": lambda end, text: text.removesuffix(end),
            "printf": lambda form, *values: form % values,
            "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
            "eq": lambda a, b: a == b,
            "ne": lambda a, b: a != b,
            "gt": lambda a, b: a > b,
            "int": int,
            "and": lambda *values: next((value for value in values if not value), values[-1]),
            "not": lambda value: not value,
            "fail": _fail,
        }


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """Texts and actions in turn, with the blanks removed that an action's dashes ask for."""
    place, trim = 0, False
    for match in _ACTION.finditer(text):
        before = text[place : match.start()]
        before = before.lstrip() if trim else before
        yield "text", before.rstrip() if match[1] else before
        yield "action", match[2]
        place, trim = match.end(), bool(match[3])
    yield "text", text[place:].lstrip() if trim else text[place:]


def _find(value: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        if not isinstance(value, dict):
            raise Failed(f"nothing at '{path}'")
        value = value.get(name)
    return value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _over(new: Any, old: Any) -> Any:
    if isinstance(new, dict) and isinstance(old, dict):
        return {**old, **{name: _over(value, old.get(name)) for name, value in new.items()}}
    return new


def _fail(message: str) -> None:
    raise Failed(message)
