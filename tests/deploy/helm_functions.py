"""The functions of Go templates, Sprig and Helm that our chart uses, as strict about types as they are."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from collections.abc import Callable
from typing import Any

import yaml

__all__ = ["FUNCTIONS", "Failed", "text"]

_KINDS = {dict: "map", list: "slice", str: "string", bool: "bool", int: "int", float: "float64", type(None): "invalid"}


class Failed(Exception):
    """The chart refuses these values, or the template is wrong."""


def text(value: Any) -> str:
    """A value as a template prints it."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fail(message: str) -> None:
    raise Failed(message)


def _same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        raise Failed(f"{a!r} and {b!r} cannot be compared")
    return bool(a == b)


def _above(a: int, b: int) -> bool:
    if type(a) is not int or type(b) is not int:
        raise Failed(f"{a!r} and {b!r} are not both integers")
    return a > b


def _ternary(yes: Any, no: Any, condition: bool) -> Any:
    if not isinstance(condition, bool):
        raise Failed(f"ternary needs a boolean, not {condition!r}")
    return yes if condition else no


def _dict(*words: Any) -> dict[str, Any]:
    return dict(zip(words[::2], words[1::2], strict=True))


def _set(target: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    if not isinstance(target, dict):
        raise Failed(f"cannot set '{name}' in {target!r}")
    target[name] = value
    return target


def _has_key(target: dict[str, Any], name: str) -> bool:
    if not isinstance(target, dict):
        raise Failed(f"{target!r} has no keys")
    return name in target


def _merge(target: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What the first one has stays."""
    for name, value in other.items():
        if isinstance(target.get(name), dict) and isinstance(value, dict):
            _merge(target[name], value)
        elif not target.get(name):
            target[name] = value
    return target


def _to_yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=False, width=10_000).rstrip("\n")


def _base64(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "and": lambda *values: next((value for value in values if not value), values[-1]),
    "append": lambda values, value: [*values, value],
    "b64enc": _base64,
    "contains": lambda part, whole: part in whole,
    "deepCopy": copy.deepcopy,
    "default": lambda fallback, value=None: value or fallback,
    "dict": _dict,
    "empty": lambda value: not value,
    "eq": _same,
    "fail": _fail,
    "fromYaml": yaml.safe_load,
    "gt": _above,
    "has": lambda value, values: value in values,
    "hasKey": _has_key,
    "index": lambda value, *names: [value := value[name] for name in names][-1],
    "int": lambda value: int(value or 0),
    "kindIs": lambda kind, value: _KINDS[type(value)] == kind,
    "len": len,
    "list": lambda *values: list(values),
    "merge": _merge,
    "ne": lambda a, b: not _same(a, b),
    "nindent": lambda width, lines: "\n" + "\n".join(" " * width + line for line in lines.split("\n")),
    "not": lambda value: not value,
    "or": lambda *values: next((value for value in values if value), values[-1]),
    "printf": lambda form, *values: form % values,
    "quote": lambda value: json.dumps(text(value)),
    "set": _set,
    "sha256sum": lambda value: hashlib.sha256(value.encode()).hexdigest(),
    "splitList": lambda mark, value: value.split(mark),
    "ternary": _ternary,
    "toJson": lambda value: json.dumps(value, sort_keys=True, separators=(",", ":")),
    "toYaml": _to_yaml,
    "trimSuffix": lambda end, value: value.removesuffix(end),
    "trunc": lambda length, value: value[:length],
}
