"""Rules of the `auth` section; they hold once authentication is switched on."""

from __future__ import annotations

from aviso_server.config.public_keys import ALGORITHMS, DEFAULT_ALGORITHMS, algorithms_of, read_public_keys
from aviso_server.config.rules import check_names
from aviso_server.config.settings import Auth
from aviso_server.config.tree import Findings
from aviso_server.config.urls import key_url_problem, web_url_problem

__all__ = ["check_auth"]

_SERVICE = "an absolute http or https URL without credentials, query or fragment"
_KEY_URL = "an https URL without credentials, or http:// to 127.0.0.1, [::1] or localhost"


def check_auth(auth: Auth, findings: Findings) -> None:
    """Report what keeps callers from being recognised."""
    if not auth.enabled:
        return
    _service(auth, findings)
    _keys(auth, findings)
    _algorithms(auth, findings)
    for name in ("audience", "issuer"):
        text = getattr(auth, name)
        if text != text.strip():
            findings.refuse(f"auth.{name}", "must not begin or end with blanks", "text without blanks around it")
    if not findings.broken("auth.admin_roles"):
        check_names(auth.admin_roles, "auth.admin_roles", findings)
    if auth.timeout_ms == 0:
        findings.refuse("auth.timeout_ms", "0 is out of range", "a whole number, 1 or more")


def _service(auth: Auth, findings: Findings) -> None:
    key, url = "auth.auth_o_tron_url", auth.auth_o_tron_url
    unneeded = auth.mode != "direct" or findings.broken("auth.mode")
    if findings.broken(key) or (unneeded and not url):
        return
    if not url.strip():
        findings.refuse(key, "must be set when auth is enabled in mode direct", _SERVICE)
    elif url != url.strip():
        findings.refuse(key, "must not begin or end with blanks", "text without blanks around it")
    elif "?" in url or "#" in url:
        findings.refuse(key, "must have neither query nor fragment", _SERVICE)
    elif (reason := web_url_problem(url)) is not None:
        findings.refuse(key, reason, _SERVICE)


def _keys(auth: Auth, findings: Findings) -> None:
    """There is exactly one kind of key: a secret that signs must never be mixed with keys that everybody may know."""
    public = [name for name in ("public_key_file", "jwks_url") if getattr(auth, name)]
    for name in public if auth.jwt_secret else public[1:]:
        other = "jwt_secret" if auth.jwt_secret else public[0]
        findings.refuse(f"auth.{name}", f"cannot be used together with auth.{other}", f"one of {', '.join(_SOURCES)}")
    if not public:
        _secret(auth, findings)
    if auth.public_key_file is not None:
        try:
            keys = read_public_keys(auth.public_key_file)
        except ValueError as error:
            findings.refuse("auth.public_key_file", str(error), "a PEM file with public keys or certificates")
            return
        pinned = set(auth.algorithms or DEFAULT_ALGORITHMS)
        if not any(pinned.intersection(algorithms_of(key)) for key in keys):
            usable = sorted({name for key in keys for name in algorithms_of(key)})
            findings.refuse("auth.algorithms", "none of them can be used with the key", ", ".join(usable))
    if auth.jwks_url and (reason := key_url_problem(auth.jwks_url)) is not None:
        findings.refuse("auth.jwks_url", reason, _KEY_URL)


_SOURCES = ("auth.jwt_secret", "auth.public_key_file", "auth.jwks_url")


def _secret(auth: Auth, findings: Findings) -> None:
    key, secret = "auth.jwt_secret", auth.jwt_secret
    if findings.broken(key) or any(findings.broken(name) for name in _SOURCES):
        return
    if not secret.strip():
        findings.refuse(key, "must be set when auth is enabled", f"one of {', '.join(_SOURCES)}")
    elif secret != secret.strip():
        findings.refuse(key, "must not begin or end with blanks", "text without blanks around it")
    elif secret.startswith("-----BEGIN"):
        findings.refuse(key, "is a key in PEM form, not a secret", "a secret, or the file in auth.public_key_file")


def _algorithms(auth: Auth, findings: Findings) -> None:
    key = "auth.algorithms"
    if auth.algorithms and not auth.public_key_file and not auth.jwks_url:
        findings.refuse(key, "is for public keys; with auth.jwt_secret it is HS256 always", "leave it out")
        return
    for place, name in enumerate(auth.algorithms):
        if name not in ALGORITHMS:
            findings.refuse(f"{key}[{place}]", f"'{name}' is not accepted", ", ".join(ALGORITHMS))
