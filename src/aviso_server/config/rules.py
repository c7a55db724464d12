"""Rules that hold between keys, section by section."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

import msgspec

from aviso_server.config.broker import check_broker
from aviso_server.config.settings import Application, Archive, Limits, Metrics, Otlp, Settings
from aviso_server.config.tree import Findings
from aviso_server.config.urls import base_url_problem, web_url_problem

__all__ = ["check_names", "check_sections"]

_SPARK = re.compile(r"local(\[([1-9][0-9]*|\*)\])?|yarn|(spark|sc)://[^\s/]+(/\S*)?", re.ASCII)


def check_sections(settings: Settings, findings: Findings) -> None:
    """Every rule that one key alone cannot show, except those of event types, `auth` and `ecpds`."""
    _application(settings.application, findings)
    _otlp(settings.logging.otlp, findings)
    _metrics(settings.metrics, settings.application, findings)
    _archive(settings.archive, settings.notification_backend.kind, findings)
    _limits(settings.limits, findings)
    check_broker(settings.notification_backend, findings)


def check_names(roles: Mapping[str, tuple[str, ...]], key: str, findings: Findings) -> None:
    """Realms and roles are there, are not blank and have no blanks around them."""
    if not roles and not _below(key, findings):
        findings.refuse(key, "names no realm", "at least one realm with at least one role")
    for realm, names in roles.items():
        if not realm.strip() or realm != realm.strip():
            findings.refuse(f"{key}.{realm}", "the realm is blank or has blanks around it", "a clean realm name")
        if not names and not _below(f"{key}.{realm}", findings):
            findings.refuse(f"{key}.{realm}", "names no role", "at least one role")
        for place, name in enumerate(names):
            if not name.strip() or name != name.strip():
                findings.refuse(f"{key}.{realm}[{place}]", "the role is blank or has blanks around it", "a clean name")


def _below(key: str, findings: Findings) -> bool:
    return any(problem.key.startswith(key) for problem in findings.problems)


def _application(application: Application, findings: Findings) -> None:
    reason = base_url_problem(application.base_url)
    if reason is not None:
        findings.refuse("application.base_url", reason, "an absolute URL such as https://aviso.example.org")
    for name, url in msgspec.structs.asdict(application.homepage).items():
        reason = web_url_problem(url)
        if reason is not None:
            key = f"application.homepage.{name}"
            findings.refuse(key, reason, "an absolute http or https URL with a host and without credentials")


def _otlp(otlp: Otlp, findings: Findings) -> None:
    key = "logging.otlp.endpoint"
    if otlp.endpoint is None or not otlp.endpoint.strip():
        if otlp.enabled and not findings.broken(key):
            findings.refuse(key, "must be set when logging.otlp.enabled is true", "host:port or an http(s) URL")
        return
    url = otlp.endpoint if "://" in otlp.endpoint else f"http://{otlp.endpoint}"
    reason = web_url_problem(url)
    if reason is not None:
        findings.refuse(key, reason, "host:port or an http(s) URL")


def _metrics(metrics: Metrics, application: Application, findings: Findings) -> None:
    key, accepted = "metrics.port", "1 to 65535, other than application.port"
    if not metrics.enabled or findings.broken(key):
        return
    if metrics.port is None:
        findings.refuse(key, "must be set when metrics.enabled is true", accepted)
    elif metrics.port == 0:
        findings.refuse(key, "0 is out of range", accepted)
    elif metrics.port == application.port and not findings.broken("application.port"):
        findings.refuse(key, f"{metrics.port} is application.port already", accepted)


def _limits(limits: Limits, findings: Findings) -> None:
    for place, network in enumerate(limits.trusted_proxies):
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            key = f"limits.trusted_proxies[{place}]"
            findings.refuse(key, f"'{network}' is no address", "an IP address or a network such as 10.0.0.0/8")
    if limits.request_burst is not None and limits.requests_per_second is None:
        findings.refuse("limits.request_burst", "needs limits.requests_per_second", "both, or neither")


def _archive(archive: Archive, backend: str, findings: Findings) -> None:
    if archive.enabled and backend == "in_memory" and not findings.broken("archive.enabled"):
        # sequences begin anew with every start: they would stand for other notifications than those archived
        accepted = "false, or notification_backend.kind sqlite or jetstream"
        findings.refuse("archive.enabled", "the archive needs a log that survives a restart", accepted)
    if not _SPARK.fullmatch(archive.spark):
        accepted = "local, local[N], local[*], yarn, spark://host:port or sc://host:port"
        findings.refuse("archive.spark", f"'{archive.spark}' is not a Spark master", accepted)
