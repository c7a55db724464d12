"""From files and variables to settings, or to a list of everything that is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from aviso_server.config.auth import check_auth
from aviso_server.config.ecpds import check_ecpds
from aviso_server.config.event_types import read_event_types
from aviso_server.config.keys import check_unknown
from aviso_server.config.log_level import log_level
from aviso_server.config.reading import read_struct
from aviso_server.config.rule import Secret
from aviso_server.config.rules import check_sections
from aviso_server.config.settings import DERIVED, Deployment, Settings
from aviso_server.config.sources import gather
from aviso_server.config.tree import Findings
from aviso_server.errors import ConfigError, Problem

__all__ = ["Inspection", "inspect", "load"]


_ADDRESS = frozenset({"application.host", "application.port"})
_EVERY_ADDRESS = {"0.0.0.0": "localhost", "::": "localhost"}  # listening on all of them: a name that leads to one


class Inspection(msgspec.Struct, frozen=True):
    """What came of reading a configuration; usable if there are no problems."""

    settings: Settings
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


def load(environ: Mapping[str, str], file: Path | None = None, given: Mapping[str, str] | None = None) -> Settings:
    """The settings of a server; ConfigError with every problem if they cannot be used.

    `file` stands for `AVISOSERVER_CONFIG_FILE`: only that file is read, and the environment on top of it. What the
    command line has `given`, by dotted key, wins over both. Keys that nothing reads are among the warnings of the
    settings.
    """
    found = inspect(environ, file, given)
    if found.problems:
        raise ConfigError(list(found.problems))
    warnings = (*found.settings.warnings, *map(str, found.warnings))
    return msgspec.structs.replace(found.settings, warnings=warnings)


def inspect(environ: Mapping[str, str], file: Path | None = None, given: Mapping[str, str] | None = None) -> Inspection:
    """Settings, problems and warnings of a configuration; defaults stand in for what is broken."""
    root, problems = gather(environ, file, given or {})
    findings = Findings(root)
    settings = read_struct(Settings, root, "", findings, DERIVED)
    if _ADDRESS & (given or {}).keys() and root.find("application.base_url") is None:
        settings = _named_by_address(settings)
    settings = read_event_types(root, settings, findings)
    check_sections(settings, findings)
    check_auth(settings.auth, findings)
    check_ecpds(root, settings, findings)
    warnings = check_unknown(root, findings)
    settings = _with_variables(settings, environ)
    return Inspection(settings, (*problems, *findings.problems), tuple(warnings))


def _named_by_address(settings: Settings) -> Settings:
    """The settings with a base URL that leads to where the server listens, as far as that is known before it does."""
    application = settings.application
    host = _EVERY_ADDRESS.get(application.host, application.host)
    if application.port == 0:
        return settings
    url = f"http://[{host}]:{application.port}" if ":" in host else f"http://{host}:{application.port}"
    return msgspec.structs.replace(settings, application=msgspec.structs.replace(application, base_url=url))


def _with_variables(settings: Settings, environ: Mapping[str, str]) -> Settings:
    levels, warning = log_level(environ, settings.logging.level)
    backend = settings.notification_backend
    token = environ.get("NATS_TOKEN")
    if backend.jetstream.token is None and token:
        jetstream = msgspec.structs.replace(backend.jetstream, token=Secret(token))
        backend = msgspec.structs.replace(backend, jetstream=jetstream)
    return msgspec.structs.replace(
        settings,
        notification_backend=backend,
        log_level=levels.level,
        log_levels=levels.modules,
        warnings=() if warning is None else (warning,),
        deployment=Deployment(
            namespace=environ.get("K8S_NAMESPACE_NAME") or None,
            pod=environ.get("K8S_POD_NAME") or environ.get("HOSTNAME") or None,
        ),
    )
