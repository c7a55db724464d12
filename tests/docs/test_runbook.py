"""The alert rules: they use metrics that exist, and the runbook says what to do about each of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
METRICS = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
GIVEN = {"up", "process_open_fds", "process_max_fds"}
"""Series that Prometheus and its client library make."""

each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])


def metrics_of(expression: str) -> set[str]:
    """The metrics that an expression reads."""
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|\bby \([^)]*\)", "", expression)
    words = set(re.findall(r"\b[a-z_]+\b(?!\s*\()", bare)) - {"and", "or", "le", "by"}
    return {re.sub(r"_bucket$", "", word) for word in words}


@each_rule
def test_rule_reads_metrics_that_exist(rule: dict[str, Any]) -> None:
    read = metrics_of(rule["expr"])
    assert read
    assert {name for name in read if f"| `{name}` |" not in METRICS} <= GIVEN
    for label in re.findall(r"[{,](\w+)=", rule["expr"]):
        assert label == "job" or f"| `{label}` |" in METRICS
    for opening, closing in ("()", "[]", "{}"):
        assert rule["expr"].count(opening) == rule["expr"].count(closing)


@each_rule
def test_rule_has_its_section_in_the_runbook(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
    assert f"\n## {rule['alert']}\n" in RUNBOOK


def test_runbook_is_about_nothing_else() -> None:
    assert re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE) == [rule["alert"] for rule in RULES]


def test_an_unknown_metric_is_noticed() -> None:
    assert metrics_of('sum by (le) (rate(aviso_gone_total{outcome="error"}[5m])) > 0') == {"aviso_gone_total"}
