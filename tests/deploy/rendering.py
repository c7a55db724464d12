"""What the chart makes of values: objects of Kubernetes, and the server's command with all that it is given."""

from __future__ import annotations

import base64
import json
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

__all__ = ["DIRECTORY", "Failed", "container", "documents", "environment", "helm", "published"]

DIRECTORY = Path(__file__).parents[2] / "deploy" / "helm" / "aviso-server"
HELM = Path(sysconfig.get_path("scripts")) / "helm"
PUBLISHED = Path(__file__).parent / "values"


def published(name: str) -> dict[str, Any]:
    """Values in the form of the published aviso chart."""
    values: dict[str, Any] = yaml.safe_load((PUBLISHED / f"{name}.yaml").read_text())
    return values


def documents(values: dict[str, Any], release: str = "test") -> dict[str, dict[str, Any]]:
    """What is rendered, by kind; Secrets by their name."""
    found: dict[str, dict[str, Any]] = {}
    for document in yaml.safe_load_all(helm("template", release, values=values)):
        kind = document["kind"]
        found[document["metadata"]["name"] if kind == "Secret" else kind] = document
    return found


class Failed(Exception):
    """Helm refuses the chart or the values."""


def helm(*arguments: str, values: dict[str, Any] | None = None) -> str:
    """Run Helm on the chart with values and return what it prints."""
    command = [str(HELM), *arguments, str(DIRECTORY), "--values", "-"]
    done = subprocess.run(command, input=json.dumps(values or {}), capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(done.stdout + done.stderr)
    return done.stdout


def container(found: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The only container of the pods."""
    [only] = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(only)


def environment(found: Mapping[str, dict[str, Any]], others: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of the container; `others` are keys of Secrets that the chart does not make."""
    variables: dict[str, str] = {}
    for each in container(found)["env"]:
        if "value" in each:
            variables[each["name"]] = each["value"]
        elif "secretKeyRef" in each["valueFrom"]:
            wanted = each["valueFrom"]["secretKeyRef"]
            secret = found.get(wanted["name"])
            known = dict(others or {}) if secret is None else _decoded(secret)
            variables[each["name"]] = known[wanted["key"]]
    return variables


def _decoded(secret: Mapping[str, Any]) -> dict[str, str]:
    return {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}
